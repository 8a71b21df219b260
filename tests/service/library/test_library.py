"""`import ggferry`: the examples of docs/python.md, the names on offer, and what they answer."""

from __future__ import annotations

import ast
import inspect
import re
import shutil
import subprocess
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path

import numpy as np
import pytest

import ggferry
from ggferry.converters.conversion.options import Kind, options_of
from ggferry.formats import errors
from ggferry.formats.errors import fault_of
from ggferry.service.cli.app import _run
from ggferry.service.library.keywords import KEYWORDS, offered
from helpers.third_party_fixtures import ROOT

PAGE = ROOT / "docs" / "python.md"
FUNCTIONS = (
    "convert",
    "plan",
    "quantize",
    "verify",
    "inspect",
    "open_model",
    "forward",
    "tokenize",
    "split",
    "merge",
    "check_shards",
    "edit",
    "hashes",
    "diff",
    "examine",
    "publish",
)


@pytest.fixture
def folder(tmp_path: Path, fixtures: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the page: an old file and a checkpoint."""
    shutil.copy(fixtures / "legacy-llama" / "ggjt1-20230428" / "q4_0.bin", tmp_path / "old.bin")
    shutil.copytree(fixtures / "hf" / "ckpt" / "llama", tmp_path / "llama")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_page_runs(folder: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.S | re.M)
    assert len(blocks) > 8
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)


def test_the_examples_of_the_readme_run(folder: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.S | re.M)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstrings_say_it_all(name: str) -> None:
    text = inspect.getdoc(getattr(ggferry, name)) or ""
    for part in ("Args:", "Returns:", "Raises:", "Example:"):
        assert part in text
    for parameter in inspect.signature(getattr(ggferry, name)).parameters.values():
        own = parameter.name not in KEYWORDS.get(name, type("", (), {"__annotations__": {}})).__annotations__
        assert not own or re.search(rf"^ +{parameter.name}:", text, re.M), parameter.name


def test_importing_loads_nothing_heavy() -> None:
    script = (
        "import sys\nbefore = set(sys.modules)\nimport ggferry\n"
        "assert ggferry.__version__ and 'convert' in dir(ggferry)\n"
        "loaded = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "assert not loaded & {'torch', 'numba', 'numpy', 'typer', 'rich', 'fsspec'}, loaded\n"
        "assert not [name for name in sys.modules if name.startswith('ggferry.')]\n"
        "ggferry.convert, ggferry.inspect, ggferry.VerificationError\n"
        "assert not {'torch', 'numba', 'numpy'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_is_offered_is_what_is_listed() -> None:
    assert {*FUNCTIONS, "__version__"} < set(ggferry.__all__) and sorted(ggferry.__all__) == ggferry.__all__
    for name in ggferry.__all__:
        assert getattr(ggferry, name) is not None
    kinds = {
        name for name, value in vars(errors).items() if isinstance(value, type) and value.__module__ == errors.__name__
    }
    assert kinds <= set(ggferry.__all__)
    tree = ast.parse(Path(str(ggferry.__file__)).read_text())
    typed = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert set(ggferry.__all__) - {"__version__"} <= typed
    with pytest.raises(AttributeError, match="no_such"):
        ggferry.no_such  # type: ignore[attr-defined]  # noqa: B018


EXCEPT = {
    # nothing is written or proved, and what is planned is GGUF
    "plan": {
        "force",
        "out",
        "verify",
        "witness",
        "text",
        "jobs",
        "allow_quantization_error",
    },
    "convert": {"out"},  # an argument
    "quantize": {"out", "outtype"},
}
MORE = {"quantize": {"jobs"}}  # the fourth argument of the command


@pytest.mark.parametrize("name", KEYWORDS)
def test_keywords_are_those_of_the_table(name: str) -> None:
    table = {each.name: each for each in options_of("convert" if name == "plan" else name) if not each.terminal}
    assert set(offered(name)) == (set(table) - EXCEPT.get(name, set())) | MORE.get(name, set())
    parameters = inspect.signature(getattr(ggferry, name)).parameters
    for option in offered(name).values():
        assert parameters[option.name].default == option.default
        said = str(KEYWORDS[name].__annotations__[option.name])
        words = {
            Kind.FLAG: "bool",
            Kind.NUMBER: "int",
            Kind.SIZE: "int | str",
            Kind.DECIMAL: "float",
            Kind.FILE: "StrPath",
            Kind.TEXT_FILE: "StrPath",
            Kind.LIKE_FILE: "StrPath",
            Kind.TYPES_FILE: "StrPath",
            Kind.TEXTS: "Sequence[str]",
            Kind.ADAPTERS: "Sequence[StrPath]",
            Kind.PAIRS: "Mapping[str, str]",
            Kind.TYPES: "Mapping[str, str]",
            Kind.JSON_FILE: "Mapping[str, Any]",
        }
        assert words.get(option.kind, "str" if "Literal" not in said else "Literal") in said, option.name
        if "Literal" in said:
            values = re.findall(r"[\"']([\w.]+)[\"']", said[said.index("Literal[") : said.index("]")])
            assert values and isinstance(option.choices, tuple)
            assert set(values) == set(option.choices)


def test_the_command_line_writes_the_same_bytes(folder: Path) -> None:
    ggferry.convert(Path("old.bin"), Path("a.gguf"), hparams={"context_length": "99"}, model_name="A")
    told = ["--hparam", "context_length=99", "--model-name", "A"]
    assert _run(["convert", "old.bin", "-o", "b.gguf", *told]) == 0
    assert Path("a.gguf").read_bytes() == Path("b.gguf").read_bytes()
    plain = [Path(f"{name}.gguf.receipt.json").read_text() for name in "ab"]
    assert plain[0].replace("a.gguf", "b.gguf") == plain[1]


def test_the_plan_is_what_happens(folder: Path) -> None:
    plan = ggferry.plan("llama", outtype="q8_0", metadata={"general.license": "mit"})
    done = ggferry.convert("llama", "x.gguf", outtype="q8_0", metadata={"general.license": "mit"}, verify="fast")
    import gguf

    reader = gguf.GGUFReader("x.gguf")
    assert [(t.name, tuple(map(int, t.shape[::-1])), t.tensor_type.name) for t in reader.tensors] == [
        (t.name, t.shape, t.type) for t in plan.tensors
    ]
    found = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    planned = {name: list(key.value) if isinstance(key.value, tuple) else key.value for name, key in plan.keys.items()}
    assert found["general.license"] == "mit" and set(found) == set(planned)
    for name, value in found.items():
        assert planned[name] == pytest.approx(value, rel=1e-6) if isinstance(value, float) else planned[name] == value
    assert Path(done.output).stat().st_size == plan.bytes_written and done.receipt["verified"] == "fast"


def test_tensors_are_those_that_gguf_py_reads(folder: Path) -> None:
    import gguf

    ggferry.convert("llama", "x.gguf", outtype="q8_0", verify="none")
    reader = gguf.GGUFReader("x.gguf")
    with ggferry.open_model("x.gguf") as model:
        assert set(model.tensors) == {tensor.name for tensor in reader.tensors}
        for tensor in reader.tensors:
            expected = gguf.dequantize(tensor.data, tensor.tensor_type)
            found = model.tensor(tensor.name)
            assert found.dtype == np.float32 and found.shape == tuple(map(int, tensor.shape[::-1]))
            assert np.array_equal(found.reshape(-1), np.asarray(expected).reshape(-1))
        with pytest.raises(ggferry.NotFoundError, match="no such tensor"):
            model.tensor("blk.99.attn_q.weight")


def test_a_checkpoint_is_seen_in_the_row_order_of_gguf(folder: Path) -> None:
    ggferry.convert("llama", "x.gguf", verify="none")
    with ggferry.open_model("llama") as before, ggferry.open_model("x.gguf") as after:
        assert before.hparams == pytest.approx(after.hparams, rel=1e-6) and before.architecture == after.architecture
        for name in after.tensors:
            assert np.array_equal(before.tensor(name), after.tensor(name)), name


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda: ggferry.convert("nothing.bin"), ggferry.NotFoundError),
        (lambda: ggferry.convert("old.bin", ""), ggferry.UsageError),
        (lambda: ggferry.convert("old.bin", "x", jobs=0), ggferry.UsageError),
        (lambda: ggferry.convert("old.bin", "x", pure="yes"), ggferry.UsageError),
        (lambda: ggferry.convert("old.bin", "x", outtype="q9"), ggferry.UsageError),
        (lambda: ggferry.convert("old.bin", "x", verify="some"), ggferry.UsageError),
        (lambda: ggferry.convert("old.bin", "x", hparams={"a": 1}), ggferry.UsageError),
        (lambda: ggferry.convert("old.bin", "x", tensor_types={"(": "q8_0"}), ggferry.UsageError),
        (lambda: ggferry.convert("old.bin", "old.bin", force=True), ggferry.RefusedError),
        (lambda: ggferry.quantize("old.bin", "x", "q8_0"), ggferry.UsageError),
        (lambda: ggferry.forward("llama", [10**6]), ggferry.UsageError),
        (lambda: ggferry.forward("llama", []), ggferry.UsageError),
        (lambda: ggferry.verify("old.bin", "llama"), ggferry.GgferryError),
        (lambda: ggferry.convert("old.bin", "x", outtyp="f16"), TypeError),
        (lambda: ggferry.open_model("llama", force=True), TypeError),
    ],
)
def test_errors_are_ours_and_leave_nothing(call, kind: type[Exception], folder: Path) -> None:  # type: ignore[no-untyped-def]
    before = sorted(path.name for path in folder.iterdir())
    with pytest.raises(kind):
        call()
    assert sorted(path.name for path in folder.iterdir()) == before


def test_answers_are_frozen_records() -> None:
    for name in ("Conversion", "ConversionPlan", "Inspection", "Verification", "Assumption", "PlannedTensor"):
        kind = getattr(ggferry, name)
        assert is_dataclass(kind) and kind.__dataclass_params__.frozen and fields(kind) and kind.__doc__


@pytest.mark.parametrize(("former", "name"), [("ladder", "convert_many"), ("PassingError", "TransientError")])
def test_a_former_name_works_and_warns(former: str, name: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"ggferry.{name}"):
        assert getattr(ggferry, former) is getattr(ggferry, name)


def test_a_renamed_error_keeps_its_code_and_is_known_by_its_former_name() -> None:
    assert ggferry.TransientError("away").code == "passing_error"
    assert fault_of({"class": "PassingError"}) is fault_of({"class": "TransientError"}) is ggferry.Fault.TRANSIENT
