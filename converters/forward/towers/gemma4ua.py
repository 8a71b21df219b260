"""The unified Gemma 4's audio encoder: frames of the recording itself, normed, then one matrix.

Definition: transformers `modeling_gemma4_unified.py`; llama.cpp tools/mtmd/models/gemma4ua.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ggferry.converters.forward.model import Model
from ggferry.converters.forward.towers import _audio as audio

if TYPE_CHECKING:
    from torch import Tensor


def embed(tower: Model, spectrum: Tensor, progress: Callable[[int], None]) -> Tensor:
    """Return the embeddings `(frames, width of the text model)` of frames of samples `(samples of a frame, frames)`."""
    return tower.linear("mm.a.input_projection", audio.rms_norm(tower, "", spectrum.T))
