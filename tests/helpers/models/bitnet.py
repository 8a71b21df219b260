"""Tiny random models of bitnet's family (`helpers.tiny_models`)."""

from __future__ import annotations

from helpers.models.sizes import HEADS
from helpers.tiny import Tiny

MODELS: dict[str, Tiny] = {
    "bitnet": Tiny("BitNet", {**HEADS, "tie_word_embeddings": True}),
}
