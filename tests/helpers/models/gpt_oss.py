"""Tiny random models of gpt_oss's family (`helpers.tiny_models`)."""

from __future__ import annotations

from helpers.models.sizes import FOUR, ROPE_YARN, WIDE
from helpers.tiny import Tiny

GPT_OSS = {
    **WIDE, **FOUR, "num_local_experts": 5, "num_experts_per_tok": 3, "intermediate_size": 40,
    "rope_parameters": {**ROPE_YARN, "beta_fast": 2.0, "beta_slow": 0.5, "truncate": False},
}

MODELS: dict[str, Tiny] = {
    "gpt-oss": Tiny("GptOss", GPT_OSS),
    "gpt-oss rounded": Tiny(
        "GptOss", {**GPT_OSS, "rope_parameters": {**ROPE_YARN, "truncate": True}, "tie_word_embeddings": True}
    ),
}
