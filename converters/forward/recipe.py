"""How a decoder computes, as data: the conventions in which model families and dialects differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Recipe:
    """Conventions of one forward pass. Sizes come from the hparams (`n_embd`, `n_head`, `n_head_kv`, `head_dim`,
    `n_rot`, `eps`, `rope_base`); tensors are named by role.

    `norm`: 'rms' | 'layer'. `rope`: 'pairs' (2i, 2i+1 turn together: Meta, GGML, GGUF's llama) | 'halves' (i, i+d/2:
    Hugging Face, NeoX) | 'none'. `ffn`: 'gated' (down(act(gate) · up)) | 'plain' (down(act(up))). `activation`:
    'silu' | 'gelu' | 'gelu_tanh' | 'relu'.
    """

    norm: str = "rms"
    rope: str = "pairs"
    ffn: str = "gated"
    activation: str = "silu"


def recipe_of(*layers: Mapping[str, Any]) -> Recipe:
    """A recipe from an architecture's base conventions and what a dialect does differently."""
    known = {field.name for field in fields(Recipe)}
    recipe = Recipe()
    for conventions in layers:
        unknown = set(conventions) - known
        if unknown:
            raise ValueError(f"no such convention: {sorted(unknown)[0]}")
        recipe = replace(recipe, **conventions)
    return recipe
