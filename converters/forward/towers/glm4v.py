"""GLM-4V's tower: Qwen's patches and rotation, stretched positions, squares merged by a convolution and two networks.

Source: transformers `modeling_glm4v.py`; llama.cpp `tools/mtmd/models/glm4v.cpp`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ggferry.converters.forward.blocks.experts import combined
from ggferry.converters.forward.model import Model
from ggferry.converters.forward.towers import _rotation as rotation
from ggferry.converters.forward.towers import _vision as vision
from ggferry.converters.forward.towers._frames import SQUARE, two_frames
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor

LAYER_NORM = 1e-5
"""Epsilon of torch.nn.LayerNorm, which the merger's norm is."""


def embed(tower: Model, picture: Tensor, progress: Callable[[int], None]) -> Tensor:
    """Return the rows that stand for a picture, `(squares, width of the text model)`."""
    x = two_frames(tower, picture)
    rows, columns, width = x.shape
    if tower.has("v.norm_embd"):
        x = tower.norm("v.norm_embd", x)
    if tower.has("v.position_embd"):
        x = x + rotation.sampled(tower.weights.vector("v.position_embd.weight").view(-1, width), rows, columns)
    turn = rotation.along_both(tower, rows, columns, width)
    x = tower.norm("v.post_ln", vision.blocks(tower, x.reshape(-1, width), progress, turn))
    return merged(tower, x.view(rows, columns, width))


def merged(tower: Model, grid: Tensor) -> Tensor:
    """Return squares of patches, by a convolution and two networks, `(squares, width of the text model)`."""
    kernel = tower.weights.vector("mm.patch_merger.weight").view(-1, grid.shape[-1], SQUARE, SQUARE)
    squares = torch.nn.functional.conv2d(grid.permute(2, 0, 1)[None], kernel, stride=SQUARE)[0]
    x = tower.linear("mm.model.fc", tower.biased("mm.patch_merger", squares.flatten(1).T))
    x = torch.nn.functional.gelu(vision.layer_norm(tower, "mm.post_norm", x, LAYER_NORM))
    limit = float(tower.sizes.get("shared_limit") or 0)
    return tower.linear("mm.down", combined(tower, tower.linear("mm.gate", x), tower.linear("mm.up", x), limit))


def patches(tower: Model) -> tuple[int, int]:
    """Return rows and columns of patches of the picture on which proofs compare both sides."""
    return 10, 8
