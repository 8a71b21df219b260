"""Tiny random models of step's family (`helpers.tiny_models`)."""

from __future__ import annotations

from typing import Any

from helpers.models.sizes import HEADS, VISUAL
from helpers.tiny import Tiny

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

MODELS: dict[str, Tiny] = {
    "step35": Tiny("Step3p7", STEP, head=VISUAL, outer=STEP_EYES),
    "step35 stretched": Tiny("Step3p7", {**STEP, "rope_parameters": STRETCHED}, head=VISUAL, outer=STEP_EYES),
}
