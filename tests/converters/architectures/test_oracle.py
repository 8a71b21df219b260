"""Hugging Face checkpoints against the GGUF files that llama.cpp's converter wrote from them, and against the logits of
transformers: names, shapes, bytes, keys, forward pass of both sides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ggferry.converters.forward.evaluate import forward
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.understand import understand
from ggferry.formats.errors import ShapeError
from ggferry.formats.gguf.values import Value
from helpers.peers import Peers
from helpers.third_party_fixtures import cases, has, hf_tokens, witness
from helpers.tiny_models import relative, whole

NAMES = (
    "llama", "llama_k256", "llama_shards_bf16", "llama_bin_shards", "llama_linear_rope", "llama3_rope_tied", "mistral",
    "mixtral", "qwen2", "qwen3", "gemma2", "phi2", "phi3", "tinyphi", "starcoder2", "stablelm", "granite", "olmo",
    "deepseek2", "gpt2_nctx", "starcoder", "gptneox", "mpt_MPTarch", "bloom", "falcon40b", "mamba", "mamba2",
)
NOT_LOADED = ("phi2", "phi3", "deepseek2")
"""What llama.cpp does not load of its own converter's: docs/formats/todays-converter.md."""
LIMIT = 1e-5
# The oracle's Gemma 2 logits were made without the cap on scores: its transformers used an attention that has none.
# Transformers' own eager attention agrees with ours (test_arch_transformers).
LIMITS = {"gemma2": 1e-3}
# Keys whose value in the oracle's file is wrong: 4 · n_embd, whatever config.json says.
WRONG = {
    "phi2": {"phi2.feed_forward_length": 96},
    # The width of the model, where config.json does not say how far BLOOM was trained.
    "bloom": {"bloom.context_length": 2048},
}


@pytest.fixture(scope="module", params=cases(NAMES, "hf/ckpt/{}"))
def both(request: pytest.FixtureRequest, peer: Peers) -> tuple[str, ModelGraph, ModelGraph]:
    """(name, the checkpoint, the oracle's GGUF), bound."""
    name = request.param
    found = open_checkpoint(str(peer(f"hf/out/{name}/{name}.f32.gguf")))
    overrides = {key.split(".", 1)[1]: str(value) for key, value in WRONG.get(name, {}).items()}
    return name, understand(open_checkpoint(str(witness(f"hf/ckpt/{name}")))), understand(found, overrides)


@pytest.mark.sampled(7)
def test_names_and_shapes_are_the_oracles(both: tuple[str, ModelGraph, ModelGraph]) -> None:
    _, source, written = both
    assert {node.name: node.shape for node in source.nodes} == {node.name: node.shape for node in written.nodes}


def test_bytes_are_the_oracles(both: tuple[str, ModelGraph, ModelGraph]) -> None:
    _, source, written = both
    ours, theirs = whole(source), whole(written)
    different = [name for name in ours if not np.array_equal(ours[name], theirs[name])]
    assert not different


def plain(value: Value) -> Any:
    return np.float32(value.data) if isinstance(value.data, float) else value.data


def test_every_key_of_the_oracle_is_written_with_its_value(both: tuple[str, ModelGraph, ModelGraph]) -> None:
    name, source, written = both
    ours = {key: value for key, value, _ in source.written()}
    theirs = {
        key: value
        for key, value in written.checkpoint.metadata.items()
        if key.startswith(f"{source.architecture.name}.")
    }
    assert not set(theirs) - set(ours)
    for key, value in theirs.items():
        assert ours[key].type == value.type, key
        assert plain(ours[key]) == WRONG.get(name, {}).get(key, plain(value)), key


@pytest.mark.parametrize("side", ["source", "written"])
def test_forward_is_transformers(side: str, both: tuple[str, ModelGraph, ModelGraph]) -> None:
    name, source, written = both
    expected = np.load(witness(f"hf/out/{name}/hf_logits_f32.npy"))
    found = forward(source if side == "source" else written, hf_tokens())
    assert relative(expected, found) <= LIMITS.get(name, LIMIT)


def test_forward_is_llama_cpps(both: tuple[str, ModelGraph, ModelGraph]) -> None:
    """Its gelu goes through a table of float16, which costs 3e-3; elsewhere it agrees as closely as transformers."""
    name, _, written = both
    path = f"hf/out/{name}/llamacpp_logits_f32.npy"
    assert has(path) == (name not in NOT_LOADED)
    if name in NOT_LOADED:
        return
    rounded = "gelu" in str(written.architecture.recipe)
    assert relative(np.load(witness(path)), forward(written, hf_tokens())) <= (3e-3 if rounded else LIMIT)


def test_the_oracles_phi2_contradicts_itself(peer: Peers) -> None:
    with pytest.raises(ShapeError, match="n_ff=256"):
        understand(open_checkpoint(str(peer("hf/out/phi2/phi2.f32.gguf"))))
