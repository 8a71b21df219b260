"""Towers whose patches span two frames of a film, or are merged by squares of two by two (Qwen-VL, dots.ocr, kin)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ggferry.converters.forward.model import Model
from ggferry.converters.forward.towers import _vision as vision
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor

SQUARE = 2
"""Patches of a row, and of a column, that are merged."""


def two_frames(tower: Model, picture: Tensor) -> Tensor:
    """Return the embeddings of the patches of a still picture, both of whose frames are the same.

    GGUF has a convolution for each frame, a source one for both.
    """
    size = int(tower.sizes["patch_size"])
    kernel = tower.weights.vector("v.patch_embd.weight").view(tower.sizes["n_embd"], len(picture), -1, size, size)
    if kernel.shape[2] == 1:
        kernel = kernel + tower.weights.vector("v.patch_embd.weight.1").view(kernel.shape)
    x = torch.nn.functional.conv2d(picture[None], kernel.sum(2), stride=size)[0].permute(1, 2, 0)
    return tower.biased("v.patch_embd", x)


NORM_EPS = 1e-6
"""Epsilon of the second norm before the projector of dots.ocr."""


def normed_twice(tower: Model, x: Tensor) -> Tensor:
    """Return the row of every square of states `(rows, columns, n_embd)`, by two norms and a network (dots.ocr)."""
    x = vision.layer_norm(tower, "mm.input_norm", tower.norm("mm.post_norm", x), NORM_EPS)
    return vision.network(tower, "mm.0", "mm.2", vision.shuffled(x, SQUARE))
