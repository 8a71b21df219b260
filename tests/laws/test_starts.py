"""What a quick answer may load: a start is as slow as what it imports, and as many modules as it imports.

Counted, never timed. Of a start of 65 ms, CPython takes 7, typer 30, and each module of ours a quarter of one; a class
made by the standard library's `dataclass` takes a third (docs/decisions/records.md).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ggferry.formats.reader import readers
from helpers import as_system

LIBRARIES = """numpy torch numba llvmlite transformers tokenizers sentencepiece regex safetensors blake3 rich jinja2
    yaml fsspec sqlalchemy ray fastapi psycopg huggingface_hub"""
STANDARD = """asyncio concurrent.futures hashlib http.client importlib.metadata logging multiprocessing pkgutil random
    secrets sqlite3 ssl tempfile urllib.request xml"""
ROOMS = """conversion_plan forward proof tokenizers write export rewrite survey adapters"""
NEVER = {
    *LIBRARIES.split(),
    *STANDARD.split(),
    *(f"ggferry.converters.{room}" for room in ROOMS.split()),
    "ggferry.quant.recipes",
    "ggferry.service.library",
    "ggferry.service.storage",
    "ggferry.service.workers",
}
"""What neither help nor `inspect` needs."""

PLAIN = {"Span", "TensorRef", "Value", "_Tree", "Global", "State", "Storage", "View"}
"""The classes of `inspect` whose functions the standard library compiles: what a header states half a million of, and
what is not frozen or not compared."""

SCRIPT = """
import json, sys
before = set(sys.modules)
from ggferry.service.cli.app import _run
code = _run(sys.argv[1:])
ours = {name: module for name, module in sys.modules.items() if name.startswith("ggferry")}
classes = {each for module in ours.values() for each in vars(module).values() if isinstance(each, type)}
compiled = {
    each.__name__ for each in classes
    if each.__module__ in ours and "__dataclass_fields__" in vars(each)
    and any(getattr(getattr(one, "__code__", None), "co_filename", "") == "<string>" for one in vars(each).values())
}
facts = {"code": code, "loaded": sorted(set(sys.modules) - before), "ours": len(ours), "compiled": sorted(compiled)}
print(json.dumps(facts), file=sys.stderr)
"""

STARTS = {
    "--help": 28,
    "--version": 28,
    "convert --help": 28,
    "inspect --help": 30,
    "inspect hf/out/llama/llama.q8_0.gguf": 127,
    "inspect --json hf/out/llama/llama.q8_0.gguf": 127,
    "inspect legacy-llama/ggjt3-20230821/q4_0.bin": 149,
    "inspect hf/ckpt/llama": 163,
    "inspect hf/ckpt/llama_bin_shards/pytorch_model-00005-of-00005.bin": 170,
}
"""Command → the most modules of ours that it may import."""
OF_WINDOWS = 2
"""The platform room has two modules more there."""


def _facts(arguments: list[str], fixtures: Path) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], cwd=fixtures, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    facts: dict[str, object] = json.loads(done.stderr.splitlines()[-1])
    return facts


@pytest.mark.parametrize("command", STARTS)
def test_a_quick_answer_loads_little(command: str, fixtures: Path) -> None:
    facts = _facts(command.split(), fixtures)
    loaded, compiled, ours = facts["loaded"], facts["compiled"], facts["ours"]
    assert facts["code"] == 0 and isinstance(loaded, list) and isinstance(compiled, list) and isinstance(ours, int)
    assert not NEVER & {*loaded}, NEVER & {*loaded}
    assert {*compiled} <= PLAIN, "`support.records.dataclass` makes frozen classes sooner"
    most = STARTS[command] + (OF_WINDOWS if as_system.current() == "windows" else 0)
    assert ours <= most, [name for name in loaded if name.startswith("ggferry")]


def test_lists_of_all_models_load_no_library(fixtures: Path) -> None:
    """Every table is imported then, and no more than tables."""
    loaded = _facts(["architectures"], fixtures)["loaded"]
    assert isinstance(loaded, list) and not {*LIBRARIES.split()} & {*loaded}


MAGICS = [(one.name, magic) for reader in readers() for one in reader.containers for magic in one.magics]


@pytest.mark.parametrize(("name", "magic"), [row for row in MAGICS if row[1] != b"FUGG"])
def test_a_magic_asks_its_reader_alone(name: str, magic: bytes, tmp_path: Path) -> None:
    """GGUF's reversed one is told apart by no text: it is computed."""
    (tmp_path / "model.bin").write_bytes(magic + bytes(60))
    script = (
        "import sys; from ggferry.formats.reader import find_reader, kind_of\n"
        "reader, match = find_reader('model.bin'); kind_of(match.container)\n"
        "print(match.container, *(m.rsplit('.')[-1] for m in sys.modules if m.startswith('ggferry.formats.readers.')"
        " and '._' not in m))"
    )
    found = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert len(found.stdout.split()) == 2 and found.stdout.split()[0] == name, found.stdout
