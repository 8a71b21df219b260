"""Tiny random models of ernie's family (`helpers.tiny_models`)."""

from __future__ import annotations

from helpers.models.sizes import HEADS, WIDE
from helpers.tiny import Tiny

ERNIE_MOE = {
    **HEADS, "num_hidden_layers": 5, "moe_intermediate_size": 20, "moe_k": 2, "moe_num_experts": 5,
    "moe_num_shared_experts": 2, "moe_layer_start_index": 1, "tie_word_embeddings": True,
}

MODELS: dict[str, Tiny] = {
    "ernie4_5": Tiny("Ernie4_5", {**WIDE, "tie_word_embeddings": True}),
    "ernie4_5 biases": Tiny("Ernie4_5", {**WIDE, "use_bias": True, "tie_word_embeddings": False}),
    "ernie4_5_moe": Tiny("Ernie4_5_Moe", ERNIE_MOE),
    "ernie4_5_moe between": Tiny("Ernie4_5_Moe", {**ERNIE_MOE, "moe_layer_interval": 2, "moe_num_shared_experts": 0,
                                                  "num_hidden_layers": 6}),
}
