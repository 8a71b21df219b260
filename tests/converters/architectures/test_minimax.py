"""MiniMax 01 and M3 under their publisher's class and keys, and the blocks of tokens that M3 chooses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ggferry.converters.forward.evaluate import forward
from ggferry.converters.understand import graph_of
from ggferry.formats.errors import InconsistentError
from helpers.llama_cpp import continuations
from helpers.tiny_models import TOKENS, make, relative, write

pytestmark = pytest.mark.filterwarnings("ignore")


def test_minimax_01_as_it_is_published(tmp_path: Path) -> None:
    """Under its publisher's class and keys; M1 is the same."""
    expected = make("minimax-01", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for kind, ours in (("full_attention", "full_attn"), ("linear_attention", "linear_attn"), ("mlp", "mlp")):
        for part in ("alpha", "beta"):
            config[f"layernorm_{kind}_{part}"] = config.pop(f"{ours}_{part}_factor")
    config["attn_type_list"] = [int(kind == "full_attention") for kind in config.pop("layer_types")]
    config |= {"architectures": ["MiniMaxText01ForCausalLM"], "postnorm": True, "shared_intermediate_size": 0,
               "rotary_dim": 12, "rope_theta": config.pop("rope_parameters")["rope_theta"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    graph = graph_of(str(tmp_path))
    assert relative(expected, forward(graph, TOKENS)) <= 1e-5
    assert not [note for note in graph.notes if "does not use" in note]
    (tmp_path / "config.json").write_text(json.dumps(config | {"layernorm_mlp_alpha": 1.0}))
    with pytest.raises(InconsistentError, match="scale_experts"):
        graph_of(str(tmp_path))


@pytest.mark.slow
def test_llama_cpp_chooses_the_same_blocks_of_tokens(tmp_path: Path) -> None:
    """MiniMax M3; only with flash attention, whose sums are F16, does it choose at all."""
    make("minimax-m3", tmp_path / "hf")
    graph = graph_of(str(tmp_path / "hf"))
    (answer,) = continuations(TOKENS, 4, write(graph, tmp_path / "x.gguf"), flash=True)
    tokens = list(TOKENS)
    for token, probability in answer:
        logits = forward(graph, tokens)[-1].astype(np.float64)
        scores = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
        assert scores[token] == pytest.approx(probability, abs=2e-2)
        tokens.append(token)
    assert answer


def test_minimax_m3_as_it_is_published(tmp_path: Path) -> None:
    expected = make("minimax-m3", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    inner = config["text_config"]
    sparse = [int(kind != "full_attention") for kind in inner.pop("layer_types")]
    inner["moe_layer_freq"] = [int(kind == "sparse") for kind in inner.pop("mlp_layer_types")]
    inner["sparse_attention_config"] = {"sparse_attention_freq": sparse} | {
        f"sparse_{new}": inner.pop(f"index_{old}")
        for old, new in (("n_heads", "num_index_heads"), ("head_dim", "index_dim"), ("block_size", "block_size"),
                         ("topk_blocks", "topk_blocks"), ("local_blocks", "local_block"))
    }
    inner |= {"n_shared_experts": 1, "use_qk_norm": True, "hidden_act": "swigluoai"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    graph = graph_of(str(tmp_path))
    assert relative(expected, forward(graph, TOKENS)) <= 1e-5
    assert not [note for note in graph.notes if "does not use" in note]
    (tmp_path / "config.json").write_text(json.dumps(inner | {"architectures": ["MiniMaxM3SparseForCausalLM"]}))
    assert relative(expected, forward(graph_of(str(tmp_path)), TOKENS)) <= 1e-5
    inner["sparse_attention_config"]["sparse_attention_freq"] = [0, 0, 1, 1]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InconsistentError, match="choosing_fits"):
        graph_of(str(tmp_path))
