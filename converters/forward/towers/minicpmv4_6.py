"""MiniCPM-V 4.6's tower: nearest positions, squares that see each other and become one between blocks, and once more.

Source: transformers `modeling_minicpmv4_6.py`; llama.cpp `tools/mtmd/models/minicpmv.cpp`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt
from typing import TYPE_CHECKING

from ggferry.converters.forward.model import Model
from ggferry.converters.forward.towers import _vision as vision
from ggferry.converters.forward.towers._frames import SQUARE
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor

LAYER_NORM = 1e-6
"""Epsilon of the norm of the last squares."""


def embed(tower: Model, picture: Tensor, progress: Callable[[int], None]) -> Tensor:
    """Return the rows that stand for a picture, `(rows / 4 · columns / 4, width of the text model)`."""
    x = vision.patch_embed(tower, picture)
    rows, columns, width = x.shape
    table = tower.weights.vector("v.position_embd.weight").view(-1, width)
    side = isqrt(len(table))
    high, wide = (_nearest(count, side) for count in (rows, columns))
    x = (x + table[high[:, None] * side + wide]).view(-1, width)
    (insert,) = tower.sizes["insert"]
    for number in range(tower.sizes["n_layer"]):
        x = vision.block(tower, f"v.blk.{number}.", x)
        if number == insert:
            x = _merged(tower, x.view(rows, columns, width))
            rows, columns = rows // SQUARE, columns // SQUARE
        progress(1)
    squares = vision.shuffled(tower.norm("v.post_ln", x).view(rows, columns, width), SQUARE)
    return vision.network(tower, "mm.up", "mm.down", vision.layer_norm(tower, "mm.input_norm", squares, LAYER_NORM))


def _nearest(count: int, side: int) -> Tensor:
    """Return for each of `count` patches of an edge the position of `side` that it has.

    In float32, as transformers' `get_vision_nearest_position_ids` computes it.
    """
    borders = torch.arange(1 / side, 1.0, 1 / side, dtype=torch.float32)
    return torch.bucketize(torch.arange(count) / count, borders, right=True)


def _merged(tower: Model, grid: Tensor) -> Tensor:
    """Return one state of every square of a grid `(rows, columns, width)`, whose patches see each other first."""
    name, width = "v.vit_merger.", grid.shape[-1]
    x = vision.shuffled(grid, SQUARE).view(-1, width)
    read = tower.norm(f"{name}ln1", x)
    q, k, v = (
        tower.linear(f"{name}attn_{part}", read).view(
            -1, SQUARE**2, tower.sizes["n_head"], width // tower.sizes["n_head"]
        )
        for part in "qkv"
    )
    scores = torch.einsum("sqhd,skhd->shqk", q, k) * q.shape[-1] ** -0.5
    seen = torch.einsum("shqk,skhd->sqhd", torch.softmax(scores, -1), v)
    x = (x + tower.linear(f"{name}attn_out", seen.reshape(-1, width))).view(-1, SQUARE**2 * width)
    up = tower.activate(tower.linear(f"{name}ds_ffn_up", tower.norm(f"{name}ds_ln", x)))
    return tower.linear(f"{name}ds_ffn_down", up) + x.view(-1, SQUARE**2, width).mean(1)


def patches(tower: Model) -> tuple[int, int]:
    """Return rows and columns of patches of the picture on which proofs compare both sides."""
    return 12, 8
