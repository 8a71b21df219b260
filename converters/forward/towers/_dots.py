"""What dots.ocr's and Dots 3 Note's towers compute: what differs in their blocks, tensors say."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ggferry.converters.forward.model import Model
from ggferry.converters.forward.towers import _frames as frames
from ggferry.converters.forward.towers import _rotation as rotation
from ggferry.converters.forward.towers import _vision as vision

if TYPE_CHECKING:
    from torch import Tensor


def embed(tower: Model, picture: Tensor, progress: Callable[[int], None]) -> Tensor:
    """Return the rows that stand for a picture, `(squares, width of the text model)`."""
    x = vision.patch_embed(tower, picture)
    rows, columns, width = x.shape
    turn = rotation.along_both(tower, rows, columns, width)
    x = vision.blocks(tower, tower.norm("v.pre_ln", x.view(-1, width)), progress, turn)
    return frames.normed_twice(tower, x.view(rows, columns, width))


def patches(tower: Model) -> tuple[int, int]:
    """Return rows and columns of patches of the picture on which proofs compare both sides."""
    return 10, 8
