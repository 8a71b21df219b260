"""Tiny random models of cohere's family (`helpers.tiny_models`)."""

from __future__ import annotations

from helpers.models.sizes import FOUR, HEADS, with_rope
from helpers.tiny import Tiny

NORTH = {
    **HEADS, "num_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 40, "prefix_dense_intermediate_size": 88,
    "num_hidden_layers": 5, "sliding_window": 7, "logit_scale": 0.3, "head_dim": 6,
    "layer_types": ["full_attention", *["sliding_attention"] * 3, "full_attention"],
    "mlp_layer_types": ["dense", *["sparse"] * 4], "num_shared_experts": 2,
}

MODELS: dict[str, Tiny] = {
    "command-r": Tiny("Cohere", {**with_rope(), "logit_scale": 0.3}),
    "command-r plus": Tiny("Cohere", {**with_rope(), "use_qk_norm": True, "attention_bias": True}),
    "cohere2": Tiny("Cohere2", {**HEADS, "num_hidden_layers": 5, "sliding_window": 7, "logit_scale": 0.3}),
    "cohere2 otherwise": Tiny("Cohere2", {**HEADS, **FOUR, "attention_bias": True}),
    "cohere2moe": Tiny("Cohere2Moe", NORTH),
    "cohere2moe sigmoid": Tiny(
        "Cohere2Moe",
        {**NORTH, "expert_selection_fn": "sigmoid", "norm_topk_prob": False, "rms_norm_eps": 1e-3,
         "prefix_dense_sliding_window_pattern": 2, "tie_word_embeddings": False},
    ),
}
