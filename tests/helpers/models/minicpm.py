"""Tiny random models of minicpm's family (`helpers.tiny_models`)."""

from __future__ import annotations

from helpers.models.sizes import LATENT, ONLY_ROPE
from helpers.tiny import Tiny

MODELS: dict[str, Tiny] = {
    "minicpm3": Tiny("MiniCPM3", {**LATENT, **ONLY_ROPE, "scale_emb": 5, "scale_depth": 1.1, "dim_model_base": 24}),
}
