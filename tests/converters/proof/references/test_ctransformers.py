"""ctransformers runs files of 2023 as our forward pass does, and is not asked of what it takes for something else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ggferry.converters.model_graph.hparams import Param
from ggferry.converters.proof.references import ctransformers_files, examine
from ggferry.converters.proof.references.case import Case
from ggferry.converters.understand import graph_of
from ggferry.formats.errors import VerificationError
from helpers.third_party_fixtures import cases, witness

FILES = (
    "legacy-llama/ggjt1-0.1.25/f16.bin",
    "legacy-llama/ggjt3-20230821/q5_1.bin",
    "legacy-llama/ggjt3-0.1.77/M256-q3_K_M.bin",
    "legacy-other/gpt2/gpt2-s64-g2-q5_0.bin",
    "legacy-other/gptj/gptj-s64-g2-q8_0.bin",
    "legacy-other/gptneox/gptneox-seq-s64-f16.bin",
    "legacy-other/dolly-v2/dolly-s64-g2-q4_0.bin",
    "legacy-other/mpt/mpt-clip-s64-g2-q4_0.bin",
    "legacy-other/replit/replit-s64-f16.bin",
    "legacy-other/starcoder/starcoder-s64-f16.bin",
    "legacy-other/falcon/falcon40b-s64-ggcc-q5_0.bin",
)
REFUSED = {
    "legacy-llama/ggjt2-20230519/q4_0.bin": "blocks of Q4_0_V2",
    "legacy-llama/ggjt3-qkk64/q6_K.bin": "blocks of Q6_K_64",
    "legacy-llama/ggmf1-20230330-2part/q4_0.bin": "one file",
    "legacy-other/bloom/bloom-s64-llmrs-f16.bin": "does not read such a file",
    "legacy-other/falcon/falcon7b-s64-jploski-f16.bin": "does not read such a file",
    "legacy-other/stablelm/stablelm-nopar-s64-f16.bin": "does not read such a file",
}
"""The last asks for all memory there is: its header is another than ctransformers takes it for."""


@pytest.mark.slow
@pytest.mark.parametrize("name", cases(FILES))
def test_nine_families_agree(name: str) -> None:
    graph = graph_of(str(witness(name)))
    (said,) = examine.examine(graph, graph, ("ctransformers",))
    assert said.why is None and said.count == 16 and said.version.startswith("0.2.") and said.worst is not None
    assert said.worst <= (2e-3 if "f16" in name else 4e-2)


@pytest.mark.slow
def test_a_rotary_base_that_both_sides_get_wrong() -> None:
    graph = graph_of(str(witness("legacy-llama/ggjt1-0.1.25/f16.bin")))
    graph = replace(graph, hparams={**graph.hparams, "rope_base": Param(5e3, "planted")})
    with pytest.raises(VerificationError, match=r"ctransformers 0\.2\.\d+ computes other logits from the source"):
        examine.examine(graph, graph, ("ctransformers",))


@pytest.mark.parametrize("name", cases(REFUSED))
def test_it_is_not_asked_of_what_it_misreads(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctransformers_files, "find_spec", lambda name: True)
    graph = graph_of(str(witness(name)))
    refusal = ctransformers_files.unsupported(Case(graph, graph, str(tmp_path), 1))
    assert refusal is not None and REFUSED[name] in refusal.why
