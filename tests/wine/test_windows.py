"""CPython for Windows, run by Wine: real `\\`, drive letters, text modes, CRLF and kernel32, none of them ours.

`make wine` installs both and runs this; it is not collected without. docs/platforms.md says what Wine does not show.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import ggferry
from helpers.third_party_fixtures import ROOT

pytestmark = pytest.mark.wine
WINE = ROOT / ".wine"
PROGRAMS = Path(__file__).parent / "programs"
ENVIRONMENT = {
    "WINEPREFIX": str(WINE / "prefix"),
    "WINEDEBUG": "-all",
    "WINEDLLOVERRIDES": "mscoree,mshtml,winedbg.exe=",
    "DISPLAY": "",
    "KMP_AFFINITY": "disabled",  # Wine 8 has no GetNumaNodeProcessorMaskEx, which torch's OpenMP asks
}


def run(program: str, folder: Path, words: str = "") -> Any:
    """Run a program in Wine and return the JSON it prints last."""
    command = ["wine", str(WINE / "python" / "python.exe"), str(PROGRAMS / program)]
    done = subprocess.run(
        command, cwd=folder, input=words.encode(), capture_output=True, timeout=300, env={**os.environ, **ENVIRONMENT}
    )
    assert done.returncode == 0, done.stderr[-3000:].decode("utf-8", "replace")
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module", autouse=True)
def wine() -> Any:
    """Wine's server, ended with the tests."""
    yield
    subprocess.run(["wine", "wineboot", "-k"], env={**os.environ, **ENVIRONMENT}, capture_output=True, timeout=60)


def test_processes_locks_and_files(tmp_path: Path) -> None:
    found = run("processes.py", tmp_path)
    assert found.pop("nameless") == "abc"
    assert found.pop("status") == 9 and found.pop("held") == found.pop("free again") == "held"
    assert found.pop("refused") == "BlockingIOError"
    assert found.pop("renamed while open") == "12" and found.pop("place") == "a"
    assert found.pop("reserved") == [22, 22, 22] and found.pop("facts") == [True] * 3
    assert {name for name, value in found.items() if value is not True} == set()


def test_the_command_line(fixtures: Path, tmp_path: Path) -> None:
    """The bytes are those of Linux."""
    legacy = fixtures / "legacy-llama" / "ggjt1-20230428" / "q4_0.bin"
    (tmp_path / "archive" / "inner").mkdir(parents=True)
    (tmp_path / "archive" / "inner" / "q4_0.bin").write_bytes(legacy.read_bytes())
    windows = f"Z:{fixtures}".replace("/", "\\")
    commands = [
        "--help",
        "inspect archive\\inner\\q4_0.bin",
        "convert archive\\inner\\q4_0.bin -o a.gguf --jobs 1",
        f"convert {windows}\\hf\\ckpt\\llama -o b.gguf --jobs 1 --outtype q8_0",
        "verify b.gguf",
        "split b.gguf -o s.gguf --split-max-tensors 8",
        "merge s-00001-of-00003.gguf -o m.gguf",
        "edit b.gguf --set general.name=x -o e.gguf",
        "edit e.gguf --set general.name=y --in-place",
        "diff b.gguf m.gguf",
        "hash b.gguf",
        "doctor a.gguf",
        "convert a.gguf -o nul.gguf",
        "plan archive --dest out -o plan.jsonl",
        "apply plan.jsonl",
        "ledger recheck plan.jsonl.ledger",
        "apply plan.jsonl",
    ]
    found = run("commands.py", tmp_path, "\n".join("\t".join(each.split(" ")) for each in commands))
    assert (found["system"], found["python"]) == ("Windows", "win32")
    codes = [code for _, code, _ in found["done"]]
    assert codes == [2 if "nul.gguf" in each else 0 for each in commands], found["done"]
    made = tmp_path / "out" / "inner" / "q4_0.gguf"
    assert made.read_bytes() == (tmp_path / "a.gguf").read_bytes()
    assert (tmp_path / "m.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    for folder, name, source, outtype in (
        (tmp_path / "archive" / "inner", "a", tmp_path / "archive" / "inner" / "q4_0.bin", "keep"),
        (fixtures, "b", fixtures / "hf" / "ckpt" / "llama", "q8_0"),
    ):
        here = ggferry.convert(source, tmp_path / f"linux-{name}.gguf", outtype=outtype).output
        assert Path(here).read_bytes() == (tmp_path / f"{name}.gguf").read_bytes(), folder
    second = json.loads((tmp_path / "b.gguf.receipt.json").read_text())["second_reader"]
    assert (second["tensors"], second["names"], second["unread"]) == (21, 21, []), second
    for receipt in tmp_path.rglob("*.receipt.json"):
        assert b"\r" not in receipt.read_bytes()
    assert [*tmp_path.rglob("*.partial*")] == []
