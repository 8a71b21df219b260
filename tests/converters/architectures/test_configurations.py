"""Configurations that differ from their class's default, as transformers reads them: the checkpoint and its GGUF
compute what the model does that transformers loads from the same folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from ggferry.converters.understand import graph_of, understand
from ggferry.formats.errors import InconsistentError, UnexpectedTensorError, UnsupportedError
from helpers.asked_llama_cpp import alike
from helpers.models.mistral import GROWING
from helpers.models.sizes import LONG
from helpers.sampling import one_in
from helpers.tiny_models import TINY, TOKENS, make, relative, write

pytestmark = pytest.mark.filterwarnings("ignore")
GONE = object()
"""A key that is taken out."""
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5000.0, "factor": 8.0, "original_max_position_embeddings": 32}
YARN = {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "original_max_position_embeddings": 16}
NO_ROPE = {"rope_parameters": GONE, "rotary_pct": 1.0}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "a pattern of letters": ("exaone4 windows", {"sliding_window_pattern": "LLLG"}),
    "a pattern of letters, experts": ("exaone_moe", {"sliding_window_pattern": "LLG"}),
    "kinds of attention in pairs alone": ("gptneo", {"attention_layers": GONE}),
    "kinds of attention that pairs contradict": ("gptneo", {"attention_layers": ["local", "local", "global"]}),
    "a fraction that the class overwrites": (
        "bamba", {"rope_parameters": GONE, "rope_theta": 700.0, "partial_rotary_factor": 1.0}
    ),
    "a kind of blocks whose rotated part is not stated": (
        "laguna", {"rope_parameters": {kind: {"rope_type": "default", "rope_theta": 333.0} for kind in
                                       ("full_attention", "sliding_attention")}}
    ),
    "a kind of blocks whose rotated part is not stated, proportional": (
        "gemma4 shared", {"rope_parameters": {
            "full_attention": {"rope_type": "proportional", "rope_theta": 333.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 777.0}}}
    ),
    "a base that a class of two sets does not read": ("mellum", {"rope_parameters": GONE, "rope_theta": 777.0}),
    "low equals high": ("llama llama3", {"rope_parameters": {**LLAMA3, "low_freq_factor": 2, "high_freq_factor": 2}}),
    "low above high": ("llama llama3", {"rope_parameters": {**LLAMA3, "low_freq_factor": 8, "high_freq_factor": 0.5}}),
    "windows of all blocks": (
        "qwen3moe", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
    ),
    "windows of every other block": (
        "qwen2moe", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2, "layer_types": GONE}
    ),
    "half of the gates": ("gemma3n shared", {"activation_sparsity_pattern": [0.5, 0.9, 0.0, 0.5, 0.3]}),
    "a least sum of weights": ("ernie4_5_moe", {"moe_norm_min": 0.5}),
    "no base": ("lfm2", {"rope_parameters": GONE}),
    "no base, another class of the table": ("helium", {"rope_parameters": GONE}),
    "no rotary parameters": ("apertus", {"rope_parameters": GONE}),
    "null rotary parameters": ("apertus", {"rope_parameters": None, "rope_scaling": None, "rope_theta": 700.0}),
    "no rotary parameters, yarn": ("gpt-oss", {"rope_parameters": GONE}),
    "no window": ("gpt-oss", {"sliding_window": GONE}),
    "two sets of rotary parameters": (
        "llama", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}, "rope_theta": 700.0}
    ),
    "keys that the class does not read": ("deepseek v3", {"scoring_func": "softmax", "topk_method": "greedy"}),
    **{f"keys that the class does not read: {name}": (name, changes) for name, changes in {
        "glm 4.7 flash": {"scoring_func": "softmax", "topk_method": "greedy"},
        "deepseek v3.2": {"scoring_func": "softmax", "topk_method": "greedy"},
        "glm 5": {"scoring_func": "softmax", "topk_method": "greedy"},
        "afmoe": {"num_local_experts": 3, "n_shared_experts": 2},
        "mistral4": {"scoring_func": "sigmoid"},
        "bamba": {"position_embedding_type": "nope", "embedding_multiplier": 2.0, "residual_multiplier": 3.0},
    }.items()},
    "a window that the class does not have": ("llama", {"sliding_window": 5, "use_sliding_window": True}),
    "kinds that the class does not have": ("mistral window", {"layer_types": ["full_attention"] * 3}),
    "windows of blocks that turn nothing": (
        "smollm3", {"use_sliding_window": True, "sliding_window": 5, "layer_types": GONE}
    ),
    "another name of a key, contradicting it": ("gpt2", {"num_attention_heads": 3}),
    "another name of a key of experts, contradicting it": ("hunyuan moe", {"moe_topk": 1, "num_experts_per_tok": 2}),
    "alpha of no kind": ("hunyuan dense", {"rope_parameters": GONE, "rope_scaling": {"alpha": 1000.0}}),
    "alpha of another kind": (
        "hunyuan moe", {"rope_parameters": GONE, "rope_scaling": {"alpha": 1000.0, "type": "linear", "factor": 2.0}}
    ),
    "sizes of another family": ("bloom", {"n_embd": 2, "n_positions": 3}),
    "sizes of another family, blocks": ("mpt", {"num_layers": 2, "hidden_act": "relu"}),
    "a feed-forward of another family": ("gptneox", {"n_inner": 2, "n_layer": 2, "n_positions": 3}),
    "a context of another family": ("opt", {"n_positions": 3, "intermediate_size": 5}),
    "keys of attention beside its section": (
        "mpt", {"attn_clip_qkv": 0.05, "softmax_scale": 0.7, "alibi": False, "alibi_bias_max": 4}
    ),
    "keys of attention without its section": (
        "mpt", {"attn_config": GONE, "attn_clip_qkv": 0.05, "softmax_scale": 0.7, "alibi": False, "alibi_bias_max": 4,
                "attn_qk_ln": True, "prefix_lm": True}
    ),
    "no gates left out": ("gemma3n shared", {"activation_sparsity_pattern": None}),
    "no multipliers": ("falcon-h1", {"mlp_multipliers": None, "ssm_multipliers": None}),
    "weights of experts normed, says the file": ("deepseek v2", {"norm_topk_prob": True}),
    "weights of an OCR's experts normed, says the file": ("unlimited ocr", {"norm_topk_prob": True}),
    "an epsilon of another class": ("starcoder2", {"layer_norm_eps": 0.3}),
    "scored as published": ("dots1", {"scoring_func": "noaux_tc"}),
    "a base of some blocks": ("olmo3", {"rope_parameters": GONE, "rope_theta": 700.0}),
    "rotary parameters of no kind": ("olmo3", {"rope_parameters": {"rope_type": "default", "rope_theta": 700.0}}),
    "a fraction that its own key contradicts": ("minimax_m2", {"rotary_dim": 8}),
    "a base that its own key contradicts": ("gptneox", {**NO_ROPE, "rope_theta": 777.0, "rotary_emb_base": 333.0}),
    "a base under a key that the class does not read": ("gptneox", {**NO_ROPE, "rope_theta": 777.0}),
    "a base beside rotary parameters": (
        "gptneox",
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 1.0}, "rope_theta": 777.0,
         "rotary_emb_base": 333.0},
    ),
    "a fraction under a key that the class does not read": (
        "gptneox", {**NO_ROPE, "rotary_pct": 0.25, "partial_rotary_factor": 1.0}
    ),
    "yarn in the blocks without a window": (
        "step35", {"rope_parameters": {
            "full_attention": {**YARN, "partial_rotary_factor": 0.5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 700.0},
        }}
    ),
    "parameters by kind of block beside older ones": (
        "step35", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}
    ),
    "a kind under both names": (
        "olmo3",
        {"rope_parameters": GONE, "rope_theta": 700.0, "rope_scaling": {"rope_type": "default", "type": "linear"}},
    ),
    "kinds of attention that a number of dense blocks decides": ("cohere2moe", {"layer_types": GONE}),
    "chosen experts under another name": ("hunyuan moe", {"moe_topk": GONE, "num_experts_per_tok": 2}),
    "chosen experts under another name, Ernie": ("ernie4_5_moe", {"moe_k": GONE, "num_experts_per_tok": 2}),
    "a scaling that the class does not read": (
        "cohere2moe",
        {"rope_parameters": GONE, "rope_theta": 700.0, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    ),
    "biases that the class does not read": ("nemotron-h", {"attention_bias": True}),
    **{f"a base of a class that has one: {name}": (name, {"rope_theta": 777.0}) for name in ("gptj", "codegen")},
    **{f"rotary parameters of kinds of blocks that the class does not have: {name}": (
        name, {"rope_parameters": {
            "rope_type": "default", "rope_theta": 700.0,
            "full_attention": {"rope_type": "linear", "rope_theta": 333.0, "factor": 4.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 77.0}}})
       for name in ("llama", "cohere2", "exaone4", "granite", "smollm3")},
    "an original context that the class overwrites": ("phi3 longrope", {"original_max_position_embeddings": GONE}),
    "two lists of factors under an older name": (
        "phi3",
        {"rope_parameters": GONE, "rope_theta": 700.0, "original_max_position_embeddings": 8,
         "rope_scaling": {"type": "yarn", "long_factor": LONG["long_factor"], "short_factor": LONG["short_factor"]}},
    ),
    "an epsilon under the publisher's name beside its own": ("mimo2", {"layernorm_epsilon": 0.1}),
    "an epsilon that one norm does not have": ("minimax-01", {"rms_norm_eps": 0.1}),
    "gelu by the error function": ("starcoder2", {"hidden_act": "gelu"}),
    **{f"a part of a head that the class does not read: {name}": (
        name, {"rope_parameters": {"rope_type": "default", "rope_theta": 700.0, "partial_rotary_factor": 0.5}})
       for name in ("llama", "mixtral", "helium", "granitemoe", "deepseek v3", "glm 5", "minimax-01")},
    "an older base of windows that the class does not read": (
        "gemma4 shared", {"rope_parameters": GONE, "rope_theta": 700.0, "rope_local_base_freq": 333.0}),
    "dense blocks that the class does not have": ("solar open", {"first_k_dense_replace": 1}),
    **{f"no kinds of feed-forwards: {name}": (name, {"mlp_layer_types": GONE})
       for name in ("kimi linear", "dots3 note", "unlimited ocr")},
    "experts that a list places, and no number": ("llama4", {"interleave_moe_layer_step": GONE}),
    "experts that a list places, beside another number": ("llama4", {"interleave_moe_layer_step": 7}),
    "a last mixture beyond the last block": ("ernie4_5_moe", {"moe_layer_end_index": 8}),
    "a width that Falcon's class does not read": ("falcon 7b", {"intermediate_size": 44}),
    **{f"a key of another family beside the class's own: {name}, {key}": (name, {key: value})
       for name, key, value in (
           ("gpt2", "layer_norm_eps", 0.5), ("bloom", "norm_epsilon", 0.5), ("nemotron", "layer_norm_eps", 0.5),
           ("falcon 7b", "hidden_act", "gelu_new"), ("starcoder2", "activation_function", "gelu"),
           ("gptneox", "n_head", 2), ("opt", "n_head", 2), ("mpt", "num_heads", 2),
           *(("bloom", key, 5) for key in ("n_inner", "intermediate_size", "ffn_hidden_size")),
           *(("mpt", key, 5) for key in ("n_inner", "intermediate_size", "ffn_hidden_size")),
           ("gptneo", "n_inner", 5))},
    "positions that only another Granite's class leaves out": ("granite", {"position_embedding_type": "nope"}),
    "positions that only another Granite's class leaves out, experts": (
        "granitemoe", {"position_embedding_type": "nope"}),
    "a period of windows that nothing reads": ("gemma3", {"layer_types": GONE, "_sliding_window_pattern": 3}),
    "a window that OLMo 2's class does not have": ("olmo2", {"sliding_window": 5}),
    "a window that the class of a text half does not have": ("llava", {"sliding_window": 5}),
    "a part of a head that the class of a text half does not read": ("llava", {"partial_rotary_factor": 0.5}),
    "a width that is the model's own where it is null": ("minicpm3", {"dim_model_base": None}),
    "heads of keys that are the queries' where they are null": ("minicpm3", {"num_key_value_heads": None}),
    **{f"no sections of three axes: {name}": (name, {"rope_parameters": GONE}) for name in ("qwen3vl", "qwen3vlmoe")},
    "yarn": ("hunyuan dense", {"rope_parameters": {**YARN, "attention_factor": 0.8}}),
}


def changed(name: str, folder: Path, built: dict[str, Any] | None = None, /, **changes: Any) -> np.ndarray:
    """Save the tiny model with these keys in its config.json, and return the logits of what transformers then loads.

    `built`: keys with which it is made.
    """
    make(name, folder, **(built or {}))
    edit(folder, **changes)
    return loaded(name, folder)


def edit(folder: Path, **changes: Any) -> None:
    """Change keys of the text model's configuration."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    text = config.get("text_config", config)
    text.update(changes)
    for key in [key for key, value in changes.items() if value is GONE]:
        text.pop(key, None)
    path.write_text(json.dumps(config))


