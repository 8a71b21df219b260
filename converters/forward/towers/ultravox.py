"""Ultravox's audio encoder: Whisper's encoder, whose states are stacked, then a gated network between two norms.

Definition: fixie-ai/ultravox `ultravox_model.py`, of which transformers has no class; llama.cpp
tools/mtmd/models/whisper-enc.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ggferry.converters.forward.model import Model, silu
from ggferry.converters.forward.towers import _audio as audio

if TYPE_CHECKING:
    from torch import Tensor

EPS = 1e-6
"""Of the norms of the projector: the default of its RMSNorm."""

frames = audio.frames


def embed(tower: Model, spectrum: Tensor, progress: Callable[[int], None]) -> Tensor:
    """Return the embeddings `(rows, width of the text model)` of a log-mel spectrum `(channels, frames)`."""
    x = audio.stacked(audio.whisper(tower, spectrum, progress), tower.sizes["stack"])
    value, gate = tower.linear("mm.a.mlp.1", audio.rms_norm(tower, "mm.a.norm_pre", x, EPS)).chunk(2, -1)
    return tower.linear("mm.a.mlp.2", audio.rms_norm(tower, "mm.a.norm_mid", silu(gate) * value, EPS))
