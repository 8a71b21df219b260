"""The second reader: what it reads, what becomes of a conversion where it cannot, and that its process ends."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.proof.second_reader import process
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from ggferry.support.platform import here
from helpers.third_party_fixtures import FIXTURES
from helpers.tiny_models import make

LLAMA = FIXTURES / "hf/ckpt/llama"


def _request(source: Path, out: Path, **more: object) -> Request:
    return Request(str(source), str(out), vocab=VocabOptions(none=True), level="fast", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("source", "library", "names"),
    [
        ("hf/ckpt/llama", "safetensors ", 21),
        ("hf/ckpt/llama_bin_shards", "torch ", 21),
        ("hf/out/llama/llama.q8_0.gguf", "gguf ", 0),
    ],
)
def test_each_container_is_read_by_its_own_library(source: str, library: str, names: int, tmp_path: Path) -> None:
    result = convert(Request(str(FIXTURES / source), str(tmp_path / "out.gguf"), level="fast"))[0]
    found = result.receipt["second_reader"]
    assert len(found["libraries"]) == 1 and found["libraries"][0].startswith(library)
    assert (found["tensors"], found["names"], found["unread"]) == (21, names, ())
    assert f"samples of 21 tensors read alike by {library}" in result.lines[2]


def test_legacy_files_have_no_second_reader(tmp_path: Path) -> None:
    result = convert(_request(FIXTURES / "legacy-llama/ggjt1-20230428/q4_0.bin", tmp_path / "out.gguf"))[0]
    assert result.receipt["second_reader"]["none"] == "no other library reads such files"
    assert "read alike" not in result.lines[2]


def test_without_a_proof_nobody_reads_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "PROGRAM", str(tmp_path / "missing.py"))
    request = Request(str(LLAMA), str(tmp_path / "out.gguf"), vocab=VocabOptions(none=True), level="none")
    assert "second_reader" not in convert(request)[0].receipt


def test_what_a_library_refuses_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        Path(process.PROGRAM).read_text().replace("return Safetensors(path)", 'raise ValueError("not \x1b[31m today")')
    )
    (tmp_path / "refuses.py").write_text(text)
    monkeypatch.setattr(process, "PROGRAM", str(tmp_path / "refuses.py"))
    monkeypatch.setattr(process, "_idle", [])
    result = convert(_request(LLAMA, tmp_path / "out.gguf"))[0]
    (note,) = [note for note in result.receipt["notes"] if note.startswith("not read by a second library")]
    assert note.endswith("model.safetensors: ValueError: not \\x1b[31m today")
    assert result.receipt["second_reader"]["tensors"] == 0


@pytest.mark.parametrize("program", ["import os; os._exit(3)", "import sys; sys.exit('what a pity \\x1b[31m')"])
def test_a_process_that_ends_takes_nothing_with_it(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ends.py").write_text(program)
    monkeypatch.setattr(process, "PROGRAM", str(tmp_path / "ends.py"))
    monkeypatch.setattr(process, "_idle", [])
    result = convert(_request(LLAMA, tmp_path / "out.gguf"))[0]
    found = result.receipt["second_reader"]
    assert found["tensors"] == 0 and len(found["unread"] + (found["none"],)) >= 1
    assert "\x1b" not in json.dumps(result.receipt["notes"], ensure_ascii=False)


def test_one_process_answers_for_all_and_ends_with_us(tmp_path: Path) -> None:
    script = f"""
import os
from ggferry.converters.conversion.run import convert
from ggferry.converters.proof.second_reader import process
from ggferry.converters.conversion.request import Request
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
if __name__ == "__main__":
    for number in range(2):
        out = {str(tmp_path)!r} + f"/{{number}}.gguf"
        convert(Request({str(LLAMA)!r}, out, vocab=VocabOptions(none=True), level="fast"))
        print(process._idle[0].process.pid)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    first, second = done.stdout.split()
    assert first == second
    assert here.start_time(int(first)) is None


def test_places_of_files_do_where_none_can_be_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process.here, "PASSES_FILES", False)
    monkeypatch.setattr(process, "places_of", lambda fds: [str(LLAMA / "model.safetensors")])
    monkeypatch.setattr(process, "_idle", [])
    for number in range(2):
        found = convert(_request(LLAMA, tmp_path / f"{number}.gguf"))[0].receipt["second_reader"]
        assert (found["tensors"], found["names"], found["unread"]) == (21, 21, ())
    (kept,) = process._idle
    assert kept.socket is None and kept.process.poll() is None
    kept.end()


def test_another_file_in_the_same_place_is_not_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = shutil.copy2(LLAMA / "model.safetensors", tmp_path / "other.safetensors")
    monkeypatch.setattr(process.here, "PASSES_FILES", False)
    monkeypatch.setattr(process, "places_of", lambda fds: [str(other)])
    monkeypatch.setattr(process, "_idle", [])
    result = convert(_request(LLAMA, tmp_path / "out.gguf"))[0]
    (note,) = [note for note in result.receipt["notes"] if note.startswith("not read by a second library")]
    assert note.endswith("model.safetensors: another file lies there now")
    assert result.receipt["second_reader"]["tensors"] == 0
    process._idle[0].end()


def test_what_the_user_says_is_not_held_against_the_configuration(tmp_path: Path) -> None:
    request = _request(LLAMA, tmp_path / "out.gguf", hparams={"rope.freq_base": "20000"})
    assert convert(request)[0].receipt["second_reader"]["settings"] > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [
        "gptneox",
        "granite hybrid dense",
        "granite hybrid of attention",
        "lfm2 adjusted",
        "dots3 note",
        "hy_v4",
        "falcon-h1 normed, tied",
        "glm 5.3 flash",
        "hunyuan dense alpha",
        "cohere2moe sigmoid",
        "biogpt",
        "minimax-m3",
        "granite_swa listed",
    ],
)
def test_keys_that_mean_something_else_are_no_contradiction(name: str, tmp_path: Path) -> None:
    make(name, tmp_path / "hf")
    request = Request(str(tmp_path / "hf"), str(tmp_path / "x.gguf"), vocab=VocabOptions(none=True), mmproj="none")
    assert convert(request)[0].receipt["second_reader"]["settings"] > 0
