"""A block of a Q-Former (BLIP-2): queries attend to themselves and then to states, with a norm behind each part."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ggferry.converters.forward.blocks.softmax_attention import attention
from ggferry.converters.forward.model import Model
from ggferry.converters.forward.towers import _audio as audio

if TYPE_CHECKING:
    from torch import Tensor

EPS = 1e-12
"""Of the norms of the Q-Former: the default of Blip2QFormerConfig, which llama.cpp has for all."""


def block(tower: Model, name: str, y: Tensor, states: Tensor, heads: int) -> Tensor:
    """Return the queries y `(queries, width)` after one block over states `(n, width)`."""
    y = _attention(tower, f"{name}self_attn", y, y, heads)
    y = _attention(tower, f"{name}cross_attn", y, states, heads)
    wide = audio.perceptron(tower, f"{name}ffn_up", f"{name}ffn_down", y)
    return audio.layer_norm(tower, f"{name}ffn_norm", y + wide, EPS)


def _attention(tower: Model, branch: str, x: Tensor, over: Tensor, heads: int) -> Tensor:
    return audio.layer_norm(tower, f"{branch}_norm", x + attention(tower, branch, x, over, heads, output="out"), EPS)
