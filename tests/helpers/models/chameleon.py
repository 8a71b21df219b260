"""Tiny random models of chameleon's family (`helpers.tiny_models`)."""

from __future__ import annotations

from typing import Any

from helpers.models.sizes import HEADS, VISUAL
from helpers.tiny import Tiny

CHAMELEON: dict[str, Any] = {
    **HEADS, "vocabulary_map": {"<image>": 4}, "pad_token_id": 0,
    "vq_config": {
        "embed_dim": 8, "num_embeddings": 8, "latent_channels": 8, "resolution": 8, "base_channels": 32,
        "channel_multiplier": [1], "num_res_blocks": 1,
    },
}

MODELS: dict[str, Tiny] = {
    "chameleon": Tiny("Chameleon", CHAMELEON, head=VISUAL),
    "chameleon swin": Tiny(
        "Chameleon",
        {**CHAMELEON, "swin_norm": True, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
        head=VISUAL,
    ),
}
