"""Muse Glimmer's tower: sampled positions, rotation along two axes from one on, windows, squares through a network.

The text model norms these rows as it does the embeddings of tokens.
Source: transformers `modeling_muse_glimmer.py`; llama.cpp `tools/mtmd/models/muse-glimmer.cpp`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt
from typing import TYPE_CHECKING

from ggferry.converters.forward.model import Model
from ggferry.converters.forward.towers import _rotation as rotation
from ggferry.converters.forward.towers import _vision as vision
from ggferry.converters.forward.towers._frames import SQUARE
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor

LAYER_NORM = 1e-5
"""Epsilon of the norms of the blocks."""
EVERY = 4
"""Every so many blocks, and the last, see the whole picture."""


def embed(tower: Model, picture: Tensor, progress: Callable[[int], None]) -> Tensor:
    """Return the rows that stand for a picture, `(squares, width of the text model)`."""
    size, count = int(tower.sizes["patch_size"]), int(tower.sizes["n_layer"])
    kernel = tower.weights.vector("v.patch_embd.weight").view(tower.sizes["n_embd"], -1, len(picture), size, size)
    x = torch.nn.functional.conv2d(picture[None], kernel.sum(1), stride=size)[0].permute(1, 2, 0)
    rows, columns, width = x.shape
    table = tower.weights.vector("v.position_embd.weight").view(-1, width)
    x = tower.norm("v.pre_ln", x.reshape(-1, width) + _placed(table, rows, columns))
    row, column = (at + 1 for at in rotation.axes(rows, columns))
    rate = rotation.frequencies(width // tower.sizes["n_head"] // 2)
    turn = rotation.rotated(torch.cat((column * rate, row * rate), -1), tower.rope)
    side = isqrt(len(table))
    high, wide = (torch.div(at[:, 0] - 1, side, rounding_mode="floor") for at in (row, column))
    apart = (high[:, None] != high[None, :]) | (wide[:, None] != wide[None, :])
    inner = vision.with_epsilon(tower, LAYER_NORM)
    for number in range(count):
        whole = (number + 1) % EVERY == 0 or number == count - 1
        x = vision.block(inner, f"v.blk.{number}.", x, turn, None if whole else apart)
        progress(1)
    x = rotation.shuffled_by_channel(tower.norm("v.post_ln", x).view(rows, columns, width), SQUARE)
    for name in ("mm.0", "mm.1"):
        x = torch.nn.functional.gelu(tower.linear(name, x))
    return tower.linear("mm.2", x)


def _placed(table: Tensor, rows: int, columns: int) -> Tensor:
    """Return the positions of patches, `(rows · columns, width)`: a square table `(n², width)`, sampled.

    As in transformers, the samples are taken for a picture of as many rows as this one has columns.
    """
    side = isqrt(len(table))
    y, x = ((2 * torch.arange(count) + 1) / count - 1 for count in (columns, rows))
    at = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1)[None].to(table.dtype)
    grid = table.view(1, side, side, -1).permute(0, 3, 1, 2)
    found = torch.nn.functional.grid_sample(grid, at, mode="bilinear", align_corners=False, padding_mode="zeros")
    return found[0].permute(1, 2, 0).reshape(rows * columns, -1)


def patches(tower: Model) -> tuple[int, int]:
    """Return rows and columns of patches of the picture on which proofs compare both sides."""
    return 10, 8
