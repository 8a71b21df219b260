"""Tiny random models of dots's family (`helpers.tiny_models`)."""

from __future__ import annotations

from typing import Any

from helpers.models.sizes import FOUR, LATENT, SIGMOID, VISUAL, WIDE
from helpers.tiny import Tiny

DOTS: dict[str, Any] = {
    **LATENT, "hidden_size": 48, "num_hidden_layers": 5, "num_attention_heads": 6, "num_key_value_heads": 6,
    "head_dim": 20, "moe_intermediate_size": 36, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 2,
    "shared_experts_intermediate_size": 36, "routed_scaling_factor": 1.5, "sliding_window": 7, "index_n_heads": 3,
    "index_head_dim": 64, "index_topk": 5, "swa_num_attention_heads": 4, "swa_num_key_value_heads": 4,
    "swa_q_lora_rank": 28, "swa_kv_lora_rank": 24, "swa_head_dim": 24, "swa_qk_nope_head_dim": 16,
    "swa_qk_rope_head_dim": 8, "swa_v_head_dim": 14, "pad_token_id": 0, "swa_rope_theta": 700.0, "rope_theta": 9000.0,
    "layer_types": ["indexed_attention", *["sliding_attention"] * 2, "indexed_attention", "sliding_attention"],
}
DOTS_PUBLISHED: dict[str, Any] = {
    **{key: value for key, value in DOTS.items() if key.startswith(("swa_", "rope_"))}, "per_layer_config": None,
    "layer_types": [kind.replace("indexed", "full") for kind in DOTS["layer_types"]], "sliding_window": None,
    "sliding_window_size": 7, "use_dsa": True, "mlp_layer_types": None, "first_k_dense_replace": 1,
    "apply_mla_qkv_lora_rescale": True, "moe_shared_expert_intermediate_size": 36, "topk_method": "noaux_tc",
    "scoring_func": "sigmoid", "shared_experts_intermediate_size": None, "attention_gate_type": "headwise",
    "swa_attention_gate_type": "headwise", "k_rope_only_layernorm": True, "normalization": "RMSNorm",
}
DOTS_EYES = {
    "vision_config": {
        "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 4,
        "moe_intermediate_size": 16, "mlp_layer_types": ["dense", "dense"], "adapter_in_dim": 24, "adapter_out_dim": 48,
    },
    "audio_config": {
        "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
        "downsample_hidden_size": 12, "feature_size": 16, "adapter_input_size": 24, "adapter_out_dim": 48,
    },
    "tie_word_embeddings": False,
}

MODELS: dict[str, Tiny] = {
    "dots3 note": Tiny("Dots3Note", DOTS),
    "dots3 note, published": Tiny("Dots3Note", DOTS, DOTS_PUBLISHED),
    "dots3 note that sees": Tiny("Dots3Note", DOTS, head=VISUAL, outer=DOTS_EYES),
    "dots1": Tiny(
        "Dots1", {**WIDE, **SIGMOID, "num_key_value_heads": 8, "norm_topk_prob": True, "sliding_window": None}
    ),
    "dots1 grouped": Tiny("Dots1", {**WIDE, **SIGMOID, **FOUR, "max_window_layers": 4}),
}
