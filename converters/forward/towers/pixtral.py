"""Pixtral's tower: rotated along two axes that take turns, squares of patches merged, and rows that end with a token.

Source: transformers `modeling_pixtral.py`, `modeling_mistral3.py`; llama.cpp `tools/mtmd/models/pixtral.cpp`. Only
llama.cpp puts the token at the end of rows; in transformers it is one of the text's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ggferry.converters.forward.model import Model
from ggferry.converters.forward.towers import _rotation as rotation
from ggferry.converters.forward.towers import _vision as vision
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor


def embed(tower: Model, picture: Tensor, progress: Callable[[int], None]) -> Tensor:
    """Return the rows that stand for a picture, `(squares + row ends, width of the text model)`."""
    x = vision.patch_embed(tower, picture)
    rows, columns, width = x.shape
    x = tower.norm("v.pre_ln", x.view(-1, width))
    turn = rotation.rotated(rotation.in_turn(rows, columns, width // tower.sizes["n_head"]), tower.rope)
    x, side = vision.blocks(tower, x, progress, turn), int(tower.sizes.get("merge") or 1)
    if tower.has("mm.patch_merger"):
        squares = rotation.shuffled_by_channel(tower.norm("mm.input_norm", x).view(rows, columns, -1), side)
        x = tower.linear("mm.patch_merger", squares)
    x = tower.linear("mm.2", torch.nn.functional.gelu(tower.linear("mm.1", x)))
    return ended(x.view(rows // side, columns // side, -1), row_end(tower))


def row_end(tower: Model) -> Tensor | None:
    """Return the embedding at the end of rows, `(1, 1, width)`; a source has it among those of all tokens."""
    if not tower.weights.has("v.token_embd.img_break"):
        return None
    at = tower.sizes.get("img_break")
    found = (
        tower.weights.vector("v.token_embd.img_break")
        if at is None
        else tower.weights.rows("v.token_embd.img_break", [at])
    )
    return found.view(1, 1, -1)


def ended(grid: Tensor, end: Tensor | None) -> Tensor:
    """Return a grid `(rows, columns, width)` row by row, each but the last with `end` behind it."""
    if end is None:
        return grid.flatten(0, 1)
    return torch.cat((grid, end.expand(len(grid), 1, -1)), 1).flatten(0, 1)[:-1]
