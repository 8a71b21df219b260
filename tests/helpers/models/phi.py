"""Tiny random models of phi's family (`helpers.tiny_models`)."""

from __future__ import annotations

from helpers.models.sizes import HEADS, LONG, with_rope
from helpers.tiny import BASE, ROPE, Tiny

LONGROPE = {
    **ROPE, "rope_type": "longrope", "long_factor": [1.0, 1.7, 2.4], "short_factor": [1.0, 1.1, 1.2],
    "original_max_position_embeddings": 24, "short_mscale": 1.3, "long_mscale": 1.3,
}

MODELS: dict[str, Tiny] = {
    "phi2": Tiny("Phi", {**with_rope(partial_rotary_factor=0.5), "num_key_value_heads": 6}),
    "phi3": Tiny("Phi3", {**with_rope(), "pad_token_id": 0}),
    "phi3 tied, partial": Tiny(
        "Phi3",
        {**with_rope(partial_rotary_factor=0.75), "tie_word_embeddings": True, "pad_token_id": 0, "sliding_window": 7},
    ),
    "phi3 longrope": Tiny(
        "Phi3", {**BASE, "rope_parameters": LONG, "original_max_position_embeddings": 8, "pad_token_id": 0}
    ),
    "phi3 longrope, old": Tiny(
        "Phi3", {**BASE, "rope_parameters": LONG, "original_max_position_embeddings": 8, "pad_token_id": 0},
        {"rope_theta": 5000.0, "original_max_position_embeddings": 8,
         "rope_scaling": {"type": "su", "long_factor": LONG["long_factor"], "short_factor": LONG["short_factor"]}},
    ),
    "phimoe": Tiny(
        "Phimoe",
        {**HEADS, "num_local_experts": 5, "intermediate_size": 40, "attention_bias": True, "lm_head_bias": True,
         "router_jitter_noise": 0.2, "sliding_window": 7},
    ),
    "phimoe longrope": Tiny(
        "Phimoe",
        {**HEADS, "num_local_experts": 5, "intermediate_size": 40, "rope_parameters": LONGROPE,
         "original_max_position_embeddings": 24},  # transformers takes no other than the short factors here
    ),
}
