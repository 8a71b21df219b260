"""Gemma 3n's vision encoder: MobileNetV5, two stages fused to 16 × 16 states, which are normed, projected and normed.

Source: timm 1.0.31 `mobilenetv5.py`, `_efficientnet_blocks.py`, `layers/attention2d.py`; transformers
`modeling_gemma3n.py` (`get_image_features`, `Gemma3nMultimodalEmbedder`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING

from ggferry.converters.forward.model import Model
from ggferry.converters.forward.towers import _vision as vision
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor

STAGES, SIDE = 4, 16
"""The stages, the last two of which are fused, and rows and columns of the states of a picture."""
CONVOLUTIONS = True
"""It reads pixels: the patches that its GGUF file claims, 256 × 256 of whatever size, are nothing that it computes."""

patches = vision.patches_of_one_size


def embed(tower: Model, picture: Tensor, progress: Callable[[int], None]) -> Tensor:
    """Return the rows that stand for a picture `(3, height, width)`, float32 `(256, width of the text model)`.

    Raises ValueError for a picture whose edges are not equal multiples of 256.
    """
    _, height, width = picture.shape
    if height != width or height % (SIDE * SIDE):
        raise ValueError(f"{height} × {width} pixels: edges are equal multiples of {SIDE * SIDE}")
    x = _normed(tower, "v.conv_stem.bn", _stem(tower, picture[None]), active=True)
    stages: list[Tensor] = []
    for stage in range(STAGES):
        for n in count():
            at = f"v.blk.{stage}.{n}."
            if not any(tower.has(f"{at}{name}") for name in ("conv_exp", "pw_exp.conv", "norm")):
                break
            x = _block(tower, at, x, 2 if n == 0 else 1)
            progress(1)
        stages.append(x)
    x = _fused(tower, *stages[-2:])
    states = x[0].flatten(1).T * x.shape[1] ** 0.5
    states = tower.linear("mm.input_projection", vision.rms_norm(tower, "mm.soft_emb_norm", states))
    return states * torch.rsqrt(states.square().mean(-1, keepdim=True) + float(tower.sizes["eps"]))


def _block(tower: Model, at: str, x: Tensor, stride: int) -> Tensor:
    """Return what a block makes of maps `(1, channels, height, width)`; where it keeps their shape, it adds to them."""
    if tower.has(f"{at}conv_exp"):
        y = _normed(tower, f"{at}bn1", _conv(tower, f"{at}conv_exp", x, stride), active=True)
        y = _normed(tower, f"{at}bn2", _conv(tower, f"{at}conv_pwl", y))
    elif tower.has(f"{at}norm"):
        y = _attention(tower, at, _normed(tower, f"{at}norm", x))
    else:
        y = _inverted(tower, at, x, stride)
    if tower.weights.has(f"{at}layer_scale.gamma"):
        y = y * tower.weights.vector(f"{at}layer_scale.gamma").view(1, -1, 1, 1)
    return x + y if y.shape == x.shape else y


def _inverted(tower: Model, at: str, x: Tensor, stride: int) -> Tensor:
    """Return the branch of a block that widens its maps, with a convolution of each of them before or between."""
    if tower.has(f"{at}dw_start.conv"):
        x = _normed(tower, f"{at}dw_start.bn", _conv(tower, f"{at}dw_start.conv", x, each=True))
    x = _normed(tower, f"{at}pw_exp.bn", _conv(tower, f"{at}pw_exp.conv", x), active=True)
    if tower.has(f"{at}dw_mid.conv"):
        x = _normed(tower, f"{at}dw_mid.bn", _conv(tower, f"{at}dw_mid.conv", x, stride, each=True), active=True)
    return _normed(tower, f"{at}pw_proj.bn", _conv(tower, f"{at}pw_proj.conv", x))


def _attention(tower: Model, at: str, x: Tensor) -> Tensor:
    """Return the branch of a block in which every place attends to all, by heads that share keys and values."""
    _, _, height, width = x.shape
    keys, values = (_shared(tower, f"{at}attn.{part}.", x) for part in ("key", "value"))
    queries = _conv(tower, f"{at}attn.query.proj", x)[0].view(-1, len(keys), height * width)
    weights = torch.softmax(queries.transpose(1, 2) @ keys * len(keys) ** -0.5, -1)
    found = (weights @ values.T).transpose(1, 2).reshape(1, -1, height, width)
    return _conv(tower, f"{at}attn.output.proj", found)


def _shared(tower: Model, at: str, x: Tensor) -> Tensor:
    """Return keys or values `(width of a head, places)`, in some blocks of every second row and column."""
    if tower.has(f"{at}down_conv"):
        x = _normed(tower, f"{at}norm", _conv(tower, f"{at}down_conv", x, 2, each=True))
    return _conv(tower, f"{at}proj", x)[0].flatten(1)


def _fused(tower: Model, high: Tensor, low: Tensor) -> Tensor:
    """Return the states `(1, n_embd, 16, 16)` of two stages' maps, the second of which are half as high and wide."""
    low = torch.nn.functional.interpolate(low, size=high.shape[-2:], mode="nearest")
    x = _conv(tower, "v.msfa.ffn.pw_exp.conv", torch.cat((high, low), 1))
    x = _normed(tower, "v.msfa.ffn.pw_exp.bn", x, active=True)
    x = _normed(tower, "v.msfa.ffn.pw_proj.bn", _conv(tower, "v.msfa.ffn.pw_proj.conv", x))
    return _normed(tower, "v.msfa.norm", torch.nn.functional.avg_pool2d(x, high.shape[-1] // SIDE))


def _stem(tower: Model, picture: Tensor) -> Tensor:
    bias = tower.weights.vector("v.conv_stem.conv.bias").view(1, -1, 1, 1)
    return _conv(tower, "v.conv_stem.conv", picture, 2) + bias


def _conv(tower: Model, name: str, x: Tensor, stride: int = 1, each: bool = False) -> Tensor:
    """Return a convolution of maps, padded so that every `stride`-th place has a result; `each`: of each map alone."""
    flat, channels = tower.weights.vector(f"{name}.weight"), x.shape[1]
    groups = channels if each else 1
    rows = int(tower.weights.graph.by_name[f"{name}.weight"].shape[0])
    size = math.isqrt(flat.numel() * groups // (rows * channels))
    kernel = flat.view(rows, channels // groups, size, size)
    lacking = [max((-(-edge // stride) - 1) * stride + size - edge, 0) for edge in x.shape[-2:]]
    high, wide = ((before := lack // 2, lack - before) for lack in lacking)
    return torch.nn.functional.conv2d(torch.nn.functional.pad(x, (*wide, *high)), kernel, stride=stride, groups=groups)


def _normed(tower: Model, name: str, x: Tensor, active: bool = False) -> Tensor:
    """Return maps by RMSNorm over the channels of each place, and through GELU where they are to be active."""
    y = x * torch.rsqrt(x.square().mean(1, keepdim=True) + float(tower.sizes["eps"]))
    y = y * tower.weights.vector(f"{name}.weight").view(1, -1, 1, 1)
    return torch.nn.functional.gelu(y, approximate="tanh") if active else y
