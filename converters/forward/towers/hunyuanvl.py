"""HunYuan-VL's tower: stretched positions, squares merged by two convolutions, rows with an end, a begin and an end.

Source: transformers `modeling_hunyuan_vl.py`; llama.cpp `tools/mtmd/models/hunyuanvl.cpp`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt
from typing import TYPE_CHECKING

from ggferry.converters.forward.model import Model
from ggferry.converters.forward.towers import _rotation as rotation
from ggferry.converters.forward.towers import _vision as vision
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor


def embed(tower: Model, picture: Tensor, progress: Callable[[int], None]) -> Tensor:
    """Return the rows that stand for a picture, `(rows · (columns + 1) + 2, width of the text model)`."""
    x = vision.patch_embed(tower, picture)
    rows, columns, width = x.shape
    table = tower.weights.vector("v.position_embd.weight").view(-1, width)
    table = table[len(table) - isqrt(len(table)) ** 2 :]  # a source has a row for a class token, the first
    x = (x + rotation.stretched(table, rows, columns, "bilinear")).view(-1, width)
    x = vision.rms_norm(tower, "mm.pre_norm", vision.blocks(tower, x, progress)).view(rows, columns, width)
    grid = _convolved(tower, torch.nn.functional.gelu(_convolved(tower, x, "mm.0")), "mm.2")
    end = tower.weights.vector("v.image_newline").expand(len(grid), 1, -1)
    inner = tower.linear("mm.model.fc", torch.cat((grid, end), 1).flatten(0, 1))
    first, last = (tower.weights.vector(f"mm.image_{name}")[None] for name in ("begin", "end"))
    return vision.rms_norm(tower, "mm.post_norm", torch.cat((first, inner, last)))


def _convolved(tower: Model, grid: Tensor, name: str) -> Tensor:
    """Return a grid `(rows, columns, width)` through a convolution whose stride is its size."""
    flat = tower.weights.vector(f"{name}.weight")
    count = len(tower.weights.vector(f"{name}.bias"))
    side = isqrt(flat.numel() // (count * grid.shape[-1]))
    kernel = flat.view(count, grid.shape[-1], side, side)
    found = torch.nn.functional.conv2d(grid.permute(2, 0, 1)[None], kernel, stride=side)[0]
    return tower.biased(name, found.permute(1, 2, 0))


def patches(tower: Model) -> tuple[int, int]:
    """Return rows and columns of patches of the picture on which proofs compare both sides."""
    return 10, 8
