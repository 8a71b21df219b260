"""Checkpoints whose configurations differ from their class's default as real models' do: what each must become is in
the manifest beside them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.understand import graph_of
from helpers.third_party_fixtures import CORPUS
from helpers.tiny_models import relative

assert CORPUS is not None
VARIANTS = CORPUS / "variants"
MANIFEST = json.loads((VARIANTS / "MANIFEST.json").read_text())
MODELS: dict[str, str] = MANIFEST["models"]
TOKENS: list[int] = MANIFEST["tokens"]
LIMIT = 5e-6
"""Relative RMS of logits; the most measured over all of them is 2.0e-6."""
pytestmark = [pytest.mark.corpus, pytest.mark.filterwarnings("ignore")]


def equal_logits(name: str, folder: Path) -> None:
    """It converts with the default proof, and both the checkpoint and the file compute what transformers does."""
    source = str(VARIANTS / name / "ckpt")
    convert(Request(source, str(folder / "kept.gguf")))
    made = convert(Request(source, str(folder / "x.gguf"), Options(outtype="f32")))[0].path
    expected = np.load(VARIANTS / name / "hf_logits.npy")
    for path in (source, made):
        assert relative(expected, forward(graph_of(path), TOKENS)) <= LIMIT


CHECKS: dict[str, Callable[[str, Path], None]] = {
    "convert with the default proof; logits equal": equal_logits,
}
"""How what the manifest says of a model begins → what is checked."""


def check_of(said: str) -> Callable[[str, Path], None] | None:
    return next((check for words, check in CHECKS.items() if said.startswith(words)), None)


@pytest.mark.parametrize("name", [name for name, said in MODELS.items() if check_of(said)])
def test_a_variant_becomes_what_the_manifest_says(name: str, tmp_path: Path) -> None:
    check = check_of(MODELS[name])
    assert check is not None
    check(name, tmp_path)
