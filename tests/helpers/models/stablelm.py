"""Tiny random models of stablelm's family (`helpers.tiny_models`)."""

from __future__ import annotations

from helpers.models.sizes import with_rope
from helpers.tiny import Tiny

MODELS: dict[str, Tiny] = {
    "stablelm": Tiny("StableLm", {**with_rope(partial_rotary_factor=0.5), "use_qkv_bias": True}),
    "stablelm 12b": Tiny(
        "StableLm", {**with_rope(partial_rotary_factor=0.5), "qk_layernorm": True, "use_parallel_residual": True}
    ),
}
