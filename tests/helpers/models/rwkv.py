"""Tiny random models of rwkv's family (`helpers.tiny_models`)."""

from __future__ import annotations

from helpers.tiny import VOCAB, Tiny

RWKV4 = {"vocab_size": VOCAB, "hidden_size": 48, "num_hidden_layers": 3, "context_length": 64}

MODELS: dict[str, Tiny] = {
    "rwkv": Tiny("Rwkv", {**RWKV4, "intermediate_size": 88, "rescale_every": 0}),
    "rwkv tied": Tiny("Rwkv", {**RWKV4, "tie_word_embeddings": True}),
}
