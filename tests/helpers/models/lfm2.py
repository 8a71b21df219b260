"""Tiny random models of lfm2's family (`helpers.tiny_models`)."""

from __future__ import annotations

from helpers.models.sizes import ONLY_ROPE, VISUAL, WIDE_64
from helpers.tiny import Tiny

CONVOLVED = {
    **WIDE_64, **ONLY_ROPE, "conv_L_cache": 3, "block_auto_adjust_ff_dim": False,
    "layer_types": ["conv", "full_attention", "conv", "full_attention"],
}
LFM_EYES = {
    "vision_config": {
        "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 4,
        "num_patches": 16,
    },
}

MODELS: dict[str, Tiny] = {
    "lfm2": Tiny("Lfm2", CONVOLVED),
    "lfm2 adjusted": Tiny(
        "Lfm2",
        {**CONVOLVED, "block_auto_adjust_ff_dim": True, "block_ffn_dim_multiplier": 1.3, "block_multiple_of": 24},
    ),
    "lfm2moe": Tiny(
        "Lfm2Moe",
        {**CONVOLVED, "num_dense_layers": 1, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40,
         "routed_scaling_factor": 1.5},
    ),
    "lfm2 that sees": Tiny("Lfm2Vl", {**CONVOLVED, "model_type": "lfm2"}, head=VISUAL, outer=LFM_EYES),
}
