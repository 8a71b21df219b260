"""DeepSeek V4's tower: squares of patches through a network, two lines of them side by side, between rows of their own.

Source: the publisher's `inference/vision.py` and `image_processor.py` (`build_image_block`), as SGLang has them;
llama.cpp `tools/mtmd/models/deepseek4v.cpp`.
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
    """Return the rows that stand for a picture that begins at a multiple of four, `(rows, width of the text model)`."""
    x = vision.patch_embed(tower, picture)
    rows, columns, width = x.shape
    turn = rotation.along_both(tower, rows, columns, width)
    x = tower.norm("v.post_ln", vision.blocks(tower, x.view(-1, width), progress, turn)).view(rows, columns, width)
    side = int(tower.sizes["square"])
    x = torch.nn.functional.pad(x, (0, 0, 0, -columns % side, 0, -rows % side))
    merged = vision.network(tower, "mm.1", "mm.2", rotation.shuffled_by_channel(x, side))
    return _laid_out(tower, merged.view(x.shape[0] // side, x.shape[1] // side, -1))


def _laid_out(tower: Model, grid: Tensor) -> Tensor:
    """Return lines of squares `(lines, columns, n)`, each ended, two by two in turn, as many as a multiple of four."""
    start, end, newline, filler = (
        tower.weights.vector(f"v.{name}")
        for name in ("token_embd.img_start", "token_embd.img_end", "image_newline", "token_embd.img_pad")
    )
    lines = torch.cat((grid, newline.expand(len(grid), 1, -1)), 1)
    if len(lines) % 2:
        lines = torch.cat((lines, filler.expand(1, lines.shape[1], -1)))
    pairs = lines.view(-1, 2, *lines.shape[1:]).transpose(1, 2).flatten(0, 2)
    missing = filler.expand(len(pairs) // 2 % 2 * 2, -1)
    return torch.cat((start[None], pairs, missing, end[None]))


def patches(tower: Model) -> tuple[int, int]:
    """Return rows and columns of patches of the picture on which proofs compare both sides: neither fills squares."""
    side = int(tower.sizes["square"])
    return 3 * side - 1, 2 * side + 1
