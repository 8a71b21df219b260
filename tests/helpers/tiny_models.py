"""Tiny random Hugging Face models, made by transformers itself, with its own logits as witness.

Every size differs from every other, heads are at least 8 wide, 1 < n_head_kv < n_head, and there are three blocks or
more: with smaller or equal sizes a wrong order of rows, heads or roles can look right. Weights are large enough for
attention to be far from uniform.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.model_graph.rows import laid_out_values, values_of
from ggferry.formats.gguf.values import Value, array, f32, string
from ggferry.formats.gguf.values import ValueType as T
from ggferry.formats.gguf.write import write_gguf
from ggferry.quant.codec import block_type
from helpers.tiny import BASE, ROPE, TOKENS, VOCAB, Tiny
from helpers.tiny_further import FURTHER
from helpers.tiny_hybrids import HYBRIDS
from helpers.tiny_kin import KIN
from helpers.tiny_singles import SINGLES
from helpers.tiny_todays import TODAYS

MOE = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
LONG = {
    "rope_type": "longrope", "rope_theta": 5000.0, "long_factor": [1.0, 1.7, 2.4, 3.1],
    "short_factor": [1.0, 1.1, 1.2, 1.3], "original_max_position_embeddings": 8,
}
DEEPSEEK = {
    **BASE, "num_key_value_heads": 6, "kv_lora_rank": 20, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8,
    "v_head_dim": 10, "moe_intermediate_size": 36, "n_routed_experts": 8, "num_experts_per_tok": 3,
    "n_shared_experts": 2, "first_k_dense_replace": 1, "rope_parameters": ROPE,
}
GEMMA3 = {
    **BASE, "head_dim": 16, "num_hidden_layers": 7, "sliding_window": 8, "query_pre_attn_scalar": 24,
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 9000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 700.0},
    },
}

MAMBA = {
    "vocab_size": VOCAB, "hidden_size": 48, "num_hidden_layers": 3, "state_size": 10, "conv_kernel": 4,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}
MAMBA2 = {**MAMBA, "head_dim": 8, "num_heads": 12, "n_groups": 3, "chunk_size": 8}
RWKV4 = {"vocab_size": VOCAB, "hidden_size": 48, "num_hidden_layers": 3, "context_length": 64}


def _rope(**scaling: Any) -> dict[str, Any]:
    return {**BASE, "rope_parameters": {**ROPE, **scaling}}


def _old(**scaling: Any) -> dict[str, Any]:
    return {**ROPE, "rope_scaling": scaling or None}


LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
MSCALE = {**YARN, "mscale": 0.8, "mscale_all_dim": 0.8}

GPT = {
    "vocab_size": VOCAB, "n_embd": 48, "n_inner": 88, "n_layer": 3, "n_head": 6, "n_positions": 64,
    "bos_token_id": 1, "eos_token_id": 2,
}
GPT_NEO = {
    "vocab_size": VOCAB, "hidden_size": 48, "intermediate_size": 88, "num_layers": 3, "num_heads": 6,
    "max_position_embeddings": 64, "attention_types": [[["global", "local"], 1], [["local"], 1]], "window_size": 7,
}
BLOOM = {"vocab_size": VOCAB, "hidden_size": 48, "n_layer": 3, "n_head": 6, "seq_length": 64}
FALCON = {**BASE, "num_kv_heads": 3, "ffn_hidden_size": 88, "rope_parameters": ROPE}
REFINED_WEB = {
    "architectures": ["RWForCausalLM"], "n_head": 6, "n_layer": 3, "num_attention_heads": None, "rope_theta": 5000.0,
    "num_hidden_layers": None, "num_kv_heads": None, "max_position_embeddings": None, "ffn_hidden_size": None,
    "new_decoder_architecture": None, "num_ln_in_parallel_attn": None,
}
MPT = {"vocab_size": VOCAB, "d_model": 48, "n_layers": 3, "n_heads": 6, "max_seq_len": 64}

TINY: dict[str, Tiny] = {
    "llama": Tiny("Llama", _rope()),
    "llama biases": Tiny("Llama", {**_rope(), "attention_bias": True, "mlp_bias": True}),
    "llama head_dim": Tiny("Llama", {**_rope(), "head_dim": 20}),
    "llama tied": Tiny("Llama", {**_rope(), "tie_word_embeddings": True}),
    "llama linear": Tiny("Llama", _rope(rope_type="linear", factor=3.0)),
    "llama linear, old": Tiny("Llama", _rope(rope_type="linear", factor=3.0), _old(type="linear", factor=3.0)),
    "llama llama3": Tiny("Llama", _rope(**LLAMA3)),
    "llama llama3, old": Tiny("Llama", _rope(**LLAMA3), _old(**LLAMA3)),
    "llama yarn": Tiny("Llama", _rope(**YARN)),
    "llama yarn, old": Tiny("Llama", _rope(**YARN), _old(type="yarn", factor=4.0, original_max_position_embeddings=16)),
    "llama yarn attention_factor": Tiny("Llama", _rope(**YARN, attention_factor=0.7)),
    "llama yarn betas": Tiny(
        "Llama",
        {**_rope(**(YARN | {"original_max_position_embeddings": 64}), beta_fast=1.5, beta_slow=0.1), "head_dim": 16},
    ),
    "llama yarn mscale": Tiny("Llama", _rope(**YARN, mscale=0.7, mscale_all_dim=0.4)),
    "llama dynamic": Tiny("Llama", _rope(rope_type="dynamic", factor=2.0)),
    "llama longrope": Tiny("Llama", {**BASE, "rope_parameters": LONG}),
    "llama longrope short": Tiny("Llama", _rope(**(LONG | {"original_max_position_embeddings": 32}))),
    "mistral window": Tiny("Mistral", {**_rope(), "sliding_window": 7}),
    "mixtral": Tiny("Mixtral", {**_rope(), "num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 7}),
    "qwen2": Tiny("Qwen2", {**_rope(), "tie_word_embeddings": True}),
    "qwen2 window": Tiny("Qwen2", {**_rope(), "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}),
    "qwen2 yarn": Tiny("Qwen2", _rope(**YARN)),
    "qwen2moe": Tiny("Qwen2Moe", {**_rope(), **MOE, "shared_expert_intermediate_size": 56}),
    "qwen2moe normed": Tiny(
        "Qwen2Moe", {**_rope(), **MOE, "shared_expert_intermediate_size": 56, "norm_topk_prob": True}
    ),
    "qwen3": Tiny("Qwen3", {**_rope(), "head_dim": 20}),
    "qwen3moe": Tiny("Qwen3Moe", {**_rope(), **MOE, "head_dim": 20, "norm_topk_prob": True}),
    "qwen3moe not normed": Tiny("Qwen3Moe", {**_rope(), **MOE, "head_dim": 20, "norm_topk_prob": False}),
    "gemma": Tiny("Gemma", {**_rope(), "head_dim": 16}),
    "gemma2": Tiny("Gemma2", {**_rope(), "head_dim": 16, "sliding_window": 7, "query_pre_attn_scalar": 24}),
    "gemma2 caps": Tiny(
        "Gemma2",
        {**_rope(), "head_dim": 16, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 4.0,
         "final_logit_softcapping": None, "layer_types": ["full_attention"] * 3},
    ),
    "gemma3": Tiny("Gemma3", GEMMA3),
    "gemma3, old": Tiny(
        "Gemma3", GEMMA3,
        {"rope_theta": 9000.0, "rope_local_base_freq": 700.0, "rope_scaling": {"rope_type": "linear", "factor": 4.0},
         "sliding_window_pattern": 6, "layer_types": None},
    ),
    "phi2": Tiny("Phi", {**_rope(partial_rotary_factor=0.5), "num_key_value_heads": 6}),
    "phi3": Tiny("Phi3", {**_rope(), "pad_token_id": 0}),
    "phi3 tied, partial": Tiny(
        "Phi3",
        {**_rope(partial_rotary_factor=0.75), "tie_word_embeddings": True, "pad_token_id": 0, "sliding_window": 7},
    ),
    "phi3 longrope": Tiny(
        "Phi3", {**BASE, "rope_parameters": LONG, "original_max_position_embeddings": 8, "pad_token_id": 0}
    ),
    "phi3 longrope, old": Tiny(
        "Phi3", {**BASE, "rope_parameters": LONG, "original_max_position_embeddings": 8, "pad_token_id": 0},
        {"rope_theta": 5000.0, "original_max_position_embeddings": 8,
         "rope_scaling": {"type": "su", "long_factor": LONG["long_factor"], "short_factor": LONG["short_factor"]}},
    ),
    "stablelm": Tiny("StableLm", {**_rope(partial_rotary_factor=0.5), "use_qkv_bias": True}),
    "stablelm 12b": Tiny(
        "StableLm", {**_rope(partial_rotary_factor=0.5), "qk_layernorm": True, "use_parallel_residual": True}
    ),
    "starcoder2": Tiny("Starcoder2", {**_rope(), "sliding_window": 7}),
    "starcoder2 unbiased": Tiny("Starcoder2", {**_rope(), "use_bias": False, "tie_word_embeddings": False}),
    "granite": Tiny(
        "Granite",
        {**_rope(), "attention_multiplier": 0.3, "embedding_multiplier": 3.0, "residual_multiplier": 0.6,
         "logits_scaling": 2.5, "attention_bias": True, "mlp_bias": True},
    ),
    "granite plain": Tiny("Granite", _rope()),
    "olmo": Tiny("Olmo", {**_rope(), "clip_qkv": 0.8}),
    "olmo tied": Tiny("Olmo", {**_rope(), "tie_word_embeddings": True}),
    "olmo2": Tiny("Olmo2", _rope()),
    "command-r": Tiny("Cohere", {**_rope(), "logit_scale": 0.3}),
    "command-r plus": Tiny("Cohere", {**_rope(), "use_qk_norm": True, "attention_bias": True}),
    "deepseek v2": Tiny("DeepseekV2", {**DEEPSEEK, "q_lora_rank": 28}),
    "deepseek v2 lite": Tiny("DeepseekV2", {**DEEPSEEK, "q_lora_rank": None, "num_hidden_layers": 4}),
    "deepseek v2 yarn": Tiny("DeepseekV2", {**DEEPSEEK, "q_lora_rank": 28, "rope_parameters": {**ROPE, **MSCALE}}),
    "deepseek v2 groups": Tiny(
        "DeepseekV2",
        {**DEEPSEEK, "q_lora_rank": 28, "n_group": 4, "topk_group": 2, "topk_method": "group_limited_greedy",
         "routed_scaling_factor": 3.0},
    ),
    "deepseek v3": Tiny(
        "DeepseekV3",
        {**DEEPSEEK, "q_lora_rank": 28, "n_group": 4, "topk_group": 2, "rope_parameters": {**ROPE, **MSCALE}},
    ),
    "deepseek v3 plain": Tiny(
        "DeepseekV3",
        {**DEEPSEEK, "q_lora_rank": None, "n_group": 1, "topk_group": 1, "norm_topk_prob": False,
         "first_k_dense_replace": 0},
    ),
    "mamba": Tiny("Mamba", {**MAMBA, "time_step_rank": 5}),
    "mamba untied": Tiny("Mamba", {**MAMBA, "time_step_rank": 5, "tie_word_embeddings": False}),
    "mamba2": Tiny("Mamba2", MAMBA2),
    "mamba2 one group": Tiny("Mamba2", {**MAMBA2, "n_groups": 1, "tie_word_embeddings": True}),
    "falcon mamba": Tiny("FalconMamba", {**MAMBA, "time_step_rank": 5, "mixer_rms_eps": 1e-2}),
    "rwkv": Tiny("Rwkv", {**RWKV4, "intermediate_size": 88, "rescale_every": 0}),
    "rwkv tied": Tiny("Rwkv", {**RWKV4, "tie_word_embeddings": True}),
    "gpt2": Tiny("GPT2", GPT, head="LMHeadModel"),
    "gpt2 unscaled": Tiny(
        "GPT2",
        {**GPT, "scale_attn_weights": False, "tie_word_embeddings": False, "activation_function": "gelu"},
        head="LMHeadModel",
    ),
    "starcoder": Tiny("GPTBigCode", GPT),
    "starcoder heads": Tiny("GPTBigCode", {**GPT, "multi_query": False, "activation_function": "gelu_fast"}),
    "gptj": Tiny("GPTJ", {**GPT, "rotary_dim": 4}),
    "gptneo": Tiny("GPTNeo", GPT_NEO),
    "gptneox": Tiny("GPTNeoX", _rope(partial_rotary_factor=0.5)),
    "gptneox sequential": Tiny(
        "GPTNeoX", {**_rope(partial_rotary_factor=0.5), "use_parallel_residual": False, "hidden_act": "gelu_fast"},
        {"rotary_pct": 0.5, "rotary_emb_base": 5000},
    ),
    "gptneox linear": Tiny("GPTNeoX", _rope(rope_type="linear", factor=3.0, partial_rotary_factor=1.0)),
    "gptneox unbiased": Tiny(
        "GPTNeoX", {**_rope(partial_rotary_factor=0.5), "attention_bias": False, "tie_word_embeddings": True}
    ),
    "mpt": Tiny("Mpt", MPT),
    "mpt clip": Tiny("Mpt", {**MPT, "attn_config": {"clip_qkv": 0.8}, "expansion_ratio": 2}),
    "mpt scale": Tiny("Mpt", {**MPT, "attn_config": {"softmax_scale": 0.2}, "tie_word_embeddings": False}),
    "bloom": Tiny("Bloom", BLOOM),
    "falcon 7b": Tiny("Falcon", FALCON),
    "falcon 40b": Tiny("Falcon", {**FALCON, "new_decoder_architecture": True}),
    "falcon 11b": Tiny(
        "Falcon",
        {**FALCON, "new_decoder_architecture": True, "num_ln_in_parallel_attn": 1, "tie_word_embeddings": False},
    ),
    "falcon 7b, old": Tiny("Falcon", FALCON, REFINED_WEB),
    "falcon 40b, old": Tiny(
        "Falcon", {**FALCON, "new_decoder_architecture": True}, {**REFINED_WEB, "multi_query": None, "n_head_kv": 3}
    ),
    # transformers' eager attention adds Falcon's ALiBi twice: to the scores, and with the mask that holds it already.
    "falcon rw": Tiny(
        "Falcon",
        {**FALCON, "num_kv_heads": 6, "alibi": True, "bias": True, "multi_query": False, "parallel_attn": False},
        attention="sdpa",
    ),
    **HYBRIDS,
    **TODAYS,
    **FURTHER,
    **KIN,
    **SINGLES,
}


IN_DOUBLE = ("Qwen3Next", "Qwen3_5", "Qwen3_5Moe")
"""Delta nets: transformers' float32 is 5e-5 from its own float64, which ours is 3e-6 from."""


