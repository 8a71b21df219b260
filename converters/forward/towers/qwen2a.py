"""Qwen2-Audio's audio encoder: Whisper's encoder, whose states are averaged by two, then one matrix.

Definition: transformers `modeling_qwen2_audio.py`; llama.cpp tools/mtmd/models/whisper-enc.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ggferry.converters.forward.model import Model
from ggferry.converters.forward.towers import _audio as audio

if TYPE_CHECKING:
    from torch import Tensor

frames = audio.frames


def embed(tower: Model, spectrum: Tensor, progress: Callable[[int], None]) -> Tensor:
    """Return the embeddings `(rows, width of the text model)` of a log-mel spectrum `(channels, frames)`."""
    return tower.linear("mm.a.fc", audio.whisper(tower, spectrum, progress, pooled=True))
