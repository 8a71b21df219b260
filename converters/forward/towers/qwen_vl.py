"""Qwen's towers: two frames a patch, rotation along two axes, windows, squares of patches merged, deepstack.

Patches are computed in the order of reading; their squares are in that order, too, as runtimes hand them on.
Source: transformers `modeling_qwen2_vl.py`, `modeling_qwen2_5_vl.py`, `modeling_qwen3_vl.py`; llama.cpp
`tools/mtmd/models/qwen2vl.cpp`, `qwen3vl.cpp`.
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
    """Return the rows that stand for a picture, `(squares, width of the text model · (1 + deepstack blocks))`."""
    x = frames.two_frames(tower, picture)
    rows, columns, width = x.shape
    if tower.has("v.position_embd"):
        table = tower.weights.vector("v.position_embd.weight").view(-1, width)
        x = x + rotation.stretched(table, rows, columns, "bilinear", align_corners=True)
    turn = rotation.along_both(tower, rows, columns, width)
    apart, x, deep = windows(tower, rows, columns), x.reshape(-1, width), []
    for number in range(tower.sizes["n_layer"]):
        x = vision.block(tower, f"v.blk.{number}.", x, turn, None if sees_all(tower, number) else apart)
        if tower.has(f"v.deepstack.{number}.fc1"):
            deep.append(
                _deepstack(tower, f"v.deepstack.{number}.", vision.shuffled(x.view(rows, columns, -1), frames.SQUARE))
            )
        progress(1)
    last = "v.post_ln" if tower.has("v.post_ln") else "mm.input_norm"
    merged = vision.shuffled(tower.norm(last, x).view(rows, columns, -1), frames.SQUARE)
    return torch.cat((_network(tower, "mm.0", "mm.2", merged), *deep), -1)


def windows(tower: Model, rows: int, columns: int) -> Tensor | None:
    """Return what patches of different windows do not see, bool `(patches, patches)`; None for a tower without."""
    if not tower.sizes.get("wa_pattern"):
        return None
    side = int(tower.sizes["window"]) // int(tower.sizes["patch_size"]) // frames.SQUARE * frames.SQUARE
    return rotation.windows(rows, columns, side)


def sees_all(tower: Model, number: int) -> bool:
    """Return whether this block sees the whole picture."""
    pattern = tower.sizes.get("wa_pattern")
    return not pattern or (number + 1) % int(pattern) == 0


def _deepstack(tower: Model, name: str, squares: Tensor) -> Tensor:
    return _network(tower, f"{name}fc1", f"{name}fc2", tower.norm(f"{name}norm", squares))


def _network(tower: Model, first: str, second: str, x: Tensor) -> Tensor:
    return tower.linear(second, torch.nn.functional.gelu(tower.linear(first, x)))


def patches(tower: Model) -> tuple[int, int]:
    """Return rows and columns of patches of the picture on which proofs compare both sides: several windows."""
    side = int(tower.sizes.get("window") or 0) // int(tower.sizes["patch_size"])
    return (side + 4, side + 2) if tower.sizes.get("wa_pattern") else (10, 8)