def loaded(name: str, folder: Path) -> np.ndarray:
    model = getattr(transformers, TINY[name].cls).from_pretrained(
        folder, attn_implementation=TINY[name].attention, dtype=torch.float32
    )
    with torch.no_grad():
        return np.asarray(model.eval()(torch.tensor([TOKENS])).logits[0].float().numpy())


def check(expected: np.ndarray, folder: Path, gguf: Path) -> None:
    source = understand(open_checkpoint(str(folder)))
    assert relative(expected, forward(source, TOKENS)) <= 1e-5
    written = understand(open_checkpoint(str(write(source, gguf))))
    assert relative(expected, forward(written, TOKENS)) <= 1e-5


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", one_in(4, CASES))
def test_a_configuration_means_what_it_means_to_transformers(case: str, tmp_path: Path) -> None:
    name, changes = CASES[case]
    expected = changed(name, tmp_path / "hf", **changes)
    check(expected, tmp_path / "hf", tmp_path / "x.gguf")


def test_the_default_proof_takes_the_base_where_dbrx_keeps_it(tmp_path: Path) -> None:
    """As published: in `attn_config`, which transformers 5 no longer reads, and DBRX's own code does."""
    make("dbrx", tmp_path / "hf")
    edit(tmp_path / "hf", rope_parameters=GONE)
    declared = json.loads((tmp_path / "hf" / "config.json").read_text())["attn_config"]["rope_theta"]
    made = convert(Request(str(tmp_path / "hf"), str(tmp_path / "x.gguf"), vocab=VocabOptions(none=True)))[0]
    assert graph_of(made.path).sizes["rope_base"] == declared != 10000.0
    remark = "transformers 5 does not read it and computes with 10000"
    assert any(remark in note for note in understand(open_checkpoint(str(tmp_path / "hf"))).notes)
    make("dbrx", tmp_path / "newer")
    assert not any(remark in note for note in understand(open_checkpoint(str(tmp_path / "newer"))).notes)


