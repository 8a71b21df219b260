"""The word "proved" stands where something was compared, with what was lost where an output is far from its source."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import Result, convert
from ggferry.converters.conversion_plan.grades import Grade
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.proof.compare import Proof
from ggferry.converters.proof.logits import LogitsProof
from ggferry.converters.proof.receipt import line_of
from ggferry.converters.proof.tensors import TensorProof
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from helpers.third_party_fixtures import FIXTURES
from helpers.tiny import ROPE
from helpers.tiny_models import make

SOURCE = str(FIXTURES / "legacy-llama" / "ggjt3-20230821" / "G256-q4_0.bin")
NO_VOCABULARY = VocabOptions(none=True)
pytestmark = pytest.mark.filterwarnings("ignore")


def converted(tmp_path: Path, level: str, outtype: str = "keep", **changes: Any) -> Result:
    options = Options(outtype=outtype, allow_requantize=True, vocab_only=changes.pop("vocab_only", False))
    return convert(Request(SOURCE, str(tmp_path / "a.gguf"), options, level=level, **changes))[0]


def test_nothing_compared_is_not_proved(tmp_path: Path) -> None:
    result = converted(tmp_path, "none", vocab=NO_VOCABULARY)
    runtime = "llama.cpp does not run it (see the notes)"  # as it has no vocabulary
    assert result.lines[2] == f"not proved   nothing was compared (--verify none); {runtime}"
    assert result.receipt["verified"] == "none"


def test_texts_alone_prove_no_tensor(tmp_path: Path) -> None:
    line = converted(tmp_path, "none").lines[2]
    assert re.fullmatch(
        r"not proved   no tensor was compared \(--verify none\); (\d+) of \1 texts tokenize alike", line
    )


def test_a_vocabulary_alone_is_proved_by_its_texts(tmp_path: Path) -> None:
    line = converted(tmp_path, "fast", vocab_only=True).lines[2]
    assert line.startswith("proved   ") and "no tensors; " in line and line.endswith("texts tokenize alike")
    assert line_of(Proof("fast", (), {})) == "not proved   nothing was compared"


@pytest.mark.parametrize(
    ("relative", "top1", "words"),
    [
        (0.61, 0.38, "proved   with loss (logits 0.61 relative RMS from the source's, top-1 agreement 38%); verified"),
        (0.05, 0.8, "proved   with loss (logits 0.05 relative RMS from the source's, top-1 agreement 80%); verified"),
        (0.3, None, "proved   with loss (logits 0.3 relative RMS from the source's); verified"),
        (0.05, 1.0, "proved   verified"),
    ],
)
def test_a_loss_is_said_first(relative: float, top1: float | None, words: str) -> None:
    tensor = TensorProof("a", "F32", "Q4_0", Grade.ROUNDED, 0.1, 0.09, encoded_again=True)
    logits = LogitsProof(1.0, relative, 2e-6, top1, None if top1 is None else 0.1)
    assert line_of(Proof("full", (tensor,), {}, logits)).startswith(words)


def test_a_loss_without_a_forward_pass(tmp_path: Path) -> None:
    assert converted(tmp_path, "fast", "q2_k").lines[2].startswith("proved   with loss (")
    assert (
        converted(tmp_path, "fast", "q8_0", force=True)
        .lines[2]
        .startswith("proved   verified (no independent reference)")
    )


def test_the_receipt_says_what_float32_changed(tmp_path: Path) -> None:
    """Both sides of a proof compute with what is stored; how far that is from what was stated stands here."""
    rope = {**ROPE, "rope_type": "linear", "factor": 1.7, "rope_theta": 12345.678}
    make("llama", tmp_path / "hf", rope_parameters=rope)
    out = str(tmp_path / "a.gguf")
    convert(Request(str(tmp_path / "hf"), out, vocab=NO_VOCABULARY, level="fast"))
    stated = json.loads(Path(f"{out}.receipt.json").read_text())["hparams"]
    (stored,) = struct.unpack("<f", struct.pack("<f", 12345.678))
    assert stated["rope_base"]["rounded_to_float32"] == pytest.approx(abs(stored / 12345.678 - 1), rel=1e-6)
    assert "rounded_to_float32" not in stated["n_rot"]
