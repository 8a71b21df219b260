"""Tiny random models of paddleocr's family (`helpers.tiny_models`)."""

from __future__ import annotations

from helpers.models.sizes import HEADS, VISUAL
from helpers.tiny import ROPE, Tiny

AXES = {"rope_parameters": {**ROPE, "rope_type": "default", "mrope_section": [2, 2, 2]}}
OCR_EYES = {
    "vision_config": {
        "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 4,
        "image_size": 16,
    },
    "tie_word_embeddings": True,
}

MODELS: dict[str, Tiny] = {
    "paddleocr": Tiny("PaddleOCRVL", {**HEADS, "head_dim": 12, **AXES}, head=VISUAL, outer=OCR_EYES),
}
