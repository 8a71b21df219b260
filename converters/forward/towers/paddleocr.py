"""PaddleOCR-VL's tower: SigLIP rotated along two axes, stretched positions, squares of normalized patches.

Source: transformers `modeling_paddleocr_vl.py`; llama.cpp `tools/mtmd/models/paddleocr.cpp`, whose projector has the
tanh form of GELU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ggferry.converters.forward.model import Model
from ggferry.converters.forward.towers import _rotation as rotation
from ggferry.converters.forward.towers import _vision as vision
from ggferry.converters.forward.towers._frames import SQUARE
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor

LAYER_NORM = 1e-5
"""Epsilon of the norm before the projector."""


def embed(tower: Model, picture: Tensor, progress: Callable[[int], None]) -> Tensor:
    """Return the rows that stand for a picture, `(squares, width of the text model)`."""
    x = vision.patch_embed(tower, picture)
    rows, columns, width = x.shape
    table = tower.weights.vector("v.position_embd.weight").view(-1, width)
    x = x + rotation.stretched(table, rows, columns, "bilinear", align_corners=False)
    turn = rotation.along_both(tower, rows, columns, width)
    x = tower.norm("v.post_ln", vision.blocks(tower, x.view(-1, width), progress, turn))
    x = vision.layer_norm(tower, "mm.input_norm", x, LAYER_NORM)
    x = tower.linear("mm.1", vision.shuffled(x.view(rows, columns, width), SQUARE))
    return tower.linear("mm.2", torch.nn.functional.gelu(x))


def patches(tower: Model) -> tuple[int, int]:
    """Return rows and columns of patches of the picture on which proofs compare both sides."""
    return 10, 8
