"""Tiny random models of smollm's family (`helpers.tiny_models`)."""

from __future__ import annotations

from helpers.models.sizes import HEADS
from helpers.tiny import Tiny

MODELS: dict[str, Tiny] = {
    "smollm3": Tiny("SmolLM3", {**HEADS, "num_hidden_layers": 5, "pad_token_id": 0}),
    "smollm3 otherwise": Tiny(
        "SmolLM3", {**HEADS, "num_hidden_layers": 4, "no_rope_layers": [0, 1, 1, 0], "pad_token_id": 0}
    ),
}
