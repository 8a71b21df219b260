"""Youtu-VL's tower: patches rotated along two axes, windows in most blocks, squares of patches normed and merged.

Source: mlx-vlm `mlx_vlm/models/youtu_vl/vision.py`; llama.cpp `tools/mtmd/models/youtuvl.cpp`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ggferry.converters.forward.model import Model
from ggferry.converters.forward.towers import _rotation as rotation
from ggferry.converters.forward.towers import _vision as vision
from ggferry.converters.forward.towers._frames import SQUARE

if TYPE_CHECKING:
    from torch import Tensor

RMS_NORM = 1e-6
"""Epsilon of the norm before the network."""


def embed(tower: Model, picture: Tensor, progress: Callable[[int], None]) -> Tensor:
    """Return the rows that stand for a picture, `(squares, width of the text model)`."""
    x = vision.patch_embed(tower, picture)
    rows, columns, width = x.shape
    turn = rotation.along_both(tower, rows, columns, width)
    side = int(tower.sizes["window"]) // int(tower.sizes["patch_size"]) // SQUARE * SQUARE
    apart, x = rotation.windows(rows, columns, side), x.view(-1, width)
    for number in range(tower.sizes["n_layer"]):
        x = vision.block(tower, f"v.blk.{number}.", x, turn, None if number in tower.sizes["whole_blocks"] else apart)
        progress(1)
    last = vision.with_epsilon(tower, RMS_NORM)
    x = vision.rms_norm(last, "mm.input_norm", tower.norm("v.post_ln", x)).view(rows, columns, width)
    return vision.network(tower, "mm.0", "mm.2", vision.shuffled(x, SQUARE))


def patches(tower: Model) -> tuple[int, int]:
    """Return rows and columns of patches of the picture on which proofs compare both sides: several windows."""
    side = int(tower.sizes["window"]) // int(tower.sizes["patch_size"]) // SQUARE * SQUARE
    return side + 4, side + 2
