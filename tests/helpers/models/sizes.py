"""Sizes and parts of configurations that tiny models of several families share."""

from __future__ import annotations

from typing import Any

from helpers.tiny import BASE, ROPE, VOCAB

LONG = {
    "rope_type": "longrope", "rope_theta": 5000.0, "long_factor": [1.0, 1.7, 2.4, 3.1],
    "short_factor": [1.0, 1.1, 1.2, 1.3], "original_max_position_embeddings": 8,
}


def with_rope(**scaling: Any) -> dict[str, Any]:
    return {**BASE, "rope_parameters": {**ROPE, **scaling}}


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
GPT = {
    "vocab_size": VOCAB, "n_embd": 48, "n_inner": 88, "n_layer": 3, "n_head": 6, "n_positions": 64,
    "bos_token_id": 1, "eos_token_id": 2,
}
HEADS = {**BASE, "num_attention_heads": 8, "num_key_value_heads": 2, "rope_parameters": ROPE}
WIDE = {**HEADS, "head_dim": 12}
FOUR = {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 7}
ROUTED = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
SIGMOID = {
    "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40, "n_shared_experts": 2,
    "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.5, "first_k_dense_replace": 1, "num_hidden_layers": 4,
}
ROPE_YARN = {**ROPE, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
VISUAL = "ForConditionalGeneration"
EIGHT_HEADS: dict[str, Any] = {
    "vocab_size": 328, "hidden_size": 48, "intermediate_size": 88, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "head_dim": 12,
}
WIDE_64 = {**{name: value for name, value in EIGHT_HEADS.items() if name != "head_dim"}, "hidden_size": 64}
ONLY_ROPE = {"rope_parameters": {"rope_theta": 5000.0}}
PARTIAL_ROPE = {"rope_parameters": {"rope_theta": 5000.0, "partial_rotary_factor": 0.5}}
THREE_IN_FOUR = [*["linear_attention"] * 3, "full_attention"]
LATENT = {
    **WIDE_64, "num_hidden_layers": 3, "num_key_value_heads": 8, "kv_lora_rank": 20, "q_lora_rank": 28,
    "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10, "rms_norm_eps": 1e-4,
}
LATENT_ROUTED = {
    **LATENT, **ONLY_ROPE, "moe_intermediate_size": 36, "n_routed_experts": 8, "num_experts_per_tok": 3,
    "n_shared_experts": 2, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.5,
}
INDEXED = {**LATENT_ROUTED, "index_n_heads": 6, "index_head_dim": 14, "index_topk": 5}
ROPE_LLAMA3 = {
    **ROPE, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
OF_KINDS = {
    "full_attention": {**ROPE, "rope_type": "default"},
    "sliding_attention": {"rope_theta": 700.0, "rope_type": "default"},
}
