"""Tiny random models of hrm_text's family (`helpers.tiny_models`)."""

from __future__ import annotations

from typing import Any

from helpers.tiny import VOCAB, Tiny

HRM: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 48, "intermediate_size": 88, "num_hidden_layers": 2, "num_attention_heads": 6,
    "head_dim": 12, "max_position_embeddings": 64, "rope_parameters": {"rope_theta": 5000.0},
}

MODELS: dict[str, Tiny] = {
    "hrm": Tiny("HrmText", {**HRM, "embedding_scale": 3.0}),
    "hrm otherwise": Tiny("HrmText", {**HRM, "H_cycles": 3, "L_cycles": 1, "tie_word_embeddings": True}),
}
