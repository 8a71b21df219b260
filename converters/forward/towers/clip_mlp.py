"""CLIP's tower up to one of its last blocks: every patch goes through a network of two matrices (LLaVA 1.5).

Of several blocks, the states of a patch lie side by side.

Source: transformers `modeling_clip.py`, `modeling_llava.py`.
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
    """Return the rows that stand for a picture, `(patches, width of the text model)`."""
    x = vision.patch_embed(tower, picture)
    rows, columns, width = x.shape
    first = tower.weights.vector("v.class_embd")[None] + tower.weights.rows("v.position_embd.weight", [0])
    x = torch.cat((first, (x + vision.table_positions(tower, rows, columns, first=1)).view(-1, width)))
    x, read = tower.norm("v.pre_ln", x), _read(tower)
    kept = [x] if 0 in read else []
    for number in range(tower.sizes["n_layer"]):
        x = vision.block(tower, f"v.blk.{number}.", x)
        kept += [x] if number + 1 in read else []
        progress(1)
    patches = torch.cat(kept, -1)[1:]
    return tower.linear("mm.2", torch.nn.functional.gelu(tower.linear("mm.0", patches)))


def _read(tower: Model) -> tuple[int, ...]:
    """Return behind how many blocks states are read; behind all where nothing says it."""
    declared = tower.sizes.get("feature_layer")
    return tuple(declared) if isinstance(declared, tuple | list) else (declared or tower.sizes["n_layer"],)