def make(name: str, folder: Path, **changes: Any) -> np.ndarray:
    """Save the model in `folder`; return transformers' logits of TOKENS, float32 `(18, VOCAB)`. `changes`: of its
    configuration."""
    import torch
    import transformers

    tiny = TINY[name]
    stated = json.loads(json.dumps({**tiny.config, **changes}))
    if tiny.outer:
        stated = {**json.loads(json.dumps(tiny.outer)), "text_config": stated}
    text = "Text" if not tiny.outer and hasattr(transformers, f"{tiny.model}TextConfig") else ""
    config = getattr(transformers, f"{tiny.model}{text}Config")(**stated)
    config._attn_implementation = tiny.attention
    if tiny.model in IN_DOUBLE:
        config._experts_implementation = "eager"  # the others know no float64
    torch.manual_seed(7)
    model = getattr(transformers, tiny.cls)(config).float().eval()
    shake(model)
    model.save_pretrained(folder)
    if tiny.model == "HYV4":
        in_pairs(folder)
    if tiny.old:
        path = folder / "config.json"
        stated = {k: v for k, v in json.loads(path.read_text()).items() if k != "rope_parameters"} | dict(tiny.old)
        path.write_text(json.dumps({k: v for k, v in stated.items() if v is not None or k == "rope_scaling"}))
    if tiny.model in IN_DOUBLE:
        model = model.double()
    with torch.no_grad():
        return model(torch.tensor([TOKENS])).logits[0].float().numpy()


