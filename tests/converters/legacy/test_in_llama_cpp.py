"""What llama.cpp knows of the GGML-era families it must load and run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.understand import graph_of
from helpers.legacy_families import BY_NAME, ENTRIES, path_of, vocabulary
from helpers.llama_cpp import continuations

_RUN = """
gpt2/gpt2-s64-pre20230329-h5script-f16.bin gpt2/gpt2-s64-g04-q4_3.bin starcoder/starcoder-s64-g2-q5_1.bin
gptneox/gptneox-seq-s64-f16.bin gptneox/gptneox-par-s64-llmrs-ggjt-q5_1.bin stablelm/stablelm-nopar-s64-g0-q5_0.bin
mpt/mpt-s64-f16.bin mpt/mpt-clip-s64-g2-q4_0.bin replit/replit-s64-g1-q4_1.bin bloom/bloom-s64-bloomzcpp-q4_1.bin
falcon/falcon40b-s64-jploski-f16.bin falcon/falcon40b-s64-ggcc-q5_0.bin
"""
RUN = _RUN.split()
NO_RUNTIME = ("gptj", "rwkv", "whisper")


def check(files: list[str], count: int, folder: Path) -> None:
    """llama.cpp loads what each file becomes, vocabulary included, and continues as our forward pass does."""
    prompt, outputs = [7, 300, 17, 402, 260], []
    for number, file in enumerate(files):
        root, entry = BY_NAME[file]
        request = Request(path_of(file), str(folder / f"{number}.gguf"), vocab=vocabulary(root, entry), level="fast")
        outputs.append(Path(convert(request)[0].path))
    answers = continuations(prompt, count, *outputs)
    assert sum(map(len, answers)) > count * len(outputs) / 2
    for file, path, answer in zip(files, outputs, answers, strict=True):
        ids = [token for token, _ in answer]
        scores = forward(graph_of(str(path)), prompt + ids[:-1]).astype(np.float64)[len(prompt) - 1 :]
        scores -= scores.max(-1, keepdims=True)
        scores -= np.log(np.exp(scores).sum(-1, keepdims=True))
        for position, (token, logprob) in enumerate(answer):
            # Activations are quantized to 8 bits; GELU by the error function is tanh's there (1e-3).
            assert scores[position].max() - scores[position][token] < 0.15, file
            assert abs(scores[position][token] - logprob) < 0.15, file


@pytest.mark.slow
def test_llama_cpp_runs_one_of_each_kind(tmp_path: Path) -> None:
    check(RUN, 5, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted({entry["arch"] for _, entry in ENTRIES} - set(NO_RUNTIME)))
def test_llama_cpp_runs_all_it_knows(family: str, tmp_path: Path) -> None:
    known = [entry["file"] for _, entry in ENTRIES if entry["arch"] == family]
    check(known, 3, tmp_path)
