"""Tiny random models of mellum's family (`helpers.tiny_models`)."""

from __future__ import annotations

from helpers.models.sizes import FOUR, OF_KINDS, ROUTED, WIDE
from helpers.tiny import Tiny

MODELS: dict[str, Tiny] = {
    "mellum": Tiny("Mellum", {**WIDE, **FOUR, **ROUTED, "rope_parameters": OF_KINDS}),
    "mellum one base": Tiny(
        "Mellum", {**WIDE, **FOUR, **ROUTED, "rope_parameters": dict.fromkeys(OF_KINDS, OF_KINDS["full_attention"])}
    ),
}
