"""SigLIP, whose patches, or squares of them, go through a network of two matrices.

Source: transformers `modeling_janus.py`, `modeling_lfm2_vl.py`, `modeling_cohere2_vision.py`; llama.cpp
`tools/mtmd/models/siglip.cpp`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ggferry.converters.forward.model import Model, silu
from ggferry.converters.forward.towers import _rotation as rotation
from ggferry.converters.forward.towers import _vision as vision
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor

LAYER_NORM = 1e-5
"""Epsilon of torch.nn.LayerNorm, which a norm before the network is."""


def embed(tower: Model, picture: Tensor, progress: Callable[[int], None]) -> Tensor:
    """Return the rows that stand for a picture, `(squares, width of the text model)`."""
    x = vision.patch_embed(tower, picture)
    rows, columns, width = x.shape
    x = (x + _positions(tower, rows, columns)).view(-1, width)
    x = vision.blocks(tower, x, progress)
    if tower.has("v.post_ln"):
        x = tower.norm("v.post_ln", x)
    x = vision.shuffled(x.view(rows, columns, width), int(tower.sizes.get("merge") or 1))
    if tower.has("mm.input_norm"):
        x = vision.layer_norm(tower, "mm.input_norm", x, LAYER_NORM)
    first, second = (name for name in ("mm.0", "mm.1", "mm.2") if tower.has(name))
    return tower.linear(second, _active(tower, tower.linear(first, x)))


def _positions(tower: Model, rows: int, columns: int) -> Tensor:
    """Return the positions of patches: of a picture of any size (its table has a size of its own), stretched."""
    if not tower.sizes.get("n_positions"):
        return vision.table_positions(tower, rows, columns)
    table = tower.weights.vector("v.position_embd.weight").view(-1, tower.sizes["n_embd"])
    return rotation.stretched(table, rows, columns, "bilinear", antialias=True)


def _active(tower: Model, x: Tensor) -> Tensor:
    """Return x through the activation of the network.

    It is GELU, one half times SiLU of the other (Cohere 2), or that of the blocks (Janus).
    """
    if tower.sizes.get("gated_by_half"):
        values, gate = x.chunk(2, -1)
        return silu(gate) * values
    return tower.activate(x) if tower.sizes.get("own_activation") else torch.nn.functional.gelu(x)
