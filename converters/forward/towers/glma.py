"""GLM-ASR's audio encoder: Whisper's, whose queries and keys are rotated by time; states stacked, then two matrices.

Definition: transformers `modeling_glmasr.py` (`GlmAsrEncoder`, `GlmAsrModel.get_audio_features`); the publisher's
`modeling_glmasr.py`, whose model has a row of its own before and behind a recording's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ggferry.converters.forward.model import Model
from ggferry.converters.forward.towers import _audio as audio
from ggferry.converters.forward.towers import _rotation as rotation
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor


def frames(_: Model) -> int:
    """Return the frames of the fixed spectrum: no table bounds them."""
    return audio.FRAMES


def embed(tower: Model, spectrum: Tensor, progress: Callable[[int], None]) -> Tensor:
    """Return the embeddings `(rows, width of the text model)` of a log-mel spectrum `(channels, frames)`.

    States that fill no whole row are left out.
    """
    x = audio.convolved(tower, spectrum)
    time = torch.arange(len(x), dtype=torch.float64)[:, None]
    turn = rotation.rotated(time * rotation.frequencies(tower.sizes["n_rot"]), tower.rope)
    x = audio.layer_norm(tower, "mm.a.norm_pre", audio.transformer(tower, x, progress, turn=turn))
    factor = int(tower.sizes["stack"])
    x = audio.stacked(x[: len(x) // factor * factor], factor)
    rows = audio.perceptron(tower, "mm.a.mlp.1", "mm.a.mlp.2", x)
    if not tower.weights.has("v.boi"):
        return rows
    before, behind = (tower.weights.vector(name).view(-1, rows.shape[-1]) for name in ("v.boi", "v.eoi"))
    return torch.cat((before[:1], rows, behind[-1:]))  # a checkpoint has both in one table
