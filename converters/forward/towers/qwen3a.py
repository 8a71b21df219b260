"""Qwen3-Omni's and Qwen3-ASR's audio encoder: a spectrum convolved in chunks, then a transformer over all of them.

Definition: transformers `modeling_qwen3_asr.py`, within one of its windows (n_window_infer frames); llama.cpp
tools/mtmd/models/qwen3a.cpp, which has one window for all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ggferry.converters.forward.model import Model
from ggferry.converters.forward.towers import _audio as audio
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 100
"""Frames of a chunk, as llama.cpp has it; positions begin again in each."""


def embed(tower: Model, spectrum: Tensor, progress: Callable[[int], None]) -> Tensor:
    """Return the embeddings `(rows, width of the text model)` of a log-mel spectrum `(channels, frames)`."""
    missing = -spectrum.shape[1] % CHUNK
    chunks = torch.nn.functional.pad(spectrum, (0, missing)).view(len(spectrum), -1, CHUNK).transpose(0, 1)
    x = chunks[:, None]
    for number in (1, 2, 3):
        name = f"a.conv2d.{number}"
        x = audio.gelu(torch.nn.functional.conv2d(x, audio.kernel(tower, name), audio.bias(tower, name), 2, 1))
    x = x.permute(0, 3, 1, 2).flatten(2)  # (chunks, states of a chunk, channels · bands)
    places = audio.positions(tower, x.shape[1])
    x = (tower.linear("a.conv_out", x.flatten(0, 1)).view(*x.shape[:2], -1) + places).flatten(0, 1)
    x = x[: len(x) - len(places) + -(-(CHUNK - missing) // 8)]  # a row of eight frames, or of what is left of them
    x = audio.layer_norm(tower, "a.post_ln", audio.transformer(tower, x, progress))
    return audio.perceptron(tower, "mm.a.mlp.1", "mm.a.mlp.2", x)
