"""InternVL's tower: a class token before the patches, learned positions, squares of patches through a network.

Source: transformers `modeling_internvl.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ggferry.converters.forward.model import Model
from ggferry.converters.forward.towers import _vision as vision
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor

LAYER_NORM = 1e-5
"""Epsilon of torch.nn.LayerNorm, which the projector's norm is."""


def embed(tower: Model, picture: Tensor, progress: Callable[[int], None]) -> Tensor:
    """Return the rows that stand for a picture, `(squares, width of the text model)`."""
    x = vision.patch_embed(tower, picture)
    rows, columns, width = x.shape
    first = tower.weights.vector("v.class_embd") + tower.weights.vector("v.position_embd.weight")[:width]
    patches = (x + vision.table_positions(tower, rows, columns, first=1)).view(-1, width)
    x = vision.blocks(tower, torch.cat((first[None], patches)), progress)[1:]
    if tower.has("v.post_ln"):
        x = tower.norm("v.post_ln", x)
    squares = vision.shuffled(x.view(rows, columns, width), int(tower.sizes["merge"]))
    x = tower.linear("mm.model.mlp.1", vision.layer_norm(tower, "mm.model.mlp.0", squares, LAYER_NORM))
    return tower.linear("mm.model.mlp.3", torch.nn.functional.gelu(x))
