"""Tiny random models of jamba's family (`helpers.tiny_models`)."""

from __future__ import annotations

from helpers.models.sizes import WIDE_64
from helpers.tiny import Tiny

JAMBA = {
    "mamba_d_state": 10, "mamba_dt_rank": 5, "mamba_d_conv": 3, "attn_layer_period": 4, "attn_layer_offset": 1,
    "num_experts": 5, "num_experts_per_tok": 2,
}

MODELS: dict[str, Tiny] = {
    "jamba": Tiny("Jamba", {**WIDE_64, **JAMBA}),
}
