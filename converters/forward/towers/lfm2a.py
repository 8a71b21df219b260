"""LFM2-Audio's audio encoder: a spectrum convolved over both axes, a conformer with relative positions, two matrices.

Definition: NVIDIA NeMo's FastConformer (ConformerEncoder, dw_striding, rel_pos), as transformers `modeling_parakeet.py`
has it; llama.cpp tools/mtmd/models/conformer.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from ggferry.converters.forward.model import Model, silu
from ggferry.converters.forward.towers import _audio as audio
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor

STEPS = ((0, False, 2), (2, True, 2), (3, False, 1), (5, True, 2), (6, False, 1))
"""Number, whether every channel has a kernel of its own, and stride of the convolutions."""
ACTIVE = (0, 3, 6)
"""Convolutions behind which stands an activation."""


def embed(tower: Model, spectrum: Tensor, progress: Callable[[int], None]) -> Tensor:
    """Return the embeddings `(rows, width of the text model)` of a log-mel spectrum `(channels, frames)`."""
    x = _convolved(tower, spectrum.T[None, None])
    far = _distances(len(x), x.shape[-1])
    for number in range(tower.sizes["n_layer"]):
        x = _block(tower, f"a.blk.{number}.", x, far)
        progress(1)
    return audio.perceptron(tower, "mm.a.mlp.1", "mm.a.mlp.3", audio.layer_norm(tower, "mm.a.mlp.0", x))


def _convolved(tower: Model, x: Tensor) -> Tensor:
    """Return states `(frames / 8, n_embd)` of x `(1, 1, frames, channels)`."""
    for number, apart, stride in STEPS:
        name = f"a.conv1d.{number}"
        kernel, groups = audio.kernel(tower, name), x.shape[1] if apart else 1
        x = torch.nn.functional.conv2d(x, kernel, audio.bias(tower, name), stride, kernel.shape[-1] // 2, groups=groups)
        x = x.relu() if number in ACTIVE else x
    return tower.linear("a.pre_encode.out", x[0].transpose(0, 1).flatten(1))


def _block(tower: Model, block: str, x: Tensor, far: Tensor) -> Tensor:
    x = audio.half_step(tower, f"{block}ffn_norm", f"{block}ffn_up", f"{block}ffn_down", x)
    x = x + _attention(tower, block, audio.layer_norm(tower, f"{block}ln1", x), far)
    x = x + _convolution(tower, block, audio.layer_norm(tower, f"{block}norm_conv", x))
    x = audio.half_step(tower, f"{block}ffn_norm_1", f"{block}ffn_up_1", f"{block}ffn_down_1", x)
    return audio.layer_norm(tower, f"{block}ln2", x)


def _convolution(tower: Model, block: str, x: Tensor) -> Tensor:
    x, gate = audio.pointwise(tower, f"{block}conv_pw1", x).chunk(2, -1)
    x = audio.depthwise(tower, f"{block}conv_dw", x * torch.sigmoid(gate), centered=True)
    return audio.pointwise(tower, f"{block}conv_pw2", silu(audio.batch_norm(tower, f"{block}conv_norm", x)))


def _attention(tower: Model, block: str, x: Tensor, far: Tensor) -> Tensor:
    """Return attention to all states, with a score of every distance (Transformer-XL, 1901.02860)."""
    count, heads = len(x), tower.sizes["n_head"]
    q, k, v = (tower.linear(f"{block}attn_{name}", x).view(count, heads, -1).transpose(0, 1) for name in "qkv")
    p = tower.linear(f"{block}linear_pos", far).view(len(far), heads, -1).transpose(0, 1)
    near, place = (tower.weights.vector(f"{block}pos_bias_{name}").view(heads, 1, -1) for name in "uv")
    back = torch.arange(count)[:, None] - torch.arange(count)[None, :]
    known = ((q + place) @ p.transpose(-1, -2)).gather(-1, (back + count - 1).expand(heads, -1, -1))
    scores = ((q + near) @ k.transpose(-1, -2) + known) * q.shape[-1] ** -0.5
    return tower.linear(f"{block}attn_out", (scores.softmax(-1) @ v).transpose(0, 1).flatten(1))


def _distances(count: int, width: int) -> Tensor:
    """Return the positions `(2 · count - 1, width)` of the distances from 1 - count on, sines and cosines in turn."""
    at = torch.arange(1 - count, count, dtype=torch.float32)[:, None]
    angles = at * torch.exp(torch.arange(0, width, 2, dtype=torch.float32) * (-math.log(10000) / width))
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(1)
