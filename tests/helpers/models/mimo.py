"""Tiny random models of mimo's family (`helpers.tiny_models`)."""

from __future__ import annotations

from helpers.models.sizes import FOUR, WIDE
from helpers.tiny import Tiny

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

MODELS: dict[str, Tiny] = {
    "mimo2": Tiny("MiMoV2Flash", MIMO2),
    "mimo2 otherwise": Tiny(
        "MiMoV2Flash",
        {**MIMO2, "norm_topk_prob": False, "routed_scaling_factor": 1.5, "attention_bias": True,
         "attention_value_scale": None, "n_group": 4, "topk_group": 2},
    ),
}
