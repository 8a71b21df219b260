"""Llama 4's tower: a class token behind the patches, a rotation of pairs along two axes, squares of patches merged.

Source: transformers `modeling_llama4.py`; llama.cpp `tools/mtmd/models/llama4.cpp`.
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
    """Return the rows that stand for a picture, `(squares, width of the text model)`."""
    x = vision.patch_embed(tower, picture)
    rows, columns, width = x.shape
    table = int(tower.sizes["image_size"]) // int(tower.sizes["patch_size"])
    last = tower.weights.rows("v.position_embd.weight", [table * table])
    patches = (x + vision.table_positions(tower, rows, columns)).view(-1, width)
    x = torch.cat((patches, tower.weights.vector("v.class_embd")[None] + last))
    x = vision.blocks(
        tower, tower.norm("v.pre_ln", x), progress, rotation.rotated(angles(tower, rows, columns), tower.rope)
    )
    x = tower.norm("v.post_ln", x)[:-1].view(rows, columns, width)
    x = vision.shuffled(x, int(tower.sizes["merge"]))
    for name in ("mm.model.mlp.1", "mm.model.mlp.2"):
        x = torch.nn.functional.gelu(tower.linear(name, x))
    return tower.linear("mm.model.fc", x)


def angles(tower: Model, rows: int, columns: int) -> Tensor:
    """Return the angles of patches, by columns and then rows, both counted from 1: `(patches + 1, width / 2)`.

    The last ones, of the class token, are zero.
    """
    row, column = rotation.axes(rows, columns)
    rate = rotation.frequencies(tower.sizes["n_embd"] // tower.sizes["n_head"] // 2)
    found = torch.cat(((column + 1) * rate, (row + 1) * rate), -1)
    return torch.cat((found, torch.zeros_like(found[:1])))
