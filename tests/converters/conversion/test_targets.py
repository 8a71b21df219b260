"""No target is one of the sources, and nothing that was not made by the command is replaced without --force."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ggferry.service.cli.app import _run
from helpers.builders import Llama
from helpers.hf_llama import hf_llama

pytestmark = pytest.mark.attack

REFUSED, USAGE = 7, 2


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a checkpoint `t8`, the GGUF `a.gguf` made of it, and a legacy file `a.bin`."""
    monkeypatch.chdir(tmp_path)
    hf_llama(tmp_path / "t8")
    Llama(n_layer=1).write(tmp_path / "a.bin")
    assert _run(["convert", "t8", "-o", "a.gguf", "--verify", "none", "--outtype", "f16"]) == 0
    (tmp_path / "a.gguf.receipt.json").unlink()
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(place: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What the command says that refuses and changes nothing."""
    before = contents(place)
    capsys.readouterr()
    assert _run(list(arguments)) == REFUSED
    assert contents(place) == before
    return capsys.readouterr().err


def _itself(folder: Path) -> str:
    return "a.gguf"


def _hard_link(folder: Path) -> str:
    os.link(folder / "a.gguf", folder / "b.gguf")
    return "b.gguf"


def _link(folder: Path) -> str:
    (folder / "b.gguf").symlink_to("a.gguf")
    return "b.gguf"


def _other_spelling(folder: Path) -> str:
    return "t8/../a.gguf"


@pytest.mark.parametrize("target", [_itself, _hard_link, _link, _other_spelling])
def test_quantize_never_replaces_its_source(
    target: Callable[[Path], str], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = target(place)
    said = refused(place, capsys, "quantize", "a.gguf", name, "q4_0", "--force")
    assert name in said and f"{place}/a.gguf" in said


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.model", "README.md"])
def test_convert_never_replaces_a_file_of_the_checkpoint(
    name: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(place, capsys, "convert", "t8", "-o", f"t8/{name}", "--force", "--outtype", "q4_0")
    assert f"t8/{name}" in said and "same file" in said


def test_convert_never_replaces_a_part_of_a_model_in_several_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Llama(container="ggmf", version=1, n_layer=1, kind="F16").write(tmp_path / "a.bin", parts=2)
    refused(tmp_path, capsys, "convert", str(tmp_path / "a.bin"), "-o", str(tmp_path / "a.bin.1"), "--force")


def test_convert_never_replaces_what_its_options_name(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "m.json").write_text(json.dumps({"general.author": "me"}))
    shutil.copy("t8/tokenizer.model", "own.model")
    for option, name in (("--metadata", "m.json"), ("--tokenizer-model", "own.model")):
        said = refused(place, capsys, "convert", "t8", option, name, "-o", name, "--force")
        assert name in said


def test_a_receipt_never_replaces_a_source(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.rename("a.gguf", "b.gguf.receipt.json")
    refused(place, capsys, "quantize", "b.gguf.receipt.json", "b.gguf", "q8_0", "--force")


def test_the_base_of_an_adapter_is_a_source(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from safetensors.numpy import save_file

    name = "base_model.model.model.layers.0.self_attn.q_proj"
    tensors = {f"{name}.lora_A.weight": np.ones((2, 64), "<f4"), f"{name}.lora_B.weight": np.ones((64, 2), "<f4")}
    (place / "lora").mkdir()
    save_file(tensors, place / "lora" / "adapter_model.safetensors")
    (place / "lora" / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 2, "lora_alpha": 4}')
    for target in ("t8/config.json", "lora/adapter_config.json"):
        refused(place, capsys, "convert", "lora", "--base", "t8", "-o", target, "--force")


def test_an_importance_matrix_is_a_source_and_a_target(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "text").write_text("the cat sat on the mat " * 20)
    made = ["imatrix", "a.gguf", "--text", "text", "--chunk-size", "8", "--chunks", "1", "-o"]
    for name in ("a.gguf", "text"):
        refused(place, capsys, *made, name, "--force")
    assert _run([*made, "m.gguf"]) == 0
    assert "--force" in refused(place, capsys, *made, "m.gguf")
    refused(place, capsys, "quantize", "a.gguf", "m.gguf", "q4_0", "--imatrix", "m.gguf", "--force")


def test_forward_replaces_no_model_and_no_file_unasked(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forward = ["forward", "a.bin", "--tokens", "1", "--out"]
    refused(place, capsys, *forward, "a.bin")
    refused(place, capsys, *forward, "a.bin", "--force")
    (place / "thesis.txt").write_text("precious")
    assert "--force" in refused(place, capsys, *forward, "thesis.txt")
    assert _run([*forward, "thesis.txt", "--force"]) == 0
    assert np.load("thesis.txt").shape == (1, 300)


def test_plan_replaces_no_model_and_no_file_unasked(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("t8/model.safetensors", "t8/config.json", "a.bin"):
        refused(place, capsys, "plan", "t8", "-o", name)
    refused(place, capsys, "plan", "t8", "-o", "t8/model.safetensors", "--force")
    (place / "plan.jsonl").write_text("edited for hours")
    assert "--force" in refused(place, capsys, "plan", "t8", "-o", "plan.jsonl")
    assert _run(["plan", "t8", "-o", "plan.jsonl", "--force"]) == 0
    assert json.loads((place / "plan.jsonl").read_text().splitlines()[0])["ggferry_plan"]


@pytest.mark.slow
def test_a_report_replaces_an_earlier_report_and_nothing_else(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["plan", "a.bin", "-o", "p", "--dest", "out", "--verify", "none"]) == 0
    for suffix in (".json", ".html"):
        (place / f"r{suffix}").write_text("{}")
        said = refused(place, capsys, "apply", "p", "--report", "r")
        assert f"r{suffix}" in said and not (place / "out").exists(), "before anything is done"
        (place / f"r{suffix}").unlink()
    for _ in range(2):  # the documented way to continue
        assert _run(["apply", "p", "--report", "r"]) == 0
    receipt = next((place / "out").glob("*.receipt.json"))
    shutil.copy(receipt, place / "x.json")
    refused(place, capsys, "ledger", "export", "p.ledger", "-o", "x")
    assert _run(["ledger", "export", "p.ledger", "-o", "r"]) == 0
    assert _run(["ledger", "export", "p.ledger", "-o", "x", "--force"]) == 0
    assert json.loads((place / "x.json").read_text())["totals"]["done"] == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["convert", "a.bin", "-o", ""],
        ["quantize", "a.gguf", "", "q4_0"],
        ["plan", "t8", "-o", ""],
        ["forward", "a.bin", "--tokens", "1", "--out", ""],
        ["forward", "a.bin", "--tokens", "1", "--out", "t8"],
        ["imatrix", "a.gguf", "--text", "t8/README.md", "--chunk-size", "2", "-o", ""],
    ],
)
def test_no_name_is_a_wrong_name(arguments: list[str], place: Path) -> None:
    before = contents(place)
    assert _run(arguments) == USAGE
    assert contents(place) == before
