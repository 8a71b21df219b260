"""Tiny random models of apertus's family (`helpers.tiny_models`)."""

from __future__ import annotations

from helpers.models.sizes import HEADS, ROPE_LLAMA3
from helpers.tiny import Tiny

MODELS: dict[str, Tiny] = {
    "apertus": Tiny("Apertus", {**HEADS, "rope_parameters": ROPE_LLAMA3}),
}
