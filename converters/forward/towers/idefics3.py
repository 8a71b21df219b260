"""SigLIP, squares of whose patches one matrix projects (Idefics 3, SmolVLM).

Source: transformers `Idefics3Connector`; llama.cpp `tools/mtmd/models/siglip.cpp`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ggferry.converters.forward.model import Model
from ggferry.converters.forward.towers import _vision as vision

if TYPE_CHECKING:
    from torch import Tensor


def embed(tower: Model, picture: Tensor, progress: Callable[[int], None]) -> Tensor:
    """Return the rows that stand for a picture, `(squares, width of the text model)`."""
    x = vision.patch_embed(tower, picture)
    rows, columns, width = x.shape
    x = (x + vision.table_positions(tower, rows, columns)).view(-1, width)
    x = tower.norm("v.post_ln", vision.blocks(tower, x, progress)).view(rows, columns, width)
    return tower.linear("mm.model.fc", vision.shuffled(x, int(tower.sizes["merge"])))
