"""Chameleon, whose pictures are tokens that the text model never says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ggferry.converters.architectures.chameleon import PICTURES
from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from ggferry.converters.understand import graph_of
from helpers.llama_cpp import continuations
from helpers.tiny_models import TOKENS, make, relative, write

pytestmark = pytest.mark.filterwarnings("ignore")
NAMES = {"<image>": 4} | {f"IMGIMG{letter}Z": 6 + n for n, letter in enumerate("ABC")}


@pytest.mark.slow
def test_llama_cpp_continues_a_chameleon_without_pictures(tmp_path: Path) -> None:
    expected = make("chameleon", tmp_path / "hf", vocab_size=PICTURES + 204)
    graph = graph_of(str(tmp_path / "hf"))
    assert relative(expected, forward(graph, TOKENS)) <= 1e-5
    assert "llama.cpp" in graph.runtimes and "never continues with" in " ".join(graph.notes)
    (answer,) = continuations(TOKENS, 4, write(graph, tmp_path / "x.gguf"))
    tokens = list(TOKENS)
    for token, probability in answer:
        logits = np.delete(forward(graph, tokens)[-1].astype(np.float64), range(4, PICTURES))
        scores = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
        assert scores[token - PICTURES + 4] == pytest.approx(probability, abs=1e-4)
        tokens.append(token)
    assert answer


@pytest.mark.slow
def test_transformers_says_nothing_of_a_chameleons_pictures(tmp_path: Path) -> None:
    expected = make("chameleon", tmp_path / "hf", vocabulary_map=NAMES)
    ours = forward(graph_of(str(tmp_path / "hf")), TOKENS)
    silent = (expected == np.finfo(np.float32).min).all(0)
    assert silent.nonzero()[0].tolist() == [6, 7, 8]
    assert relative(expected[:, ~silent], ours[:, ~silent]) <= 1e-5
    request = Request(
        str(tmp_path / "hf"), str(tmp_path / "x.gguf"), level="full", witness=("transformers",),
        vocab=VocabOptions(none=True),
    )
    (check,) = convert(request)[0].receipt["testimonies"]
    assert check["witness"] == "transformers" and check.get("why") is None
