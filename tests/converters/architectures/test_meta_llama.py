"""Meta's own checkpoints: params.json and consolidated.NN.pth, read with Meta's names, sizes and order of rows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ggferry.converters.forward.evaluate import forward
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.schema.layouts.order import heads_halves_to_pairs
from ggferry.converters.understand import understand
from helpers.tiny_models import TOKENS, make, relative, write

META = {
    "tok_embeddings": "model.embed_tokens", "norm": "model.norm", "output": "lm_head",
    "layers.{n}.attention_norm": "model.layers.{n}.input_layernorm",
    "layers.{n}.attention.wq": "model.layers.{n}.self_attn.q_proj",
    "layers.{n}.attention.wk": "model.layers.{n}.self_attn.k_proj",
    "layers.{n}.attention.wv": "model.layers.{n}.self_attn.v_proj",
    "layers.{n}.attention.wo": "model.layers.{n}.self_attn.o_proj",
    "layers.{n}.ffn_norm": "model.layers.{n}.post_attention_layernorm",
    "layers.{n}.feed_forward.w1": "model.layers.{n}.mlp.gate_proj",
    "layers.{n}.feed_forward.w2": "model.layers.{n}.mlp.down_proj",
    "layers.{n}.feed_forward.w3": "model.layers.{n}.mlp.up_proj",
}
SCALED = {
    "rope_type": "llama3", "rope_theta": 5000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize("shards", [1, 2])
def test_the_oracles_shards_compute_the_float64_logits(shards: int, fixtures: Path) -> None:
    root = fixtures / "legacy-llama"
    graph = understand(open_checkpoint(str(root / "pth" / f"S128-{shards}sh")))
    tokens = [int(token) for token in (root / "tokens16.txt").read_text().split()]
    expected = np.load(root / "ggmf1-20230330" / "f16.bin.logits_f64.npy")
    assert relative(expected, forward(graph, tokens)) <= 1e-5
    assert [drop.ref.name for drop in graph.dropped if drop.same_as is None] == ["rope.freqs"]


@pytest.mark.parametrize("scaled", [False, True])
def test_metas_names_order_and_scaled_rope(scaled: bool, tmp_path: Path) -> None:
    """The model of transformers, its rows put back into Meta's order: the same logits, and the same GGUF tensors as
    from Hugging Face's files."""
    import torch
    from safetensors.numpy import load_file

    expected = make("llama", tmp_path / "hf", rope_parameters=SCALED if scaled else {"rope_theta": 5000.0})
    tensors = load_file(tmp_path / "hf" / "model.safetensors")
    heads = {"wq": heads_halves_to_pairs("h").bind({"h": 6}), "wk": heads_halves_to_pairs("h").bind({"h": 3})}
    state = {}
    for meta, name in META.items():
        for n in range(3) if "{n}" in meta else (0,):
            x = tensors[f"{name.format(n=n)}.weight"]
            x = heads[meta[-2:]].apply(x) if meta[-2:] in heads else x
            state[f"{meta.format(n=n)}.weight"] = torch.from_numpy(x.copy())
    folder = tmp_path / "meta"
    folder.mkdir()
    torch.save(state, folder / "consolidated.00.pth")
    params = {
        "dim": 48, "n_heads": 6, "n_kv_heads": 3, "n_layers": 3, "norm_eps": 1e-6, "vocab_size": -1,
        "rope_theta": 5000.0, "multiple_of": 8, "use_scaled_rope": scaled,
    }
    (folder / "params.json").write_text(json.dumps(params))
    graph = understand(open_checkpoint(str(folder)))
    assert graph.dialect.name == "meta" and graph.sizes["n_ctx"] == (131072 if scaled else 4096)
    assert relative(expected, forward(graph, TOKENS)) <= 1e-5
    written = understand(open_checkpoint(str(write(graph, tmp_path / "meta.gguf"))))
    assert relative(expected, forward(written, TOKENS)) <= 1e-5
    assert ("rope_freqs.weight" in written.by_name) == scaled
    same = write(understand(open_checkpoint(str(tmp_path / "hf"))), tmp_path / "hf.gguf")
    a, b = open_checkpoint(str(tmp_path / "meta.gguf")), open_checkpoint(str(same))
    assert set(a.tensors) == set(b.tensors)
    for name, ref in a.tensors.items():
        other = b.tensors[name]
        assert a.files[0].read(ref.spans[0].offset, ref.nbytes) == b.files[0].read(other.spans[0].offset, other.nbytes)
