"""Tiny random models of bloom's family (`helpers.tiny_models`)."""

from __future__ import annotations

from helpers.tiny import VOCAB, Tiny

BLOOM = {"vocab_size": VOCAB, "hidden_size": 48, "n_layer": 3, "n_head": 6, "seq_length": 64}

MODELS: dict[str, Tiny] = {
    "bloom": Tiny("Bloom", BLOOM),
}
