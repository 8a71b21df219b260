"""Single models of today beyond what every tiny model is asked: what a witness never says, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ggferry.converters.architectures.chameleon import PICTURES
from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from ggferry.converters.understand import graph_of
from ggferry.formats.errors import InconsistentError
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


def test_step_as_it_is_published(tmp_path: Path) -> None:
    """As a text model alone, with lists that go on for a block that predicts further tokens."""
    expected = make("step35", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())["text_config"]
    for key in ("per_layer_config", "mlp_layer_types", "rope_parameters", "num_sliding_attention_heads"):
        del config[key]
    for key, new in (("n_routed_experts", "moe_num_experts"), ("num_experts_per_tok", "moe_top_k"),
                     ("num_key_value_heads", "num_attention_groups")):
        config[new] = config.pop(key)
    config |= {
        "architectures": ["Step3p5ForCausalLM"], "num_nextn_predict_layers": 1, "moe_layers_enum": "1,2,3,4",
        "layer_types": [*config["layer_types"], "sliding_attention"],
        "rope_theta": [9000.0, 700.0, 700.0, 9000.0, 700.0],
        "partial_rotary_factors": [0.5, 1.0, 1.0, 0.5, 1.0], "swiglu_limits": [*config["swiglu_limits"], None],
        "attention_other_setting": {"num_attention_heads": 6, "num_attention_groups": 2, "head_dim": 16},
        "use_head_wise_attn_gate": True, "moe_router_activation": "sigmoid", "yarn_only_types": ["full_attention"],
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = {name: x for name, x in load_file(tmp_path / "model.safetensors").items() if "vi" not in name}
    tensors |= {name.replace(".1.", ".4."): x + 1 for name, x in tensors.items() if ".layers.1." in name}
    save_file(tensors, tmp_path / "model.safetensors")
    graph = graph_of(str(tmp_path))
    assert relative(expected, forward(graph, TOKENS)) <= 1e-5
    assert not [note for note in graph.notes if "does not use" in note] and len(graph.dropped) > 10
    for key, wrong in (("partial_rotary_factors", [1.0] * 5), ("rope_theta", [9000.0, 700.0, 800.0, 9000.0])):
        (tmp_path / "config.json").write_text(json.dumps(config | {key: wrong}))
        with pytest.raises(InconsistentError):
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
