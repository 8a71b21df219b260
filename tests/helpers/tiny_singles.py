"""Tiny random models of single models of today, as `tiny_kin`."""

from __future__ import annotations

from typing import Any

from helpers.tiny import BASE, VOCAB, Tiny
from helpers.tiny_todays import HEADS, SEES

OCR_EYES: dict[str, Any] = {
    "vision_config": {
        "sam_config": {
            "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "output_channels": 8, "mlp_dim": 32,
            "image_size": 64, "patch_size": 16, "global_attn_indexes": [0], "downsample_channels": [8, 16],
            "window_size": 2,
        },
        "encoder_config": {
            "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
            "image_size": 28, "patch_size": 14,
        },
    },
}
OCR = {
    **BASE, "num_attention_heads": 8, "num_key_value_heads": 8, "n_routed_experts": 5, "num_experts_per_tok": 2,
    "moe_intermediate_size": 40, "n_shared_experts": 2, "first_k_dense_replace": 1, "routed_scaling_factor": 1.5,
    "rope_parameters": {"rope_theta": 10000.0}, "sliding_window": 7,
}
PICTURES = 8200
"""More tokens than llama.cpp takes for a Chameleon's pictures."""
CHAMELEON: dict[str, Any] = {
    **HEADS, "vocabulary_map": {"<image>": 4}, "pad_token_id": 0,
    "vq_config": {
        "embed_dim": 8, "num_embeddings": 8, "latent_channels": 8, "resolution": 8, "base_channels": 32,
        "channel_multiplier": [1], "num_res_blocks": 1,
    },
}

HRM: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 48, "intermediate_size": 88, "num_hidden_layers": 2, "num_attention_heads": 6,
    "head_dim": 12, "max_position_embeddings": 64, "rope_parameters": {"rope_theta": 5000.0},
}

LIGHTNING: dict[str, Any] = {
    **HEADS, "head_dim": 12, "num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 40,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"], "block_size": 8,
    **{f"{part}_alpha_factor": 1.6 for part in ("full_attn", "linear_attn", "mlp")},
}

STEP_EYES: dict[str, Any] = {"vision_config": {"width": 24, "layers": 1, "heads": 2, "image_size": 28,
                                              "patch_size": 14}}
STEP: dict[str, Any] = {
    **HEADS, "num_hidden_layers": 4, "head_dim": 16, "n_routed_experts": 5, "num_experts_per_tok": 2,
    "moe_intermediate_size": 40, "share_expert_dim": 56, "sliding_window": 7, "num_sliding_attention_heads": 6,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    "moe_layers_enum": "1,2,3", "moe_router_scaling_factor": 1.5, "pad_token_id": 0,
    "swiglu_limits": [0.0, 0.625, 0.0, 0.5], "swiglu_limits_shared": [0.375, 0.0, 0.0, 0.5],
    "rope_parameters": {
        "full_attention": {"rope_theta": 9000.0, "rope_type": "default", "partial_rotary_factor": 0.5},
        "sliding_attention": {"rope_theta": 700.0, "rope_type": "default", "partial_rotary_factor": 1.0},
    },
}
STRETCHED = {
    "full_attention": {
        **STEP["rope_parameters"]["full_attention"], "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
    },
    "sliding_attention": STEP["rope_parameters"]["sliding_attention"],
}

M3_EYES: dict[str, Any] = {
    "vision_config": {"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
                      "image_size": 28, "patch_size": 14},
    "projector_hidden_size": 48,
}
M3: dict[str, Any] = {
    **HEADS, "num_hidden_layers": 4, "head_dim": 16, "num_local_experts": 5, "num_experts_per_tok": 2,
    "intermediate_size": 40, "dense_intermediate_size": 88, "shared_intermediate_size": 40, "rotary_dim": 8,
    "routed_scaling_factor": 1.5, "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    "layer_types": ["full_attention", *["minimax_m3_sparse"] * 3], "index_n_heads": 2, "index_head_dim": 10,
    "index_block_size": 3, "index_topk_blocks": 2, "index_local_blocks": 1,
    "rope_parameters": {"rope_theta": 5000.0, "rope_type": "default", "partial_rotary_factor": 0.5},
}

SINGLES: dict[str, Tiny] = {
    "unlimited ocr": Tiny("UnlimitedOcr", OCR, head=SEES, outer=OCR_EYES),
    "hrm": Tiny("HrmText", {**HRM, "embedding_scale": 3.0}),
    "hrm otherwise": Tiny("HrmText", {**HRM, "H_cycles": 3, "L_cycles": 1, "tie_word_embeddings": True}),
    "minimax-01": Tiny("MiniMax", LIGHTNING),
    "step35": Tiny("Step3p7", STEP, head=SEES, outer=STEP_EYES),
    "step35 stretched": Tiny("Step3p7", {**STEP, "rope_parameters": STRETCHED}, head=SEES, outer=STEP_EYES),
    "minimax-m3": Tiny("MiniMaxM3VL", M3, outer=M3_EYES, whole="MiniMaxM3SparseForConditionalGeneration"),
    "chameleon": Tiny("Chameleon", CHAMELEON, head=SEES),
    "chameleon swin": Tiny(
        "Chameleon",
        {**CHAMELEON, "swin_norm": True, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
        head=SEES,
    ),
}
