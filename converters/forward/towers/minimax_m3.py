"""MiniMax M3's tower: thirds of a head turn with time, row and column; patches, then squares, pass through networks.

Source: transformers `modeling_minimax_m3_vl.py`; llama.cpp `tools/mtmd/models/minimax-m3.cpp`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ggferry.converters.forward.model import Model
from ggferry.converters.forward.towers import _frames as frames
from ggferry.converters.forward.towers import _rotation as rotation
from ggferry.converters.forward.towers import _vision as vision
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor


def embed(tower: Model, picture: Tensor, progress: Callable[[int], None]) -> Tensor:
    """Return the rows that stand for a picture, `(squares, width of the text model)`."""
    x = frames.two_frames(tower, picture)
    rows, columns, width = x.shape
    turn = _turn(tower, rows, columns, width // tower.sizes["n_head"])
    x = vision.blocks(tower, tower.norm("v.pre_ln", x.view(-1, width)), progress, turn)
    y = vision.network(tower, "mm.1", "mm.2", x).view(rows, columns, -1)
    return vision.network(tower, "mm.merger.fc1", "mm.merger.fc2", vision.shuffled(y, int(tower.sizes["merge"])))


def _turn(tower: Model, rows: int, columns: int, head: int) -> Callable[[Tensor], Tensor]:
    """Return what rotates queries or keys: of a picture, whose time is 0, a third by rows and a third by columns.

    The halves of the thirds stand together in a source, those of each third in GGUF; what no third has is not rotated.
    """
    third = 2 * (head // 6)
    rate = rotation.frequencies(third)
    row, column = rotation.axes(rows, columns)
    angles = (0 * row * rate, row * rate, column * rate)
    if tower.recipe.axes == "in_turn":
        return rotation.rotated(torch.cat(angles, -1), tower.rope)
    turns = [rotation.rotated(one, tower.rope) for one in angles]
    return lambda x: torch.cat(
        [turn(x[..., n * third : (n + 1) * third]) for n, turn in enumerate(turns)] + [x[..., 3 * third :]], -1
    )


def patches(tower: Model) -> tuple[int, int]:
    """Return rows and columns of patches of the picture on which proofs compare both sides."""
    return 10, 8
