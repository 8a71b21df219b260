"""Variants that llama.cpp computes otherwise or does not load: the receipt says so, and llama.cpp, asked, does so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from helpers.asked_llama_cpp import alike
from helpers.third_party_fixtures import CORPUS

pytestmark = [pytest.mark.corpus, pytest.mark.filterwarnings("ignore")]
VARIANTS = Path(CORPUS or "") / "variants"
RUNTIME_NOTES = {
    "deepseek_v2-legyarn": "multiplies scores by",
    "deepseek_v3-yc": "multiplies scores by",
    "deepseek_v3-leglin": "multiplies scores by",
    "falcon_h1-ncb": "has no bias",
    "graniteh-convbias0": "has no bias",
    "gemma4-e_nowide": "would take over keys and values",
    "deepseek_v3-ng2tk2": "of 2 groups of experts are used",
}


def manifest() -> dict:
    return json.loads((VARIANTS / "MANIFEST.json").read_text())


def test_every_such_variant_is_here() -> None:
    models = manifest()["models"]
    assert {name for name, text in models.items() if text.startswith("computed otherwise by llama.cpp")} == set(
        RUNTIME_NOTES
    )


@pytest.mark.parametrize("name", RUNTIME_NOTES)
def test_the_receipt_says_what_llama_cpp_does(name: str, tmp_path: Path) -> None:
    result = convert(Request(str(VARIANTS / name / "ckpt"), str(tmp_path / "x.gguf")))[0]
    runtimes = result.receipt["runtimes"]
    assert any("llama.cpp" in note and RUNTIME_NOTES[name] in note for note in result.receipt["notes"])
    if runtimes["run_it"]:
        assert runtimes["otherwise"]["llama.cpp"] and alike(Path(result.path), manifest()["tokens"]) == "otherwise"
        assert result.lines[-1].endswith("llama.cpp computes otherwise (see the notes)")
    else:
        assert alike(Path(result.path), manifest()["tokens"]) == "dies"
        assert result.lines[-1].endswith("llama.cpp does not run it (see the notes)")
