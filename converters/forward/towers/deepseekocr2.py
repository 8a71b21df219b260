"""DeepSeek-OCR 2's tower: Segment Anything's encoder, then queries behind its states in a Qwen 2, projected.

Source: transformers `modeling_deepseek_ocr2.py`; llama.cpp `tools/mtmd/models/deepseekocr2.cpp`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ggferry.converters.forward.model import Model
from ggferry.converters.forward.towers import _rotation as rotation
from ggferry.converters.forward.towers import _sam as sam
from ggferry.converters.forward.towers import _vision as vision
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor

BASE = 1000000.0
"""The base of the rotation, for which GGUF has no key."""
FEW = 144
"""The states of a picture of 768 × 768 pixels: as many queries are asked of it, 256 of a larger one."""


def embed(tower: Model, picture: Tensor, progress: Callable[[int], None]) -> Tensor:
    """Return the rows that stand for a whole picture, `(queries + 1, width of the text model)`."""
    x = sam.encoded(tower, picture).flatten(0, 1)
    count, width = x.shape
    name = "v.resample_query_768" if count <= FEW else "v.resample_query_1024"
    x = torch.cat((x, tower.weights.vector(f"{name}.weight").view(-1, width)))
    angles = torch.outer(
        torch.arange(len(x), dtype=torch.float64), rotation.frequencies(width // tower.sizes["n_head"], BASE)
    )
    x = vision.blocks(
        vision.with_activation(tower, "silu"), x, progress, rotation.rotated(angles, tower.rope), _hidden(count, len(x))
    )
    rows = tower.linear("mm.model.fc", tower.norm("v.post_ln", x)[count:])
    return torch.cat((rows, tower.weights.vector("v.view_seperator").view(1, -1)))


def _hidden(seen: int, count: int) -> Tensor:
    """Return what attention does not see, bool `(count, count)`: queries behind, and of the picture's states any."""
    at = torch.arange(count)
    return (at[None, :] >= seen) & ((at[:, None] < seen) | (at[None, :] > at[:, None]))


def patches(tower: Model) -> tuple[int, int]:
    """Return rows and columns of patches of the picture on which proofs compare both sides: several windows."""
    return 20, 20
