"""DeepSeek-OCR's tower: Segment Anything's encoder, CLIP's on its states, both projected side by side, rows with ends.

Source: transformers `modeling_unlimited_ocr.py`; llama.cpp `tools/mtmd/models/deepseekocr.cpp`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ggferry.converters.forward.model import Model
from ggferry.converters.forward.towers import _sam as sam
from ggferry.converters.forward.towers import _vision as vision
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor


def embed(tower: Model, picture: Tensor, progress: Callable[[int], None]) -> Tensor:
    """Return the rows that stand for a whole picture, `(rows · (columns + 1) + 1, width of the text model)`."""
    grid = sam.encoded(tower, picture)
    rows, columns, width = grid.shape
    table = tower.weights.vector("v.position_embd.weight").view(-1, width)
    marked = tower.weights.vector("v.class_embd")[None] + table[:1]
    x = torch.cat((marked, (grid + sam.placed(table[1:], rows, columns)).reshape(-1, width)))
    inner = vision.with_activation(tower, "quick_gelu")
    x = vision.blocks(inner, tower.norm("v.pre_ln", x), progress)[1:]
    y = tower.linear("mm.model.fc", torch.cat((x, grid.reshape(-1, width)), -1)).view(rows, columns, -1)
    end = tower.weights.vector("v.image_newline").expand(rows, 1, -1)
    last = tower.weights.vector("v.view_seperator").view(1, -1)
    return torch.cat((torch.cat((y, end), 1).flatten(0, 1), last))


def patches(tower: Model) -> tuple[int, int]:
    """Return rows and columns of CLIP's patches of the picture on which proofs compare both sides: several windows."""
    side = 24 * 14 // int(tower.sizes["patch_size"])
    return side, side
