"""Short causal convolutions: every channel combines the last few tokens by a kernel of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ggferry.converters.forward.model import Model, parts
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor


def convolved(model: Model, name: str, x: Tensor, ahead: int = 0, dilation: int = 1) -> Tensor:
    """Return x `(tokens, channels)` convolved with the kernels of tensor `name`, plus its bias, if it has one.

    The kernels' last axis is the taps; the last tap multiplies the newest token, or the one `ahead` of it.
    Taps are `dilation` tokens from each other.
    """
    kernel = model.weights.vector(f"{name}.weight").view(x.shape[-1], -1)
    starts = range(0, kernel.shape[-1] * dilation, dilation)
    padded = torch.cat((x.new_zeros(starts[-1] - ahead, x.shape[-1]), x, x.new_zeros(ahead, x.shape[-1])))
    mixed = torch.stack([kernel[:, tap] * padded[at : at + len(x)] for tap, at in enumerate(starts)]).sum(0)
    return model.biased(name, mixed)


def short_convolution(model: Model, block: str, x: Tensor) -> Tensor:
    """Return LFM2's mixer, with one gate before the convolution and one after it: x and result `(tokens, n_embd)`.

    In a model that sees what follows, the middle tap multiplies the token itself.
    Source: llama.cpp `lfm2.cpp`; transformers `Lfm2ShortConv`.
    """
    width = model.sizes["n_embd"]
    before, after, x = parts(model.linear(f"{block}shortconv.in_proj", x), width, width, width)
    ahead = 0 if model.sizes.get("causal", True) else (model.sizes["n_conv"] - 1) // 2
    mixed = after * convolved(model, f"{block}shortconv.conv", before * x, ahead)
    return model.linear(f"{block}shortconv.out_proj", mixed)