def test_the_default_proof_takes_groups_that_are_not_asked(tmp_path: Path) -> None:
    expected = make("deepseek v2 lite", tmp_path / "hf", n_group=2)
    made = convert(Request(str(tmp_path / "hf"), str(tmp_path / "x.gguf"), vocab=VocabOptions(none=True)))[0]
    assert relative(expected, forward(graph_of(made.path), TOKENS)) <= 1e-5


def test_the_default_proof_takes_the_original_context_of_the_class(tmp_path: Path) -> None:
    """transformers' Phi-3 overwrites what stands with the factors, also where the key beside them is its default."""
    expected = changed("phi3 longrope", tmp_path / "hf", original_max_position_embeddings=GONE)
    made = convert(Request(str(tmp_path / "hf"), str(tmp_path / "x.gguf"), vocab=VocabOptions(none=True)))[0]
    assert graph_of(made.path).sizes["rope_original"] == 4096
    assert relative(expected, forward(graph_of(made.path), TOKENS)) <= 1e-5
    assert any("rope_parameters.original_max_position_embeddings" in note
               for note in understand(open_checkpoint(str(tmp_path / "hf"))).notes)


@pytest.mark.parametrize(
    ("name", "changes", "base"),
    [
        ("gptneox", {**NO_ROPE, "rope_theta": 777.0}, 10000.0),
        ("gptj", {"rope_parameters": {"rope_theta": 777.0}}, 10000.0),
        ("llama", {"rope_parameters": GONE, "rotary_emb_base": 777.0}, 10000.0),  # GPT-NeoX' name
        ("gemma3", {"rope_parameters": {"rope_theta": 777.0}}, 1e6),  # it has a set for each kind of block
        ("laguna", {"rope_parameters": GONE, "rope_theta": 777.0}, 500000.0),
        ("mellum", {"rope_parameters": GONE, "rope_theta": 777.0}, 500000.0),
    ],
)
def test_the_default_proof_takes_keys_that_the_class_does_not_read(
    name: str, changes: dict[str, Any], base: float, tmp_path: Path
) -> None:
    """Of a contradiction the proof's second reader must know, too, which word counts."""
    expected = changed(name, tmp_path / "hf", **changes)
    made = convert(Request(str(tmp_path / "hf"), str(tmp_path / "x.gguf"), vocab=VocabOptions(none=True)))[0]
    assert graph_of(made.path).sizes["rope_base"] == base
    assert relative(expected, forward(graph_of(made.path), TOKENS)) <= 1e-5