FIXED = ("inv_freq", "embed_positions", "slope_rate", "query_decay", "key_decay", "diagonal_decay")
"""Parts of the names of what follows from the configuration."""


def in_pairs(folder: Path) -> None:
    """Put the rows that turn in the order of the published Hunyuan 4, in which neighbors turn together: transformers
    turns the two halves."""
    from safetensors.numpy import load_file, save_file

    config, tensors = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    rotated, ranks = config["qk_rope_head_dim"], config["kv_lora_rank"] + config["qk_rope_head_dim"]
    widths = {
        "q_b_proj.weight": config["qk_head_dim"], "kv_a_proj_with_mqa.weight": ranks,
        **dict.fromkeys(("wq_b.weight", "wk.weight", "k_norm.weight", "k_norm.bias"), config["index_head_dim"]),
    }
    for name in tensors:
        width = next((width for end, width in widths.items() if name.endswith(end)), 0)
        if width:
            heads = tensors[name].reshape(-1, width, *tensors[name].shape[1:])
            half = heads[:, width - rotated :].reshape(len(heads), 2, rotated // 2, *heads.shape[2:])
            rows = half.swapaxes(1, 2).reshape(len(heads), rotated, *heads.shape[2:])
            heads = np.concatenate((heads[:, : width - rotated], rows), 1)
            tensors[name] = np.ascontiguousarray(heads.reshape(tensors[name].shape))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def shake(model: Any) -> None:
    """Values that leave no convention unseen: nothing is zero, one or alike."""
    import torch

    saved = model.state_dict()
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            fixed = name not in saved or any(part in name for part in FIXED)
            if fixed or not tensor.is_floating_point():
                continue
            if tensor.ndim < 2 or "norm" in name:
                tensor.add_(torch.randn_like(tensor) * 0.2)
            elif "embed" in name:
                tensor.copy_(torch.randn_like(tensor) * 0.5)
            else:
                tensor.copy_(torch.randn_like(tensor) * 1.3 / tensor.shape[-1] ** 0.5)


def relative(expected: np.ndarray, found: np.ndarray) -> float:
    """RMS of the difference over the RMS of what is expected."""
    return float(np.sqrt(np.mean((expected - found) ** 2)) / np.sqrt(np.mean(expected**2)))


def whole(graph: ModelGraph) -> dict[str, np.ndarray]:
    """Every tensor of the output, laid out, float32."""
    found = {}
    for node in graph.nodes:
        rows = int(np.prod(node.shape[:-1]))
        found[node.name] = laid_out_values(graph.checkpoint, node, 0, rows).reshape(node.shape)
    return found


def check_streaming(graph: ModelGraph) -> None:
    """Any rows of a tensor are those of the whole, as the layouts' array form has them."""
    chance = np.random.default_rng(5)
    for node in graph.nodes:
        arrays = [values_of(graph.checkpoint, ref, 0, ref.rows).reshape(ref.shape) for ref in node.inputs]
        expected = node.layout.apply(*arrays).reshape(-1, node.shape[-1])
        assert node.layout.shape(*(ref.shape for ref in node.inputs)) == node.shape
        start, stop = sorted(chance.choice(len(expected) + 1, 2, replace=False)) if len(expected) > 1 else (0, 1)
        found = laid_out_values(graph.checkpoint, node, int(start), int(stop))
        assert np.array_equal(found, expected[start:stop]), node.name


@cache
def vocabulary(rows: int) -> dict[str, Value]:
    """A SentencePiece vocabulary of that many tokens, for a runtime that wants one."""
    special = ["<unk>", "<s>", "</s>"]
    tokens = [*special, *(f"<0x{i:02X}>" for i in range(256))]
    tokens += [f"▁w{i}" for i in range(rows - len(tokens))]
    types = [2, 3, 3, *[6] * 256, *[1] * (rows - 259)]
    return {
        "tokenizer.ggml.model": string("llama"),
        "tokenizer.ggml.tokens": array(T.STRING, tokens),
        "tokenizer.ggml.scores": array(T.FLOAT32, [-float(i) for i in range(rows)]),
        "tokenizer.ggml.token_type": array(T.INT32, types),
    }


def write(graph: ModelGraph, path: Path, edit: Callable[[dict[str, np.ndarray]], None] | None = None) -> Path:
    """The model as a GGUF of its own, all F32, by nothing but its graph."""
    keys = {"general.architecture": string(graph.architecture.name)}
    keys |= {key: value for key, value, _ in graph.written()}
    keys |= vocabulary(graph.sizes["n_vocab"])
    tensors = whole(graph)
    if edit:
        edit(tensors)
    write_gguf(path, keys, [(name, block_type("F32"), x.shape, x) for name, x in tensors.items()])
    return path


__all__ = [
    "TINY", "TOKENS", "VOCAB", "Tiny", "check_streaming", "f32", "make", "relative", "shake", "vocabulary", "whole",
    "write",
]
