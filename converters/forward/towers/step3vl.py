"""Step 3.7's tower: stretched positions, rotation along two axes, two convolutions that halve rows and columns.

Source: transformers `modeling_step3p7.py`; llama.cpp `tools/mtmd/models/step3vl.cpp`.
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
    """Return the rows that stand for a picture, `(rows / 4 · columns / 4, width of the text model)`."""
    x = vision.patch_embed(tower, picture)
    rows, columns, width = x.shape
    table = tower.weights.vector("v.position_embd.weight").view(-1, width)
    x = tower.norm("v.pre_ln", (x + rotation.stretched(table, rows, columns, "bilinear")).view(-1, width))
    row, column = rotation.axes(rows, columns)
    rate = rotation.frequencies(width // tower.sizes["n_head"] // 2)
    turn = rotation.rotated(torch.cat((column * rate, row * rate), -1), tower.rope)
    x = vision.blocks(tower, x, progress, turn).view(rows, columns, width)
    for name in ("mm.0", "mm.1"):
        x = _halved(tower, name, x)
    return tower.linear("mm.model.fc", x.flatten(0, 1))


def _halved(tower: Model, name: str, grid: Tensor) -> Tensor:
    """Return a grid `(rows, columns, width)` through a convolution of width 3 and stride 2."""
    kernel = tower.weights.vector(f"{name}.weight").view(-1, grid.shape[-1], 3, 3)
    found = torch.nn.functional.conv2d(grid.permute(2, 0, 1)[None], kernel, stride=2, padding=1)[0]
    return tower.biased(name, found.permute(1, 2, 0))


def patches(tower: Model) -> tuple[int, int]:
    """Return rows and columns of patches of the picture on which proofs compare both sides."""
    return 12, 8