BIASED = (
    "arcee", "gemma", "gemma2", "gemma3", "hunyuan dense", "hunyuan moe", "hunyuan vl", "hy_v3", "mellum", "olmo",
    "olmo2", "olmo3", "olmoe", "qwen3", "qwen3moe", "qwen3vl", "qwen3vlmoe", "smollm3", "step35",
)
"""Models whose matrices of attention have biases where the configuration says so, and in no published one."""
MADE: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "whole heads turn": ("minimax-m3", {"index_head_dim": 16}, {"rope_parameters": GONE}),
    "narrow heads turn whole": ("minimax-m3", {"head_dim": 8}, {}),
    "no kinds of blocks": (
        "minimax-01", {"layer_types": ["full_attention", "linear_attention", "full_attention"]}, {"layer_types": GONE}
    ),
    "dense blocks as listed, beside a number": ("deepseek v3.2", {"mlp_layer_types": ["sparse"] * 3}, {}),
    "no dense block, as listed": ("exaone_moe", {"mlp_layer_types": ["sparse"] * 4}, {}),
    "groups ranked by two experts scored by softmax": ("mistral4", {"n_group": 2, "topk_group": 1}, {}),
    "two of no experts": ("granite hybrid", {"num_local_experts": 0}, {}),
    "no expert is shared": ("afmoe", {"num_shared_experts": 0}, {}),
    "no biases": ("opt", {"enable_bias": False}, {}),
    **{f"a convolution without biases: {name}": (name, {key: False}, {})
       for name, key in (("mamba", "use_conv_bias"), ("mamba2", "use_conv_bias"), ("jamba", "mamba_conv_bias"))},
    "biases of a mixture's output, and of what all tokens pass": ("ernie4_5_moe", {"use_bias": True}, {}),
    "biases of the feed-forward": ("bamba", {"mlp_bias": True}, {}),
    "weights of experts as they come": ("kimi linear", {"moe_renormalize": False}, {}),
    "weights of experts as they come, LFM2": ("lfm2moe", {"norm_topk_prob": False}, {}),
    "experts chosen without a bias": ("lfm2moe", {"use_expert_bias": False}, {}),
    "a bias of a tied output": ("phimoe", {"tie_word_embeddings": True}, {}),
    **{f"biases of attention: {name}": (name, {"attention_bias": True}, {}) for name in BIASED},
    **{f"halves are rotated, not pairs: {name}": (name, {"rope_interleave": False}, {})
       for name in ("deepseek v3", "deepseek v3 plain", "glm 4.7 flash", "youtu", "mistral4")},
    "experts in one block that a list names": ("llama4", {"moe_layers": [3]}, {}),
    "a convolution's width beside that of another key": ("ling 3", {"linear_conv_kernel_dim": 4}, {}),
    "a part of a head for each kind of blocks": (
        "deepseek v4", {"rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 700.0, "partial_rotary_factor": 0.5}
            for kind in ("main", "compress")}}, {}),
    "gelu": ("phi2", {"hidden_act": "gelu"}, {}),
    "gelu by another approximation": ("phi2", {"hidden_act": "gelu_fast"}, {}),
    **{f"as many heads of keys, by silence: {name}": (name, {"num_key_value_heads": 8}, {"num_key_value_heads": silent})
       for name, silent in (("granite hybrid", GONE), ("bamba", None))},
    "no sections of axes": ("qwen3vl", {"head_dim": 128}, {"rope_parameters": GONE, "rope_theta": 700.0}),
    **{f"an output of its own: {name}": (name, {"tie_word_embeddings": False}, {})
       for name in ("gemma3n", "cohere2", "command-r", "gemma4 shared")},
    **{f"a class that ties nothing: {name}": (name, {"tie_word_embeddings": True}, {})
       for name in ("ling 3", "kimi linear", "nemotron-h", "nemotron-h moe")},
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", MADE)
def test_a_model_of_another_shape_is_what_transformers_loads(case: str, tmp_path: Path) -> None:
    name, built, changes = MADE[case]
    expected = changed(name, tmp_path / "hf", built, **changes)
    check(expected, tmp_path / "hf", tmp_path / "x.gguf")


