"""The words in which witnesses stand in the third line, in the notes and in the receipt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.proof.compare import Proof
from ggferry.converters.proof.receipt import how_it_was_proved
from ggferry.converters.proof.references import cross_check
from helpers.builders import Llama

CROSS_CHECKS = (
    cross_check.CrossCheck("tokenizers", "0.22", what="texts", count=812),
    cross_check.CrossCheck("llama.cpp", "b11549", side="output", count=3, worst=0.0031, limit=0.1),
    cross_check.CrossCheck("transformers", why="would need 28.1 GiB of memory, 4.0 GiB are free"),
)


def test_the_third_line_names_who_testified() -> None:
    proof = Proof("fast", (), {}, testimonies=CROSS_CHECKS)
    words = "self-consistent; tokenizers 0.22 on 812 texts; llama.cpp b11549: logits 3e-3; no tensors"
    assert how_it_was_proved(proof) == words
    assert proof.notes == ("transformers was not compared: would need 28.1 GiB of memory, 4.0 GiB are free",)


def test_nobody_testified() -> None:
    assert how_it_was_proved(Proof("fast", (), {})) == "verified (no independent reference); no tensors"
    assert how_it_was_proved(Proof("fast", (), {}, testimonies=CROSS_CHECKS[2:])).startswith(
        "verified (no independent reference); "
    )


@pytest.mark.parametrize(("figure", "text"), [(0, "0"), (4.3e-7, "4e-7"), (0.0031, "3e-3"), (float("inf"), "inf")])
def test_figures_are_short(figure: float, text: str) -> None:
    assert cross_check.short(figure) == text


def test_a_receipt_lists_testimonies(tmp_path: Path) -> None:
    source = tmp_path / "old.bin"
    source.write_bytes(Llama(kind="F32", version=1).bytes())
    result = convert(Request(str(source), str(tmp_path / "x.gguf")))[0]
    receipt = json.loads((tmp_path / "x.gguf.receipt.json").read_text())
    assert receipt["testimonies"] == [] and result.lines[2].startswith("proved   verified (no independent reference); ")
