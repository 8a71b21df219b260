"""Tiny random models of olmo's family (`helpers.tiny_models`)."""

from __future__ import annotations

from helpers.models.sizes import FOUR, HEADS, ROPE_YARN, ROUTED, with_rope
from helpers.tiny import ROPE, Tiny

MODELS: dict[str, Tiny] = {
    "olmo": Tiny("Olmo", {**with_rope(), "clip_qkv": 0.8}),
    "olmo tied": Tiny("Olmo", {**with_rope(), "tie_word_embeddings": True}),
    "olmo2": Tiny("Olmo2", with_rope()),
    "olmo3": Tiny("Olmo3", {**HEADS, **FOUR}),
    "olmo3 yarn": Tiny(
        "Olmo3",
        {**HEADS, **FOUR, "num_attention_heads": 4,
         "rope_parameters": {"full_attention": ROPE_YARN, "sliding_attention": {**ROPE, "rope_type": "default"}}},
    ),
    "olmoe": Tiny("Olmoe", {**HEADS, **ROUTED, "num_key_value_heads": 8, "norm_topk_prob": False}),
    "olmoe grouped": Tiny("Olmoe", {**HEADS, **ROUTED, "norm_topk_prob": True}),
}