def zeroed(folder: Path, part: str) -> list[str]:
    """Make zeros of the biases whose names hold `part`; return these names."""
    tensors = load_file(folder / "model.safetensors")
    names = [name for name in tensors if name.endswith(".bias") and part in name]
    save_file({name: 0 * x if name in names else x for name, x in tensors.items()}, folder / "model.safetensors",
              {"format": "pt"})
    return names


ZEROS = (
    *((name, "attention_bias", "") for name in ("deepseek v3", "kimi linear", "minicpm3", "mistral4", "youtu")),
    *((name, "attention_bias", "o_proj") for name in ("arcee", "cohere2", "command-r", "olmo", "olmo2", "qwen3")),
    *((name, "mlp_bias", "") for name in ("arcee", "minicpm3", "smollm3")),
    ("step35", "mlp_bias", "model.layers."),
    ("bamba", "mamba_proj_bias", "mamba."), ("nemotron-h", "use_bias", "mixer."), ("lfm2", "conv_bias", "conv."),
    ("ernie4_5_moe", "use_bias", ""),
)
"""Models of biases that llama.cpp has no place for: (name, key, part of their names)."""


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "key", "part"), ZEROS)
def test_biases_of_zeros_that_have_no_place_are_left_out(name: str, key: str, part: str, tmp_path: Path) -> None:
    make(name, tmp_path / "hf", **{key: True})
    zeros = [each for each in zeroed(tmp_path / "hf", part) if "conv1d" not in each]
    expected = loaded(name, tmp_path / "hf")
    graph = understand(open_checkpoint(str(tmp_path / "hf")))
    gone = {drop.ref.name: drop for drop in graph.dropped}
    assert zeros and all("zeros" in gone[each].reason and not gone[each].loses for each in zeros)
    assert not any("no bias for" in note or "no biases" in note for note in graph.notes)
    check(expected, tmp_path / "hf", tmp_path / "x.gguf")


