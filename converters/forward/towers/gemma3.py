"""SigLIP, whose states are averaged over squares, normalized and projected (Gemma 3).

Source: transformers `Gemma3MultiModalProjector`; llama.cpp `tools/mtmd/models/siglip.cpp`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ggferry.converters.forward.model import Model
from ggferry.converters.forward.towers import _vision as vision
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor


def embed(tower: Model, picture: Tensor, progress: Callable[[int], None]) -> Tensor:
    """Return the rows that stand for a picture `(3, height, width)`, float32 `(squares, width of the text model)`."""
    x = vision.patch_embed(tower, picture)
    rows, columns, width = x.shape
    x = (x + vision.table_positions(tower, rows, columns)).view(-1, width)
    x = tower.norm("v.post_ln", vision.blocks(tower, x, progress))
    merge = int(tower.sizes["merge"])
    squares = torch.nn.functional.avg_pool2d(x.T.view(1, width, rows, columns), merge)
    x = vision.rms_norm(tower, "mm.soft_emb_norm", squares.flatten(2)[0].T)
    return tower.linear("mm.input_projection", x)
