"""The import rule."""

from __future__ import annotations

import ast
import builtins
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from helpers.witnesses import ROOT

ROOMS = ("support", "quant", "formats", "converters", "service")
FILES = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
MODULES = {
    ".".join(("ggferry", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in FILES
}
FOLDERS = sorted({path.parent for path in FILES})
HEAVY = {"numpy", "torch", "numba", "sentencepiece", "regex", "rich", "safetensors", "blake3"}
HEAVY |= {"fsspec", "sqlalchemy", "ray"}


def imports(path: Path, top_level_only: bool = False) -> list[str]:
    """Dotted names a module imports (`from a import b` counts as a.b)."""
    tree = ast.parse(path.read_text())
    nodes = list(ast.walk(tree)) if not top_level_only else list(top_level(tree))
    names = []
    for node in nodes:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def top_level(tree: ast.Module):
    """Statements run at import time: not in functions, not under TYPE_CHECKING."""
    todo = list(tree.body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            todo += node.orelse
            continue
        yield node
        todo += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_arrows_never_run_back(path: Path) -> None:
    room = ROOMS.index(path.relative_to(ROOT).parts[0])
    for name in imports(path):
        if name.startswith("ggferry."):
            other = name.split(".")[1]
            assert other not in ROOMS or ROOMS.index(other) <= room, f"{path} imports {name}"


REGISTRIES = (
    "formats/readers", "converters/prequantized/schemes", "converters/architectures", "converters/projectors",
    "converters/forward/towers",
)  # fmt: skip


@pytest.mark.parametrize(
    "path", [path for room in REGISTRIES for path in sorted((ROOT / room).glob("[!_]*.py"))], ids=lambda p: p.stem
)
def test_entries_of_a_registry_do_not_import_each_other(path: Path) -> None:
    """What they share stands in a module whose name begins with an underscore."""
    own = "ggferry." + ".".join(path.relative_to(ROOT).parts[:-1])
    foreign = [name for name in imports(path) if name.startswith(f"{own}.") and not name.startswith(f"{own}._")]
    assert not foreign


def test_no_circle_of_imports() -> None:
    wanted = {
        name: {
            module
            for found in imports(path, top_level_only=True)
            for module in (found, found.rpartition(".")[0])
            if module in MODULES and module != name
        }
        for name, path in MODULES.items()
    }
    TopologicalSorter(wanted).prepare()


def neighbors(folder: Path) -> dict[str, set[str]]:
    """Of what stands in `folder`, modules and folders, what each imports of the others."""
    wanted: dict[str, set[str]] = {}
    for path in (path for path in FILES if folder in path.parents):
        own = path.relative_to(folder).parts[0]
        for found in imports(path, top_level_only=path.parent == folder):
            other = MODULES.get(found) or MODULES.get(found.rpartition(".")[0])
            if other is not None and folder in other.parents and other.name != "__init__.py":
                wanted.setdefault(own, set()).add(other.relative_to(folder).parts[0])
    return {own: others - {own} for own, others in wanted.items()}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda p: str(p.relative_to(ROOT)))
def test_neighbors_do_not_import_in_a_circle(folder: Path) -> None:
    """A folder uses what stands beside it or above it, and is not used by that."""
    TopologicalSorter(neighbors(folder)).prepare()


TABLES = ("converters/architectures", "converters/projectors")
GROWING = (*TABLES, "converters/forward/towers", "quant/codecs", "quant/kernels")
MOST_MODULES = 12


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_room_can_be_overlooked(folder: Path) -> None:
    modules = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
    assert len(modules) <= MOST_MODULES or str(folder.relative_to(ROOT)) in GROWING


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_room_says_what_belongs_there(folder: Path) -> None:
    said = ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
    assert said and said.split("\n")[0].endswith((".", ":"))


def test_no_module_is_named_as_a_builtin() -> None:
    assert not {path.stem for path in FILES} & set(dir(builtins))


@pytest.mark.parametrize(
    "path", [path for room in TABLES for path in sorted((ROOT / room).glob("*.py"))], ids=lambda p: p.name
)
def test_architectures_are_tables(path: Path) -> None:
    """Tables import their vocabulary and nothing that computes with a model. A table holds no control flow and edits
    no text; what several share, or one family computes, is a function of a module '_NAME', and that does no input or
    output."""
    allowed = (
        "ggferry.converters.schema", f"ggferry.converters.{path.parent.name}", "ggferry.support.lazy_import",
        "ggferry.formats.gguf.values", "ggferry.formats.fields", "ggferry.formats.reader", "ggferry.formats.limits",
    )  # fmt: skip
    for name in imports(path):
        assert not name.startswith("ggferry.") or name.startswith(allowed), f"{path.name} imports {name}"
        assert name.split(".")[0] not in ("os", "io", "pathlib", "subprocess", "socket", "sys"), name
    tree = ast.parse(path.read_text())
    called = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert not {"open", "print", "exec", "eval"} & {func.id for func in called if isinstance(func, ast.Name)}
    assert "replace" not in {func.attr for func in called if isinstance(func, ast.Attribute)}, "a text is edited"
    if not path.name.startswith("_"):
        banned = (ast.If, ast.For, ast.While, ast.Try, ast.FunctionDef, ast.ClassDef, ast.Lambda)
        found = [type(node).__name__ for node in ast.walk(tree) if isinstance(node, banned)]
        assert not found, f"{path.name} holds {found[0]}"


APART = {"kernels", "programs"}
"""Folders of what is loaded by those alone that compute with it."""


@pytest.mark.parametrize("path", [p for p in FILES if not APART & {*p.parts}], ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_heavy_is_imported_at_import_time(path: Path) -> None:
    heavy = {name.split(".")[0] for name in imports(path, top_level_only=True)} & HEAVY
    assert not heavy, f"{path} imports {heavy} when it is loaded"


def test_typer_is_only_in_the_command_line() -> None:
    users = {str(path.relative_to(ROOT)) for path in FILES if any(n.split(".")[0] == "typer" for n in imports(path))}
    parts = ("app", "archive", "options", "convert", "inspect", "supported", "server/serve", "server/remote")
    verbs = {user for user in users if user.startswith("service/cli/files/")}
    assert verbs and users - verbs == {f"service/cli/{part}.py" for part in parts}


def test_every_folder_of_modules_is_packaged() -> None:
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    found = {"ggferry." + ".".join(p.parent.relative_to(ROOT).parts) for p in FILES}
    assert found <= listed, f"absent from the wheel: {found - listed}"
