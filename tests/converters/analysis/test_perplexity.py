"""Two models on a text: perplexity, KL divergence and agreement against llama.cpp's own logits, by its definitions."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ggferry
from ggferry.formats.errors import InconsistentError, UsageError
from helpers.builders import Llama
from helpers.llama_api import encoded_and_decoded

CONTEXT = 32
TEXT = "The cat sat on the mat. A dog ran after it, and both were never seen again.\n" * 8


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("quality")
    source = Llama(kind="F32", n_ff=160, n_embd=96).write(folder / "old.bin")
    found = {"legacy": source, "text": folder / "text.txt"}
    found["text"].write_text(TEXT)
    for name, options in {"a": {}, "b": {"outtype": "q8_0"}, "c": {"outtype": "q4_0"}}.items():
        found[name] = Path(ggferry.convert(source, folder / f"{name}.gguf", verify="none", **options).output)  # type: ignore[arg-type]
    return found


def theirs(path: Path, tokens: list[int], folder: Path) -> np.ndarray:
    """Return ln p of every token after each of the second half, as llama.cpp computes them, chunk by chunk."""
    rows = []
    for start in range(0, len(tokens) - CONTEXT + 1, CONTEXT):
        chunk = [1, *tokens[start + 1 : start + CONTEXT]]  # the token that begins a text
        logits = encoded_and_decoded(str(path), [], chunk, folder).astype(np.float64)[CONTEXT // 2 : CONTEXT - 1]
        rows.append(
            logits
            - np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True))
            - logits.max(1, keepdims=True)
        )
    return np.concatenate(rows)


def test_figures_are_those_of_llama_cpps_logits(models: dict[str, Path], tmp_path: Path) -> None:
    found = ggferry.compare(models["a"], models["c"], models["text"], context=CONTEXT, chunks=3)
    tokens = ggferry.tokenize(str(models["a"]), TEXT.removesuffix("\n"))[: 3 * CONTEXT]
    assert len(found.chunks) == 3
    right = np.array(
        [
            tokens[start + n + 1]
            for start in range(0, len(found.chunks) * CONTEXT, CONTEXT)
            for n in range(CONTEXT // 2, CONTEXT - 1)
        ]
    )
    p, q = (theirs(models[name], tokens, tmp_path) for name in "ac")
    at, last = np.arange(len(right)), found.chunks[-1]
    assert found.count == len(right)
    for mine, logs in ((last.perplexity_a, p), (last.perplexity_b, q)):
        losses = -logs[at, right]
        error = losses.std() / math.sqrt(len(losses) - 1) * math.exp(losses.mean())
        assert abs(mine.value - math.exp(losses.mean())) <= mine.error / 10
        assert mine.error == pytest.approx(error, rel=0.05)
    divergence = (np.exp(p) * (p - q)).sum(1)
    assert abs(last.kl_divergence.value - divergence.mean()) <= last.kl_divergence.error
    same = (p.argmax(1) == q.argmax(1)).mean()
    assert abs(last.same_top.value - same) <= max(last.same_top.error, 1e-9)
    rms = math.sqrt(((np.exp(q[at, right]) - np.exp(p[at, right])) ** 2).mean())
    assert last.probability_rms.value == pytest.approx(rms, rel=0.05)


def test_a_model_and_itself_are_one(models: dict[str, Path]) -> None:
    found = ggferry.compare(models["legacy"], models["a"], models["text"], context=CONTEXT, chunks=2).chunks[-1]
    assert found.kl_divergence.value == pytest.approx(0, abs=1e-9) and found.same_top.value == 1
    assert found.perplexity_a.value == pytest.approx(found.perplexity_b.value, rel=1e-6)


def test_what_cannot_be_compared(models: dict[str, Path], tmp_path: Path) -> None:
    other = Llama(kind="F32", n_vocab=310).write(tmp_path / "other.bin")
    with pytest.raises(InconsistentError, match="vocabularies differ"):
        ggferry.compare(models["a"], other, models["text"], context=CONTEXT)
    with pytest.raises(UsageError, match="shorter than one chunk"):
        ggferry.compare(models["a"], models["b"], models["text"], context=4096)


def test_the_command_and_its_page(models: dict[str, Path], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    command = [
        sys.executable,
        "-m",
        "ggferry",
        "compare",
        str(models["a"]),
        str(models["b"]),
        "--text",
        str(models["text"]),
        "--ctx",
        str(CONTEXT),
        "--chunks",
        "2",
        "--json",
        "--html",
        str(page),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert len(json.loads(done.stdout)["chunks"]) == 2
    text = page.read_text()
    assert "<svg" in text and "<script" not in text and "http" not in text and "a.gguf" in text
