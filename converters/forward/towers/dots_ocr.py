"""dots.ocr's tower: patches normed, rotated along two axes, normed twice behind the blocks, and merged by squares.

Source: the publisher's `modeling_dots_vision.py`; llama.cpp `tools/mtmd/models/dotsocr.cpp`, which leaves the norm of
the patches out.
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

LAYER_NORM = 1e-6
"""Epsilon of the norm before the projector."""


def embed(tower: Model, picture: Tensor, progress: Callable[[int], None]) -> Tensor:
    """Return the rows that stand for a picture, `(squares, width of the text model)`."""
    x = vision.patch_embed(tower, picture)
    rows, columns, width = x.shape
    turn = rotation.along_both(tower, rows, columns, width)
    x = vision.blocks(tower, tower.norm("v.norm_embd", x.view(-1, width)), progress, turn)
    x = vision.layer_norm(tower, "mm.input_norm", tower.norm("mm.post_norm", x), LAYER_NORM)
    merged = vision.shuffled(x.view(rows, columns, width), SQUARE)
    return tower.linear("mm.2", torch.nn.functional.gelu(tower.linear("mm.0", merged)))


def patches(tower: Model) -> tuple[int, int]:
    """Return rows and columns of patches of the picture on which proofs compare both sides."""
    return 10, 8
