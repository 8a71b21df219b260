"""Tiny random models of exaone's family (`helpers.tiny_models`)."""

from __future__ import annotations

from helpers.models.sizes import FOUR, ROUTED, WIDE
from helpers.tiny import Tiny

MODELS: dict[str, Tiny] = {
    "exaone4": Tiny("Exaone4", {**WIDE, "sliding_window": None, "layer_types": ["full_attention"] * 3}),
    "exaone4 windows": Tiny("Exaone4", {**WIDE, **FOUR}),
    "exaone_moe": Tiny(
        "ExaoneMoe",
        {**WIDE, **FOUR, **ROUTED, "num_experts": 8, "n_group": 4, "topk_group": 2, "num_shared_experts": 2,
         "routed_scaling_factor": 1.5, "first_k_dense_replace": 1},
    ),
}
