"""Gemma 4's audio encoder: two strided convolutions, then a conformer whose attention sees a few states back.

Definition: transformers `modeling_gemma4.py` (Gemma4AudioModel, Gemma4MultimodalEmbedder); llama.cpp
tools/mtmd/models/gemma4a.cpp. A matrix may have bounds of what goes in and what comes out (`.input_max` and so on).
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

PAST = 12
"""Distances that attention knows, and states that it sees, as every Gemma 4 has it (llama.cpp has no key for it)."""
CAP = 50.0
"""Bound of the scores, likewise."""


def embed(tower: Model, spectrum: Tensor, progress: Callable[[int], None]) -> Tensor:
    """Return the embeddings `(rows, width of the text model)` of a log-mel spectrum `(channels, frames)`."""
    x = _convolved(tower, spectrum.T[None, None])
    for number in range(tower.sizes["n_layer"]):
        x = _block(tower, f"a.blk.{number}.", x)
        progress(1)
    x = tower.linear("a.pre_encode.out", x)
    return audio.clipped(tower, "mm.a.input_projection", audio.rms_norm(tower, "mm.a.soft_emb_norm", x))


def _convolved(tower: Model, x: Tensor) -> Tensor:
    """Return states `(frames / 4, n_embd)` of x `(1, 1, frames, channels)`."""
    for number in (0, 1):
        name = f"a.conv1d.{number}"
        x = torch.nn.functional.conv2d(x, audio.kernel(tower, name), stride=2, padding=1)
        x = audio.layer_norm(tower, f"{name}.norm", x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2).relu()
    return tower.linear("a.input_projection", x[0].permute(1, 2, 0).flatten(1))


def _block(tower: Model, block: str, x: Tensor) -> Tensor:
    x = x + _network(tower, block, "", x) / 2
    y = _attention(tower, block, audio.rms_norm(tower, f"{block}attn_pre_norm", x))
    x = x + audio.rms_norm(tower, f"{block}attn_post_norm", y)
    x = x + _convolution(tower, block, audio.rms_norm(tower, f"{block}conv_norm", x))
    x = x + _network(tower, block, "_1", x) / 2
    return audio.rms_norm(tower, f"{block}ln2", x)


def _network(tower: Model, block: str, which: str, x: Tensor) -> Tensor:
    read = audio.rms_norm(tower, f"{block}ffn_norm{which}", x)
    wide = silu(audio.clipped(tower, f"{block}ffn_up{which}", read))
    return audio.rms_norm(tower, f"{block}ffn_post_norm{which}", audio.clipped(tower, f"{block}ffn_down{which}", wide))


def _convolution(tower: Model, block: str, x: Tensor) -> Tensor:
    x, gate = audio.clipped(tower, f"{block}conv_pw1", x).chunk(2, -1)
    x = audio.depthwise(tower, f"{block}conv_dw", x * torch.sigmoid(gate))
    return audio.clipped(tower, f"{block}conv_pw2", silu(audio.rms_norm(tower, f"{block}norm_conv", x)))


def _attention(tower: Model, block: str, x: Tensor) -> Tensor:
    """Return attention to the states `PAST` back, itself among them, with a learned score of every distance."""
    count, heads = len(x), tower.sizes["n_head"]
    q, k, v = (audio.clipped(tower, f"{block}attn_{name}", x).view(count, heads, -1).transpose(0, 1) for name in "qkv")
    width = q.shape[-1]
    q = q * (width**-0.5 / math.log(2)) * _of_each_column(tower, block)
    k = k * (math.log(1 + math.e) / math.log(2))
    far = tower.linear(f"{block}attn_k_rel", _sinusoids(tower.sizes["n_embd"])).view(-1, heads, width).transpose(0, 1)
    back = torch.arange(count)[:, None] - torch.arange(count)[None, :]
    known = (q @ far.transpose(-1, -2)).gather(-1, back.clamp(0, PAST).expand(heads, -1, -1))
    scores = CAP * torch.tanh((q @ k.transpose(-1, -2) + known) / CAP)
    scores = scores.masked_fill((back < 0) | (back >= PAST), float("-inf"))
    return audio.clipped(tower, f"{block}attn_out", (scores.softmax(-1) @ v).transpose(0, 1).flatten(1))


def _of_each_column(tower: Model, block: str) -> Tensor:
    """Return the factor of every column of a head's queries."""
    stored = tower.weights.vector(f"{block}per_dim_scale.weight")
    return torch.nn.functional.softplus(stored) if tower.recipe.query_scales == "raw" else stored


def _sinusoids(width: int) -> Tensor:
    """Return the positions `(PAST + 1, width)` of the distances 0 to `PAST`: sines, then cosines."""
    steps = torch.arange(width // 2, dtype=torch.float32)
    slow = torch.exp(steps * (-math.log(10000) / max(width // 2 - 1, 1)))
    angles = torch.arange(PAST + 1)[:, None] * slow
    return torch.cat((angles.sin(), angles.cos()), -1)
