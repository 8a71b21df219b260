"""The unified Gemma 4's vision encoder: large patches, normed and projected, with two axes of positions.

It has no transformer.

Definition: transformers `modeling_gemma4_unified.py` (Gemma4UnifiedVisionEmbedder); llama.cpp
tools/mtmd/models/gemma4uv.cpp. Its first three norms are torch's LayerNorm with the epsilon 1e-5.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ggferry.converters.forward.model import Model
from ggferry.converters.forward.towers import _audio as shared
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor

EPS = 1e-5


def patches(tower: Model) -> tuple[int, int]:
    """Return (rows, columns) of patches of the fixed picture: two large ones down, three across."""
    merge = int(tower.sizes["merge"])
    return 2 * merge, 3 * merge


def embed(tower: Model, picture: Tensor, progress: Callable[[int], None]) -> Tensor:
    """Return the rows that stand for a picture `(3, height, width)`, `(patches, width of the text model)`."""
    size = int(tower.sizes["patch_size"]) * int(tower.sizes["merge"])
    planes = torch.nn.functional.unfold(picture[None], size, stride=size)[0].T  # (patches, 3 · size · size)
    pixels = tower.recipe.patches == "pixels"
    if pixels:
        planes = planes.view(-1, 3, size * size).transpose(1, 2).flatten(1)
    x = tower.linear("v.patch_embd", shared.layer_norm(tower, "v.patch_norm.1", planes, EPS))
    x = shared.layer_norm(tower, "v.patch_norm.2", x, EPS)
    across = picture.shape[2] // size
    at = torch.arange(len(x))
    table = tower.weights.vector("v.position_embd.weight")
    table = table.view(-1, 2, x.shape[-1]).transpose(0, 1) if pixels else table.view(2, -1, x.shape[-1])
    x = x + table[0, at % across] + table[1, at // across]
    x = shared.layer_norm(tower, "v.patch_norm.3", x, EPS)
    return tower.linear("mm.input_projection", shared.rms_norm(tower, "", x))
