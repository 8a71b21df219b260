"""Tiny random models of jais's family (`helpers.tiny_models`)."""

from __future__ import annotations

from helpers.models.sizes import HEADS, WIDE
from helpers.tiny import Tiny

MODELS: dict[str, Tiny] = {
    "jais2": Tiny("Jais2", WIDE),
    "jais2 unbiased": Tiny("Jais2", {**HEADS, "attention_bias": False, "mlp_bias": False}),
}
