"""Tiny random models of afmoe's family (`helpers.tiny_models`)."""

from __future__ import annotations

from helpers.models.sizes import FOUR, ROUTED, WIDE
from helpers.tiny import Tiny

TRINITY = {
    **WIDE, **ROUTED, "num_hidden_layers": 5, "num_dense_layers": 1, "sliding_window": 7, "num_shared_experts": 2,
    "route_scale": 1.5, "mup_enabled": True,
}

MODELS: dict[str, Tiny] = {
    "afmoe": Tiny("Afmoe", TRINITY),
    "afmoe otherwise": Tiny("Afmoe", {**TRINITY, **FOUR, "mup_enabled": False}),
}