def test_what_all_of_a_bias_is_zero_but_one_number_is_not_left_out(tmp_path: Path) -> None:
    make("mistral4", tmp_path, attention_bias=True)
    tensors = load_file(tmp_path / "model.safetensors")
    zeros = {name: 0 * x if name.endswith(".bias") else x for name, x in tensors.items()}
    zeros["model.layers.1.self_attn.o_proj.bias"][-1] = 1e-30
    save_file(zeros, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(UnsupportedError, match=r"attn_output\.weight: GGUF's mistral4 has no place"):
        understand(open_checkpoint(str(tmp_path)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["arcee", "hy_v3", "olmo", "olmo2", "olmoe", "smollm3"])
def test_llama_cpp_adds_the_biases_that_are_left(name: str, tmp_path: Path) -> None:
    make(name, tmp_path / "hf", attention_bias=True)
    zeroed(tmp_path / "hf", "o_proj")
    graph = understand(open_checkpoint(str(tmp_path / "hf")))
    assert graph.runtimes == ("llama.cpp",) and "blk.0.attn_q.bias" in graph.by_name
    assert alike(write(graph, tmp_path / "x.gguf"), TOKENS) == "alike"


def test_no_bias_of_experts_is_taken_for_none_where_the_configuration_does_not_say_so(tmp_path: Path) -> None:
    make("lfm2moe", tmp_path, use_expert_bias=False)
    edit(tmp_path, use_expert_bias=GONE)
    with pytest.raises(InconsistentError, match=r"no tensor 'feed_forward\.expert_bias'"):
        understand(open_checkpoint(str(tmp_path)))


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    **{f"a window of no tokens: {name}": (name, {"sliding_window": 0}, "GGUF readers take this value as absent")
       for name in ("mistral window", "mellum", "laguna")},
    "parts of heads that differ by kind of block": (
        "mimo2", {"rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 700.0, "partial_rotary_factor": 0.5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 333.0}}}, "rope_fraction_swa"),
    "no kinds of attention beside indexers": ("minimax-m3", {"layer_types": GONE}, "lists no kinds of attention"),
    "indexers narrower than what turns": ("minimax-m3", {"rope_parameters": GONE}, "n_rot <= index_width"),
    "no biases, which llama.cpp requires": ("gpt-oss", {"attention_bias": False}, "attention_bias is false"),
    "a part of a head in one kind of blocks": (
        "deepseek v4", {"rope_parameters": {
            "main": {"rope_type": "default", "rope_theta": 700.0, "partial_rotary_factor": 0.5},
            "compress": {"rope_type": "default", "rope_theta": 700.0}}}, "compress_fraction == rope_fraction"),
    "a part of the rotated part": (
        "glm 4.7 flash", {"rope_parameters": {"rope_theta": 700.0, "partial_rotary_factor": 0.5}}, "fraction_stated"),
    "a part of a head that what scales frequencies reads": (
        "llama", {"rope_parameters": {
            "rope_type": "linear", "factor": 2.0, "rope_theta": 700.0, "partial_rotary_factor": 0.5}},
        r"partial_rotary_factor is 0\.5"),
    "scores divided by another number": ("step35", {"query_pre_attn_scalar": 24}, "query_scalar == head_dim"),
    "experts between blocks that attend, none turned, says the class": (
        "granite hybrid of attention, experts", {"position_embedding_type": None}, "rotates"),
    **{f"time steps that are cut off: {name}": (
        name, {"time_step_limit": [0.0, 0.0]}, "time steps are kept from zero to zero")
       for name in ("mamba2", "falcon-h1", "granite hybrid", "bamba")},
    **{f"weights multiplied by 0: {key}": ("falcon-h1", {key: value}, "a multiplier in .* is 0")
       for key, value in {"key_multiplier": 0.0, "ssm_multipliers": [0.9, 0.8, 0.0, 1.1, 1.2]}.items()},
    **{f"a kind under the older name: {name}": (
        name, {"rope_parameters": GONE, "rope_scaling": {"type": "linear", "factor": 4.0}}, "under 'type'")
       for name in ("olmo3", "gemma3")},
    "a ramp of yarn that runs backwards, for a short context": (
        "gpt-oss", {"rope_parameters": {**YARN, "truncate": False, "original_max_position_embeddings": 3}},
        "ramp runs backwards"),
    **{f"a ramp of yarn that runs backwards, for a short context: {name}": (
        name, {"rope_parameters": {**GROWING, "original_max_position_embeddings": 2}}, "ramp runs backwards")
       for name in ("mistral4", "deepseek v3", "deepseek v3.2", "glm 5")},
    "a ramp of yarn that runs backwards, in blocks that compress": (
        "deepseek v4", {"rope_parameters": {
            "main": {"rope_type": "default", "rope_theta": 700.0, "partial_rotary_factor": 0.4},
            "compress": {**YARN, "rope_theta": 50.0, "partial_rotary_factor": 0.4, "attention_factor": 1.0,
                         "original_max_position_embeddings": 2}}}, "ramp runs backwards"),
    "a ramp of yarn that runs backwards, by its ends": (
        "llama", {"rope_parameters": {**YARN, "beta_fast": 0.001, "beta_slow": 2.0}}, "ramp runs backwards"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_sound_is_refused_by_name(case: str, tmp_path: Path) -> None:
    name, changes, reason = REFUSED[case]
    make(name, tmp_path)
    edit(tmp_path, **changes)
    with pytest.raises((InconsistentError, UnsupportedError), match=reason):
        understand(open_checkpoint(str(tmp_path)))


def test_an_indexer_of_one_number_which_cannot_choose_is_refused(tmp_path: Path) -> None:
    make("glm 5.3 flash", tmp_path, index_head_dim=1)
    with pytest.raises(InconsistentError, match="1 < index_dim"):
        understand(open_checkpoint(str(tmp_path)))


@pytest.mark.parametrize(
    ("name", "key"),
    [("gemma4 shared", "final_logit_softcapping"), ("glm 5.3 flash", "swiglu_limit"), ("hy_v4", "swiglu_limit")],
)
def test_a_bound_of_zero_is_no_model_without_a_bound(name: str, key: str, tmp_path: Path) -> None:
    make(name, tmp_path)
    edit(tmp_path, **{key: 0.0})
    with pytest.raises(UnsupportedError, match=key):
        understand(open_checkpoint(str(tmp_path)))


def test_an_older_scaling_that_no_key_says_is_refused(tmp_path: Path) -> None:
    make("dots3 note, published", tmp_path)
    edit(tmp_path, rope_scaling={"rope_type": "linear", "factor": 3.0})
    with pytest.raises(UnsupportedError, match=r"rope_scaling\.rope_type"):
        understand(open_checkpoint(str(tmp_path)))


CONTRADICTIONS = ("llama biases", "granite", "gptneox", "stablelm", "opt", "mamba")
"""Models with biases, of which a configuration says in some key that there are some."""
BIASES = dict.fromkeys(("attention_bias", "mlp_bias", "use_qkv_bias", "enable_bias", "use_conv_bias"), False)


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_biases_that_the_configuration_denies_are_left_out_by_name(name: str, tmp_path: Path) -> None:
    expected = changed(name, tmp_path / "hf", **BIASES)
    graph = understand(open_checkpoint(str(tmp_path / "hf")))
    lost = [drop for drop in graph.dropped if drop.loses]
    assert lost and all(drop.ref.name.endswith("bias") and "is false" in drop.reason for drop in lost)
    assert any(lost[0].ref.name in note and "not copied" in note for note in graph.notes)
    check(expected, tmp_path / "hf", tmp_path / "x.gguf")


@pytest.mark.parametrize(
    ("name", "key"), [("llama biases", "attention_bias"), ("granite", "attention_bias"), ("stablelm", "use_qkv_bias")]
)
def test_biases_of_which_the_configuration_says_nothing_are_asked_about(name: str, key: str, tmp_path: Path) -> None:
    """transformers leaves them out with a warning; llama.cpp's converter carries them: whoever made them knows."""
    make(name, tmp_path)
    edit(tmp_path, **{key: GONE})
    with pytest.raises(UnexpectedTensorError) as caught:
        understand(open_checkpoint(str(tmp_path)))
    assert caught.value.hint and f'"{key}"' in caught.value.hint


def test_what_a_runtime_or_transformers_computes_otherwise_in_mimo_is_said(tmp_path: Path) -> None:
    make("mimo2", tmp_path, attention_bias=True)
    edit(tmp_path, rope_parameters=GONE, rope_theta=777.0, rms_norm_eps=0.2, layernorm_epsilon=0.1)
    graph = understand(open_checkpoint(str(tmp_path)))
    assert any("does not add them in mimo2" in note for note in graph.notes)
    assert any("transformers does not read it and computes with 5000000" in note for note in graph.notes)
    assert graph.sizes["rope_base"] == 777.0 and graph.sizes["eps"] == pytest.approx(0.2)


def test_why_the_text_model_is_not_read_comes_before_what_the_encoder_lacks(tmp_path: Path) -> None:
    make("minimax-m3", tmp_path / "hf")
    edit(tmp_path / "hf", hidden_act="relu")
    with pytest.raises(UnsupportedError, match="hidden_act") as caught:
        convert(Request(str(tmp_path / "hf"), str(tmp_path / "x.gguf"), vocab=VocabOptions(none=True)))
    assert caught.value.hint and "nor is an mmproj file written: nothing says what vision." in caught.value.hint


@pytest.mark.slow
@pytest.mark.parametrize("name", ["granite_swa", "granite_swa moe", "step35", "cohere2", "mimo2", "gpt-oss"])
def test_a_window_that_no_block_has_ends_llama_cpp(name: str, tmp_path: Path) -> None:
    count = TINY[name].config["num_hidden_layers"]
    make(name, tmp_path / "hf", layer_types=["full_attention"] * count)
    graph = understand(open_checkpoint(str(tmp_path / "hf")))
    assert "llama.cpp" not in graph.runtimes and any("no block has the window" in note for note in graph.notes)
    assert alike(write(graph, tmp_path / "x.gguf"), list(TOKENS)) == "dies"


def test_kinds_of_attention_that_no_key_says_are_the_class_s(tmp_path: Path) -> None:
    """Of 24 blocks: for another number transformers refuses its own default."""
    make("gptneo", tmp_path, num_layers=24, attention_types=[[["global", "local"], 12]])
    edit(tmp_path, attention_layers=GONE, attention_types=GONE)
    kinds = transformers.AutoConfig.from_pretrained(tmp_path).attention_layers
    assert understand(open_checkpoint(str(tmp_path))).sizes["swa_layers"] == tuple(kind == "local" for kind in kinds)


def test_one_expert_is_a_dense_feed_forward(tmp_path: Path) -> None:
    expected = make("jamba", tmp_path / "hf", num_experts=1, num_experts_per_tok=2)
    check(expected, tmp_path / "hf", tmp_path / "x.gguf")


def test_a_silent_count_of_heads_of_keys_is_the_class_s(tmp_path: Path) -> None:
    """Bamba's class has a number for it where nothing is stated, and as many as heads where that is null."""
    expected = make("bamba", tmp_path / "hf", num_attention_heads=16, head_dim=8, num_key_value_heads=8)
    edit(tmp_path / "hf", num_key_value_heads=GONE)
    made = convert(Request(str(tmp_path / "hf"), str(tmp_path / "x.gguf"), vocab=VocabOptions(none=True)))[0]
    assert relative(expected, forward(graph_of(made.path), TOKENS)) <= 1e-5


def test_queries_without_biases(tmp_path: Path) -> None:
    expected = make("qwen2moe", tmp_path / "hf", qkv_bias=False)
    check(expected, tmp_path / "hf", tmp_path / "x.gguf")


def test_a_scaling_that_the_class_does_not_read_is_said(tmp_path: Path) -> None:
    make("cohere2moe", tmp_path)
    edit(tmp_path, rope_parameters=GONE, rope_theta=700.0, rope_scaling={"rope_type": "linear", "factor": 4.0})
    assert any("does not use: rope_scaling" in note for note in understand(open_checkpoint(str(tmp_path))).notes)


def test_contradicting_rotary_parameters_are_said(tmp_path: Path) -> None:
    changed("llama", tmp_path, rope_scaling={"rope_type": "linear", "factor": 4.0}, rope_theta=700.0)
    notes = understand(open_checkpoint(str(tmp_path))).notes
    assert any("rope_parameters and rope_scaling contradict each other" in note for note in notes)
    changed("llama", tmp_path, rope_scaling={"type": "default", "rope_theta": 5000.0})
    assert not understand(open_checkpoint(str(tmp_path))).notes


def test_contradicting_names_of_a_key_are_said(tmp_path: Path) -> None:
    folder = tmp_path / "hf"
    make("gpt2", folder)
    edit(folder, num_attention_heads=3)
    said = "config.json: n_head and num_attention_heads contradict each other: the latter counts, as in transformers"
    graph = understand(open_checkpoint(str(folder)))
    assert said in graph.notes and graph.hparams["n_head"].value == 3


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["gemma2", "gemma3", "gemma3n", "gemma4 shared"])
def test_another_gelu_than_llama_cpp_computes_is_said(name: str, tmp_path: Path) -> None:
    expected = changed(name, tmp_path, hidden_activation="gelu")
    graph = understand(open_checkpoint(str(tmp_path)))
    assert any("GELU by the error function" in note for note in graph.notes)
    assert 1e-5 < relative(expected, forward(graph, TOKENS)) < 1e-3


def test_keys_that_the_class_does_not_read_are_said(tmp_path: Path) -> None:
    changed("deepseek v3", tmp_path, scoring_func="sigmoid", topk_method="noaux_tc")
    assert not any("scoring_func" in note for note in understand(open_checkpoint(str(tmp_path))).notes)
    changed("deepseek v3", tmp_path, scoring_func="softmax")
    assert any("scoring_func=softmax" in note for note in understand(open_checkpoint(str(tmp_path))).notes)


def test_letters_of_no_pattern_are_refused(tmp_path: Path) -> None:
    make("exaone4 windows", tmp_path)
    path = tmp_path / "config.json"
    config = {**json.loads(path.read_text()), "layer_types": None, "sliding_window_pattern": "LLXG"}
    path.write_text(json.dumps(config))
    with pytest.raises(InconsistentError, match="LLXG"):
        understand(open_checkpoint(str(tmp_path)))


def test_scores_that_no_key_scales_are_refused(tmp_path: Path) -> None:
    changed("minicpm3", tmp_path, rope_parameters={**YARN, "mscale_all_dim": 0.7})
    with pytest.raises(InconsistentError, match="rope_mscale_all"):
        understand(open_checkpoint(str(tmp_path)))


def test_heads_that_turn_whole_where_the_graph_turns_half_are_refused(tmp_path: Path) -> None:
    make("step35", tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    del config["text_config"]["rope_parameters"]
    config["text_config"]["rope_theta"] = 700.0
    path.write_text(json.dumps(config))
    with pytest.raises(InconsistentError, match="fraction_full"):
        understand(open_checkpoint(str(tmp_path)))


def test_a_note_says_where_transformers_takes_other_factors(tmp_path: Path) -> None:
    make("phimoe longrope", tmp_path)
    notes = understand(open_checkpoint(str(tmp_path))).notes
    assert any("transformers 5 takes the short ones" in note for note in notes)


def test_a_note_says_where_llama_cpp_turns_blocks_with_a_window_by_another_base(tmp_path: Path) -> None:
    for base, said, does in ((500000.0, False, "alike"), (700.0, True, "otherwise")):
        folder = tmp_path / does
        make("olmo3", folder, num_attention_heads=4, num_key_value_heads=4)
        edit(folder, rope_parameters=GONE, rope_theta=base)
        source = understand(open_checkpoint(str(folder)))
        assert any("it turns all blocks by one base, " in note for note in source.notes) is said
        assert alike(write(source, tmp_path / f"{does}.gguf"), list(TOKENS)) == does


def test_a_note_says_that_llama_cpp_chooses_factors_by_its_context(tmp_path: Path) -> None:
    """Of 256 tokens here, for a text of 18."""
    for original, does in ((8, "alike"), (32, "otherwise"), (256, "alike")):
        scaling = {**LONG, "original_max_position_embeddings": original}
        make("phi3 longrope", tmp_path / does, original_max_position_embeddings=original,
             max_position_embeddings=512, rope_parameters=scaling)
        source = understand(open_checkpoint(str(tmp_path / does)))
        assert any(f"in one of more than {original} tokens" in note for note in source.notes)
        assert alike(write(source, tmp_path / f"{original}.gguf"), list(TOKENS)) == does


WITHOUT_PREFIX = ("llama", "gpt2", "mamba", "gptneox", "qwen3vl", "biogpt", "apertus", "hrm", "gemma3", "deepseek v3")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", WITHOUT_PREFIX)
def test_a_base_model_alone_is_loaded_as_transformers_does(name: str, tmp_path: Path) -> None:
    make(name, tmp_path / "hf")
    path = tmp_path / "hf" / "model.safetensors"
    prefix = f"{getattr(transformers, TINY[name].cls).base_model_prefix}."
    tensors = load_file(path)
    assert any(tensor.startswith(prefix) for tensor in tensors)
    save_file({tensor.removeprefix(prefix): data for tensor, data in tensors.items()}, path, {"format": "pt"})
    check(loaded(name, tmp_path / "hf"), tmp_path / "hf", tmp_path / "x.gguf")
