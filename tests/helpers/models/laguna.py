"""Tiny random models of laguna's family (`helpers.tiny_models`)."""

from __future__ import annotations

from helpers.models.sizes import FOUR, OF_KINDS, ROUTED, WIDE
from helpers.tiny import Tiny

LAGUNA = {
    **WIDE, **FOUR, **ROUTED, "mlp_layer_types": ["dense", *["sparse"] * 3], "shared_expert_intermediate_size": 56,
    "layer_types": ["full_attention", *["sliding_attention"] * 2, "full_attention"],
    "moe_routed_scaling_factor": 1.5, "num_attention_heads_per_layer": [8, 6, 8, 4],
    "rope_parameters": {
        "full_attention": {**OF_KINDS["full_attention"], "partial_rotary_factor": 0.5},
        "sliding_attention": {**OF_KINDS["sliding_attention"], "partial_rotary_factor": 1.0},
    },
}

MODELS: dict[str, Tiny] = {
    "laguna": Tiny("Laguna", LAGUNA),
    "laguna windows first": Tiny("Laguna", {**LAGUNA, **FOUR}),
    "laguna elements": Tiny(
        "Laguna",
        {**LAGUNA, "gating": "per-element", "layer_types": ["full_attention"] * 4, "tie_word_embeddings": True},
    ),
}
