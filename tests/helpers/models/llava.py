"""Tiny random models of llava's family (`helpers.tiny_models`)."""

from __future__ import annotations

from helpers.models.sizes import HEADS, VISUAL, WIDE
from helpers.tiny import Tiny

CLIP = {
    "vision_config": {
        "model_type": "clip_vision_model", "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 2, "image_size": 16, "patch_size": 8, "projection_dim": 24,
    },
    "tie_word_embeddings": False,
}

MODELS: dict[str, Tiny] = {
    "llava": Tiny("Llava", {**WIDE, "model_type": "llama"}, head=VISUAL, outer=CLIP),
    "llava qwen2": Tiny("Llava", {**HEADS, "model_type": "qwen2"}, head=VISUAL, outer=CLIP),
}
