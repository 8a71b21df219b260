"""Nemotron Nano VL 2's tower: RADIO, registers before the patches, positions of a table for larger pictures resampled.

Source: transformers `modeling_radio.py` (`RadioPatchEmbeddings`), `modeling_nemotron_h_omni.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from ggferry.converters.forward.model import Model
from ggferry.converters.forward.towers import _vision as vision
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor

RMS_NORM = 1e-5
"""Epsilon of the projector's norm (`NemotronH_Omni_Reasoning_V3MultiModalProjector`)."""


patches = vision.patches_of_one_size


def embed(tower: Model, picture: Tensor, progress: Callable[[int], None]) -> Tensor:
    """Return the rows that stand for a picture, `(squares, width of the text model)`.

    Raises UsageError for a picture of another size than the model's.
    """
    x = vision.embed_one_size(tower, picture)
    rows, columns, width = x.shape
    registers = tower.weights.vector("v.class_embd").view(-1, width)
    states = torch.cat((registers, (x + _positions(tower, rows)).view(-1, width)))
    x = vision.blocks(tower, states, progress)[len(registers) :]
    squares = vision.shuffled(x.view(rows, columns, width), int(tower.sizes["merge"]))
    normed = vision.rms_norm(vision.with_epsilon(tower, RMS_NORM), "mm.model.mlp.0", squares)
    return tower.linear("mm.model.mlp.3", torch.relu(tower.linear("mm.model.mlp.1", normed)).square())


def _positions(tower: Model, side: int) -> Tensor:
    """Return the positions of `side` by `side` patches, `(side, side, n_embd)`, of a table for as many or another."""
    name = "v.position_embd.weight"
    before = math.isqrt(sum(ref.rows for ref in tower.weights.refs(name)))
    if before == side:
        return tower.weights.rows(name, range(side * side)).view(side, side, -1)
    exact = ((torch.arange(side) + 0.5) * (before / side) - 0.5).clamp(min=0)
    low = exact.long()
    high, share = (low + 1).clamp(max=before - 1), exact - low
    found = torch.zeros((side, side, tower.weights.refs(name)[0].columns))
    for y, down in ((low, 1 - share), (high, share)):
        for x, across in ((low, 1 - share), (high, share)):
            at = (y[:, None] * before + x[None, :]).flatten().tolist()
            found += (down[:, None] * across)[..., None] * tower.weights.rows(name, at).view(side, side, -1)
    return found
