"""Tiny random models of further families of today, as `tiny_todays`: eight heads on two, experts that differ."""

from __future__ import annotations

from helpers.tiny import ROPE, VOCAB, Tiny
from helpers.tiny_todays import FOUR, HEADS, ROUTED, SIGMOID, WIDE

ALPHA = {**ROPE, "rope_type": "dynamic", "alpha": 50.0, "factor": 1.0}
LLAMA3 = {
    **ROPE, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LONGROPE = {
    **ROPE, "rope_type": "longrope", "long_factor": [1.0, 1.7, 2.4], "short_factor": [1.0, 1.1, 1.2],
    "original_max_position_embeddings": 24, "short_mscale": 1.3, "long_mscale": 1.3,
}
ERNIE_MOE = {
    **HEADS, "num_hidden_layers": 5, "moe_intermediate_size": 20, "moe_k": 2, "moe_num_experts": 5,
    "moe_num_shared_experts": 2, "moe_layer_start_index": 1, "tie_word_embeddings": True,
}
NORTH = {
    **HEADS, "num_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 40, "prefix_dense_intermediate_size": 88,
    "num_hidden_layers": 5, "sliding_window": 7, "logit_scale": 0.3, "head_dim": 6,
    "layer_types": ["full_attention", *["sliding_attention"] * 3, "full_attention"],
    "mlp_layer_types": ["dense", *["sparse"] * 4], "num_shared_experts": 2,
}
TRINITY = {
    **WIDE, **ROUTED, "num_hidden_layers": 5, "num_dense_layers": 1, "sliding_window": 7, "num_shared_experts": 2,
    "route_scale": 1.5, "mup_enabled": True,
}
OF_KINDS = {
    "full_attention": {**ROPE, "rope_type": "default"},
    "sliding_attention": {"rope_theta": 700.0, "rope_type": "default"},
}
LAGUNA = {
    **WIDE, **FOUR, **ROUTED, "mlp_layer_types": ["dense", *["sparse"] * 3], "shared_expert_intermediate_size": 56,
    "layer_types": ["full_attention", *["sliding_attention"] * 2, "full_attention"],
    "moe_routed_scaling_factor": 1.5, "num_attention_heads_per_layer": [8, 6, 8, 4],
    "rope_parameters": {
        "full_attention": {**OF_KINDS["full_attention"], "partial_rotary_factor": 0.5},
        "sliding_attention": {**OF_KINDS["sliding_attention"], "partial_rotary_factor": 1.0},
    },
}
MIMO2 = {
    **WIDE, **FOUR, "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40, "v_head_dim": 10,
    "layer_types": ["full_attention", *["sliding_attention"] * 2, "full_attention"],
    "rope_parameters": {
        kind: {**own, "partial_rotary_factor": 0.5}
        for kind, own in (
            ("full_attention", {"rope_theta": 9000.0, "rope_type": "default"}),
            ("sliding_attention", {"rope_theta": 700.0, "rope_type": "default"}),
        )
    },
}
DBRX = {
    "vocab_size": VOCAB, "d_model": 48, "n_heads": 8, "n_layers": 3, "max_seq_len": 64, "rope_parameters": ROPE,
    "attn_config": {"kv_n_heads": 2, "clip_qkv": 0.8, "rope_theta": 5000.0},
    "ffn_config": {"ffn_hidden_size": 40, "moe_num_experts": 5, "moe_top_k": 2},
}

FURTHER: dict[str, Tiny] = {
    "arcee": Tiny("Arcee", {**WIDE, "rope_parameters": LLAMA3}),
    "arcee biases": Tiny("Arcee", {**HEADS, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "apertus": Tiny("Apertus", {**HEADS, "rope_parameters": LLAMA3}),
    "ernie4_5": Tiny("Ernie4_5", {**WIDE, "tie_word_embeddings": True}),
    "ernie4_5 biases": Tiny("Ernie4_5", {**WIDE, "use_bias": True, "tie_word_embeddings": False}),
    "ernie4_5_moe": Tiny("Ernie4_5_Moe", ERNIE_MOE),
    "ernie4_5_moe between": Tiny("Ernie4_5_Moe", {**ERNIE_MOE, "moe_layer_interval": 2, "moe_num_shared_experts": 0,
                                                  "num_hidden_layers": 6}),
    "hunyuan dense": Tiny("HunYuanDenseV1", WIDE),
    "hunyuan dense alpha": Tiny("HunYuanDenseV1", {**WIDE, "rope_parameters": ALPHA}),
    "hunyuan moe": Tiny("HunYuanMoEV1", {**WIDE, "num_experts": 5, "moe_topk": 2, "intermediate_size": 40}),
    "phimoe": Tiny(
        "Phimoe",
        {**HEADS, "num_local_experts": 5, "intermediate_size": 40, "attention_bias": True, "lm_head_bias": True,
         "router_jitter_noise": 0.2, "sliding_window": 7},
    ),
    "phimoe longrope": Tiny(
        "Phimoe",
        {**HEADS, "num_local_experts": 5, "intermediate_size": 40, "rope_parameters": LONGROPE,
         "original_max_position_embeddings": 24},  # transformers takes no other than the short factors here
    ),
    "dots1": Tiny(
        "Dots1", {**WIDE, **SIGMOID, "num_key_value_heads": 8, "norm_topk_prob": True, "sliding_window": None}
    ),
    "dots1 grouped": Tiny("Dots1", {**WIDE, **SIGMOID, **FOUR, "max_window_layers": 4}),
    "solar open": Tiny("SolarOpen", {**WIDE, **SIGMOID, "first_k_dense_replace": 0}),
    "cohere2": Tiny("Cohere2", {**HEADS, "num_hidden_layers": 5, "sliding_window": 7, "logit_scale": 0.3}),
    "cohere2 otherwise": Tiny("Cohere2", {**HEADS, **FOUR, "attention_bias": True}),
    "cohere2moe": Tiny("Cohere2Moe", NORTH),
    "cohere2moe sigmoid": Tiny(
        "Cohere2Moe",
        {**NORTH, "expert_selection_fn": "sigmoid", "norm_topk_prob": False, "rms_norm_eps": 1e-3,
         "prefix_dense_sliding_window_pattern": 2, "tie_word_embeddings": False},
    ),
    "afmoe": Tiny("Afmoe", TRINITY),
    "afmoe otherwise": Tiny("Afmoe", {**TRINITY, **FOUR, "mup_enabled": False}),
    "mellum": Tiny("Mellum", {**WIDE, **FOUR, **ROUTED, "rope_parameters": OF_KINDS}),
    "mellum one base": Tiny(
        "Mellum", {**WIDE, **FOUR, **ROUTED, "rope_parameters": dict.fromkeys(OF_KINDS, OF_KINDS["full_attention"])}
    ),
    "laguna": Tiny("Laguna", LAGUNA),
    "laguna windows first": Tiny("Laguna", {**LAGUNA, **FOUR}),
    "laguna elements": Tiny(
        "Laguna",
        {**LAGUNA, "gating": "per-element", "layer_types": ["full_attention"] * 4, "tie_word_embeddings": True},
    ),
    "hy_v3": Tiny("HYV3", {**WIDE, **ROUTED, "mlp_layer_types": ["dense", "sparse", "dense"], "num_shared_experts": 2}),
    "dbrx": Tiny("Dbrx", DBRX),
    "mimo2": Tiny("MiMoV2Flash", MIMO2),
    "mimo2 otherwise": Tiny(
        "MiMoV2Flash",
        {**MIMO2, "norm_topk_prob": False, "routed_scaling_factor": 1.5, "attention_bias": True,
         "attention_value_scale": None, "n_group": 4, "topk_group": 2},
    ),
}
