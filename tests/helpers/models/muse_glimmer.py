"""Tiny random models of muse_glimmer's family (`helpers.tiny_models`)."""

from __future__ import annotations

from helpers.models.sizes import VISUAL, WIDE
from helpers.tiny import Tiny

MUSE_EYES = {
    "vision_config": {
        "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 4,
        "pos_emb_height": 4, "pos_emb_width": 4,
    },
    "out_hidden_size": 96, "projector_hidden_size": 32, "tie_word_embeddings": False,
}

MODELS: dict[str, Tiny] = {
    "muse glimmer": Tiny(
        "MuseGlimmer",
        {**WIDE, "num_hidden_layers": 5, "sliding_window": 7, "qk_scale_factor": 1.7, "output_multiplier": 0.6,
         "final_logit_softcapping": 8.0, "pad_token_id": 0},
        head=VISUAL, outer=MUSE_EYES,
    ),
}
