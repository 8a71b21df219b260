"""Tiny random models of seed_oss's family (`helpers.tiny_models`)."""

from __future__ import annotations

from helpers.models.sizes import WIDE
from helpers.tiny import Tiny

MODELS: dict[str, Tiny] = {
    "seed_oss": Tiny("SeedOss", {**WIDE, "attention_bias": True, "attention_out_bias": False}),
    "seed_oss output bias": Tiny("SeedOss", {**WIDE, "attention_bias": True, "attention_out_bias": True}),
}
