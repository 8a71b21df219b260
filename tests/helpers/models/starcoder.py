"""Tiny random models of starcoder's family (`helpers.tiny_models`)."""

from __future__ import annotations

from helpers.models.sizes import GPT, with_rope
from helpers.tiny import Tiny

MODELS: dict[str, Tiny] = {
    "starcoder2": Tiny("Starcoder2", {**with_rope(), "sliding_window": 7}),
    "starcoder2 unbiased": Tiny("Starcoder2", {**with_rope(), "use_bias": False, "tie_word_embeddings": False}),
    "starcoder": Tiny("GPTBigCode", GPT),
    "starcoder heads": Tiny("GPTBigCode", {**GPT, "multi_query": False, "activation_function": "gelu_fast"}),
}
