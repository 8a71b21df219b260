"""Kimi's towers (MoonViT): stretched positions, two axes that take turns in pairs, squares of normed patches.

Source: transformers `modeling_kimi_k25.py`; llama.cpp `tools/mtmd/models/kimik25.cpp`.
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

LAYER_NORM = 1e-5
"""Epsilon of the norms of the blocks: torch.nn.LayerNorm's."""


def embed(tower: Model, picture: Tensor, progress: Callable[[int], None]) -> Tensor:
    """Return the rows that stand for a picture, `(squares, width of the text model)`."""
    x = vision.patch_embed(tower, picture)
    rows, columns, width = x.shape
    table = tower.weights.vector("v.position_embd.weight").view(-1, width)
    x = (x + rotation.stretched(table, rows, columns, "bicubic")).view(-1, width)
    inner = vision.with_epsilon(tower, LAYER_NORM)
    turn = rotation.rotated(_angles(tower, rows, columns), tower.rope)
    x = inner.norm("v.post_ln", vision.blocks(inner, x, progress, turn))
    x = vision.shuffled(tower.norm("mm.input_norm", x).view(rows, columns, width), int(tower.sizes["merge"]))
    return tower.linear("mm.2", torch.nn.functional.gelu(tower.linear("mm.1", x)))


def _angles(tower: Model, rows: int, columns: int) -> Tensor:
    """Return the angles of patches: pairs that turn with the column and with the row, in turn or apart."""
    row, column = rotation.axes(rows, columns)
    rate = rotation.frequencies(tower.sizes["n_embd"] // tower.sizes["n_head"] // 2)
    both = (column * rate, row * rate)
    return torch.stack(both, -1).flatten(1) if tower.recipe.axes == "in_turn" else torch.cat(both, -1)


def patches(tower: Model) -> tuple[int, int]:
    """Return rows and columns of patches of the picture on which proofs compare both sides."""
    return 10, 8
