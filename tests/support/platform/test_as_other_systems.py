"""The command line, seeing what Windows or macOS would show it (helpers/as_system.py)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import as_system

SCRIPT = """
import contextlib, io, json, shutil, sys
import ggferry
from ggferry.service.cli.app import _run
from ggferry.support.platform import here
legacy, folder = sys.argv[1:]
shutil.copy(legacy, "archive")
legacy = "archive/q4_0.bin"
done, said = {"system": here.NAME}, io.StringIO()
for line in f'''--help
inspect {legacy}
convert {legacy} -o a.gguf --jobs 1
convert {folder} -o b.gguf --jobs 1
verify b.gguf
split b.gguf -o s.gguf --split-max-tensors 8
merge s-00001-of-00003.gguf -o m.gguf
edit b.gguf --set general.name=x -o e.gguf
hash b.gguf
plan archive --dest out -o plan.jsonl
apply plan.jsonl
apply plan.jsonl --engine ray'''.splitlines():
    said.truncate(said.seek(0))
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = _run(line.split())
    done[line.partition(" -")[0] if "ray" not in line else "ray"] = [code, said.getvalue()]
print(json.dumps(done))
"""


@pytest.mark.parametrize(("system", "name"), [("windows", "Windows"), ("macos", "macOS")])
@pytest.mark.slow
def test_the_command_line_works_as(system: str, name: str, fixtures: Path, tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    sources = [fixtures / "legacy-llama/ggjt1-20230428/q4_0.bin", fixtures / "hf/ckpt/llama"]
    command = [sys.executable, as_system.__file__, system, "-c", SCRIPT, *map(str, sources)]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    done = json.loads(found.stdout.splitlines()[-1])
    assert done.pop("system") == name
    ray, said = done.pop("ray")
    assert f"{name} caps the memory of no process: --memory is not applied" in done["apply plan.jsonl"][1]
    assert {line: words for line, (code, words) in done.items() if code} == {}
    assert (tmp_path / "b.gguf").read_bytes() == (tmp_path / "m.gguf").read_bytes()
    receipt = json.loads((tmp_path / "out/q4_0.gguf.receipt.json").read_text())
    assert receipt and (tmp_path / "out/q4_0.gguf").read_bytes() == (tmp_path / "a.gguf").read_bytes()
    assert list(tmp_path.rglob("*.partial")) == []
    if system == "windows":
        assert ray == 2 and "--engine ray does not exist on Windows" in said
