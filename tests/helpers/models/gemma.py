"""Tiny random models of gemma's family (`helpers.tiny_models`)."""

from __future__ import annotations

from typing import Any

from helpers.models.sizes import HEADS, WIDE, with_rope
from helpers.tiny import BASE, Tiny

GEMMA3 = {
    **BASE, "head_dim": 16, "num_hidden_layers": 7, "sliding_window": 8, "query_pre_attn_scalar": 24,
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 9000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 700.0},
    },
}
GEMMA4: dict[str, Any] = {
    **HEADS, "num_hidden_layers": 6, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "head_dim": 10, "global_head_dim": 12, "sliding_window": 7, "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 328, "final_logit_softcapping": 20.0,
    "rope_parameters": {
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 9000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 700.0},
    },
}
GEMMA3N: dict[str, Any] = {
    **WIDE, "num_hidden_layers": 5, "layer_types": ["sliding_attention", "full_attention"] * 2 + ["full_attention"],
    "intermediate_size": [88, 88, 80, 88, 88], "sliding_window": 7, "hidden_size_per_layer_input": 20,
    "vocab_size_per_layer_input": 300, "num_kv_shared_layers": 0, "laurel_rank": 6, "altup_num_inputs": 3,
    "altup_active_idx": 0, "activation_sparsity_pattern": [0.9, 0.0, 0.6, 0.95, 0.0], "final_logit_softcapping": 20.0,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 9000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 700.0},
    },
}

MODELS: dict[str, Tiny] = {
    "gemma": Tiny("Gemma", {**with_rope(), "head_dim": 16}),
    "gemma2": Tiny("Gemma2", {**with_rope(), "head_dim": 16, "sliding_window": 7, "query_pre_attn_scalar": 24}),
    "gemma2 caps": Tiny(
        "Gemma2",
        {**with_rope(), "head_dim": 16, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 4.0,
         "final_logit_softcapping": None, "layer_types": ["full_attention"] * 3},
    ),
    "gemma3": Tiny("Gemma3", GEMMA3),
    "gemma3, old": Tiny(
        "Gemma3", GEMMA3,
        {"rope_theta": 9000.0, "rope_local_base_freq": 700.0, "rope_scaling": {"rope_type": "linear", "factor": 4.0},
         "sliding_window_pattern": 6, "layer_types": None},
    ),
    "gemma4 keys as values": Tiny(
        "Gemma4", {**GEMMA4, "attention_k_eq_v": True, "num_global_key_value_heads": 4, "num_key_value_heads": 2}
    ),
    "gemma4 shared": Tiny(
        "Gemma4", {**GEMMA4, "num_kv_shared_layers": 3, "use_double_wide_mlp": True, "hidden_size_per_layer_input": 20}
    ),
    "gemma4 experts": Tiny(
        "Gemma4",
        {**GEMMA4, "enable_moe_block": True, "num_experts": 5, "top_k_experts": 2, "moe_intermediate_size": 40},
    ),
    "gemma3n": Tiny("Gemma3n", GEMMA3N),
    "gemma3n shared": Tiny("Gemma3n", {**GEMMA3N, "num_kv_shared_layers": 2, "altup_active_idx": 1}),
    "gemma4 unified": Tiny("Gemma4Unified", {**GEMMA4, "attention_k_eq_v": True, "num_global_key_value_heads": 4}),
}
