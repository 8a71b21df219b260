"""Families without a class in transformers: both sides compute one thing, and llama.cpp where the table names it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggferry.converters.forward.evaluate import forward
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.model_graph.open_checkpoint import architectures_of_classes
from ggferry.converters.understand import graph_of
from ggferry.formats.errors import GgferryError
from ggferry.formats.readers.gguf import open_gguf
from helpers.llama_cpp import continuations
from helpers.tiny_models import TOKENS, check_streaming, relative, write
from helpers.unclassed import UNCLASSED, make_unclassed

RUN = [
    name for name, make_one in UNCLASSED.items()
    if any("llama.cpp" in spec.runtimes for spec in architectures_of_classes(make_one()[0]["architectures"]).values())
]
"""Those whose tables say that llama.cpp runs them."""
PROMPT = {"grok 1": TOKENS[:8]}
"""Of others the greedy token is half a character, which the server does not report."""
AS_THE_RUNTIME: dict[str, dict[str, Any]] = {"grok 2": {"attn_temperature_len": 0, "router_logit_softcapping": 0.0}}
"""What llama.cpp leaves out, as the notes say: left out of the model."""


@pytest.mark.parametrize("name", UNCLASSED)
def test_both_sides_compute_one_thing(name: str, tmp_path: Path) -> None:
    source = graph_of(str(make_unclassed(name, tmp_path / "hf")))
    assert not [note for note in source.notes if "does not use" in note]
    check_streaming(source)
    written = graph_of(str(write(source, tmp_path / "x.gguf")))
    assert relative(forward(source, TOKENS), forward(written, TOKENS)) <= 1e-5
    assert {node.name: node.shape for node in source.nodes} == {node.name: node.shape for node in written.nodes}


def normed_experts(graph: ModelGraph) -> ModelGraph:
    """llama.cpp makes the weights of Grok's experts sum to one."""
    spec = graph.architecture
    return replace(graph, architecture=replace(spec, recipe={**spec.recipe, "expert_norm": True}))


def check_continuation(name: str, graph: ModelGraph, path: Path) -> None:
    """llama.cpp continues what was written to `path` as our pass over `graph` does."""
    prompt = PROMPT.get(name, TOKENS[:11])
    (found,) = continuations(prompt, 3, path)
    assert found
    close = 2e-2 if "grok" in name else 1e-4  # its gelu is a table of float16
    tokens = list(prompt)
    for token, probability in found:
        logits = forward(graph, tokens)[-1].astype(np.float64)
        scores = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
        assert token == int(scores.argmax())
        assert probability == pytest.approx(scores.max(), abs=close)
        tokens.append(token)


@pytest.mark.parametrize("name", [name for name in RUN if name not in AS_THE_RUNTIME])
def test_llama_cpp_continues_alike(name: str, tmp_path: Path) -> None:
    graph = graph_of(str(make_unclassed(name, tmp_path / "hf")))
    check_continuation(name, graph, write(graph, tmp_path / "x.gguf"))


@pytest.mark.parametrize("name", AS_THE_RUNTIME)
def test_llama_cpp_continues_alike_but_for_what_it_does_otherwise(name: str, tmp_path: Path) -> None:
    graph = graph_of(str(make_unclassed(name, tmp_path / "hf", **AS_THE_RUNTIME[name])))
    check_continuation(name, normed_experts(graph), write(graph, tmp_path / "x.gguf"))


def test_the_sum_of_weights_is_lost_in_the_norm_that_follows_grok_1(tmp_path: Path) -> None:
    """xAI's code leaves the weights of the chosen experts as they are, llama.cpp's graph does not: one result."""
    graph = graph_of(str(make_unclassed("grok 1", tmp_path)))
    assert relative(forward(graph, TOKENS), forward(normed_experts(graph), TOKENS)) < 1e-4
    beside = graph_of(str(make_unclassed("grok 2", tmp_path / "2")))
    assert relative(forward(beside, TOKENS), forward(normed_experts(beside), TOKENS)) > 1e-2


def test_queries_of_grok_2_grow_from_a_token_on(tmp_path: Path) -> None:
    """SGLang's `xai_temperature_len`; up to that token nothing differs."""
    grows = forward(graph_of(str(make_unclassed("grok 2", tmp_path / "a"))), TOKENS)
    plain = forward(graph_of(str(make_unclassed("grok 2", tmp_path / "b", attn_temperature_len=0))), TOKENS)
    assert np.allclose(grows[:9], plain[:9])
    assert not np.allclose(grows[9:], plain[9:], atol=1e-3)


def test_a_stretched_rotation_of_grok_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GgferryError, match="yarn"):
        graph_of(str(make_unclassed("grok 2", tmp_path, rope_type="yarn")))


def test_plamo_2_says_its_heads_in_one_number(tmp_path: Path) -> None:
    """With a list that says 0 for the first block, as convert_hf_to_gguf writes it, llama.cpp's rotation never ends."""
    made = write(graph_of(str(make_unclassed("plamo 2", tmp_path / "hf"))), tmp_path / "x.gguf")
    metadata = open_gguf(str(made)).metadata
    assert metadata["plamo2.attention.head_count"].data == 8
    assert list(metadata["plamo2.attention.head_count_kv"].data) == [0, 2, 0, 2]


def test_plamo_reads_its_heads_from_the_tensors(tmp_path: Path) -> None:
    """Its configuration says as many heads of keys as of queries; every n-th head shares one."""
    graph = graph_of(str(make_unclassed("plamo", tmp_path)))
    assert graph.sizes["n_head_kv"] == 2
