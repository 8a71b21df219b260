"""CogVLM's tower (EVA-02 CLIP): blocks that norm what they add, a gated network, a row before and one behind.

Source: the publisher's `visual.py`, as LMDeploy has it (`lmdeploy/pytorch/models/cogvlm.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ggferry.converters.forward.blocks.feed_forward import dense
from ggferry.converters.forward.model import Model, silu
from ggferry.converters.forward.towers import _vision as vision
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor

LAYER_NORM = 1e-5
"""Epsilon of torch.nn.LayerNorm, which the network's norm is."""


patches = vision.patches_of_one_size


def embed(tower: Model, picture: Tensor, progress: Callable[[int], None]) -> Tensor:
    """Return the rows that stand for a picture, `(patches + 2, width of the text model)`.

    Raises UsageError for a picture of another size than the model's.
    """
    x = vision.embed_one_size(tower, picture)
    rows, columns, width = x.shape
    first = tower.weights.vector("v.class_embd")[None] + tower.weights.rows("v.position_embd.weight", [0])
    x = torch.cat((first, (x + vision.table_positions(tower, rows, columns, first=1)).view(-1, width)))
    for number in range(tower.sizes["n_layer"]):
        name = f"v.blk.{number}."
        x = x + tower.norm(f"{name}ln1", vision.self_attention(tower, name, x))
        x = x + tower.norm(f"{name}ln2", dense(tower, name, x))
        progress(1)
    ends = (tower.weights.vector(f"v.{end}")[None] for end in ("boi", "eoi"))
    return torch.cat((next(ends), _network(tower, x[1:]), next(ends)))


def _network(tower: Model, x: Tensor) -> Tensor:
    normed = vision.layer_norm(tower, "mm.post_fc_norm", tower.linear("mm.model.fc", x), LAYER_NORM)
    x = torch.nn.functional.gelu(normed)
    return tower.linear("mm.down", silu(tower.linear("mm.gate", x)) * tower.linear("mm.up", x))
