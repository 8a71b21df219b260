"""The import rule."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from helpers.parsed import parsed
from helpers.third_party_fixtures import ROOT

ROOMS = ("support", "quant", "formats", "converters", "service")
FILES = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
MODULES = {
    ".".join(("ggferry", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in FILES
}
FOLDERS = sorted({path.parent for path in FILES})
HEAVY = {"numpy", "torch", "numba", "sentencepiece", "regex", "rich", "safetensors", "blake3"}
HEAVY |= {"fsspec", "sqlalchemy", "ray"}


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def imports(path: Path, top_level_only: bool = False) -> list[str]:
    """Dotted names a module imports (`from a import b` counts as a.b)."""
    tree = parsed(path)
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


def test_arrows_never_run_back() -> None:
    back = [
        f"{shown(path)} imports {name}"
        for path in FILES
        for name in imports(path)
        if name.startswith("ggferry.")
        and (other := name.split(".")[1]) in ROOMS
        and ROOMS.index(other) > ROOMS.index(path.relative_to(ROOT).parts[0])
    ]
    assert back == []


REGISTRIES = (
    "formats/readers",
    "converters/prequantized/schemes",
    "converters/architectures",
    "converters/projectors",
    "converters/forward/towers",
    "service/operations",
)


def test_entries_of_a_registry_do_not_import_each_other() -> None:
    """What they share stands in a module whose name begins with an underscore."""
    foreign = []
    for path in (path for room in REGISTRIES for path in sorted((ROOT / room).glob("[!_]*.py"))):
        own = "ggferry." + ".".join(path.relative_to(ROOT).parts[:-1])
        found = (name for name in imports(path) if name.startswith(f"{own}.") and not name.startswith(f"{own}._"))
        foreign += [f"{shown(path)} imports {name}" for name in found]
    assert foreign == []


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


def test_neighbors_do_not_import_in_a_circle() -> None:
    """A folder uses what stands beside it or above it, and is not used by that."""
    for folder in FOLDERS:
        TopologicalSorter(neighbors(folder)).prepare()


TABLES = ("converters/architectures", "converters/projectors")
GROWING = (
    *TABLES,
    "service/operations",
    "formats/readers",
    "converters/forward/towers",
    "formats/readers",
    "quant/codecs",
    "quant/kernels",
    "converters/prequantized/schemes",
)
MOST_MODULES = 12


def test_a_room_can_be_overlooked() -> None:
    counts = {
        shown(folder): sum(path.name != "__init__.py" for path in folder.glob("*.py"))
        for folder in FOLDERS
        if shown(folder) not in GROWING
    }
    assert {folder: count for folder, count in counts.items() if count > MOST_MODULES} == {}


def test_a_room_says_what_belongs_there() -> None:
    said = {shown(folder): ast.get_docstring(parsed(folder / "__init__.py")) or "" for folder in FOLDERS}
    assert [folder for folder, text in said.items() if not text.split("\n")[0].endswith((".", ":"))] == []


def test_no_module_is_named_as_a_builtin() -> None:
    assert not {path.stem for path in FILES} & set(dir(builtins))


def test_architectures_are_tables() -> None:
    """Tables import their vocabulary and nothing that computes with a model. A table holds no control flow and edits
    no text; what several share, or one family computes, is a function of a module '_NAME', and that does no input or
    output."""
    paths = [path for room in TABLES for path in sorted((ROOT / room).glob("*.py"))]
    assert [f"{shown(path)} {fault}" for path in paths for fault in faults_of_table(path)] == []


def faults_of_table(path: Path) -> Iterator[str]:
    allowed = (
        "ggferry.converters.schema",
        f"ggferry.converters.{path.parent.name}",
        "ggferry.support.heavy",
        "ggferry.formats.gguf.values",
        "ggferry.formats.fields",
        "ggferry.formats.reader",
        "ggferry.formats.limits",
    )
    for name in imports(path):
        outside = name.startswith("ggferry.") and not name.startswith(allowed)
        if outside or name.split(".")[0] in ("os", "io", "pathlib", "subprocess", "socket", "sys"):
            yield f"imports {name}"
    tree = parsed(path)
    called = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for name in {"open", "print", "exec", "eval"} & {func.id for func in called if isinstance(func, ast.Name)}:
        yield f"calls {name}"
    if "replace" in {func.attr for func in called if isinstance(func, ast.Attribute)}:
        yield "edits a text"
    if not path.name.startswith("_"):
        banned = (ast.If, ast.For, ast.While, ast.Try, ast.FunctionDef, ast.ClassDef, ast.Lambda)
        yield from (f"holds {type(node).__name__}" for node in ast.walk(tree) if isinstance(node, banned))


APART = {"kernels", "programs"}
"""Folders of what is loaded by those alone that compute with it."""


def test_nothing_heavy_is_imported_at_import_time() -> None:
    found = {
        shown(path): {name.split(".")[0] for name in imports(path, top_level_only=True)} & HEAVY
        for path in FILES
        if not APART & {*path.parts}
    }
    assert {path: names for path, names in found.items() if names} == {}


def test_typer_is_only_in_the_command_line() -> None:
    users = {str(path.relative_to(ROOT)) for path in FILES if any(n.split(".")[0] == "typer" for n in imports(path))}
    parts = ("app", "archive", "options", "convert", "inspect", "supported")
    parts += ("server/serve", "server/backup", "server/remote")
    verbs = {user for user in users if user.startswith("service/cli/files/")}
    assert verbs and users - verbs == {f"service/cli/{part}.py" for part in parts}


def test_every_folder_of_modules_is_packaged() -> None:
    """setup.py finds folders that have an `__init__.py`."""
    folders = {folder for path in FILES for folder in path.relative_to(ROOT).parents if str(folder) != "."}
    missing = sorted(str(folder) for folder in folders if not (ROOT / folder / "__init__.py").is_file())
    assert missing == [], "absent from the wheel"
