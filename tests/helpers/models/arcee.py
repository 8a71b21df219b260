"""Tiny random models of arcee's family (`helpers.tiny_models`)."""

from __future__ import annotations

from helpers.models.sizes import HEADS, ROPE_LLAMA3, WIDE
from helpers.tiny import Tiny

MODELS: dict[str, Tiny] = {
    "arcee": Tiny("Arcee", {**WIDE, "rope_parameters": ROPE_LLAMA3}),
    "arcee biases": Tiny("Arcee", {**HEADS, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
}
