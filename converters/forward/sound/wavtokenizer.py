"""WavTokenizer's decoder: every code sees all others; the rows are of a spectrum.

Definition: jishengpeng/WavTokenizer `decoder/models.py` (`VocosBackbone`), `decoder/modules.py` (`ConvNeXtBlock`);
llama.cpp `src/models/wavtokenizer-dec.cpp`, whose gelu is a table of the tanh form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ggferry.converters.forward.model import Model, Result, silu
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor

RESULT = Result("rows of a spectrum", ranked=False)
_TAPS, _WIDE_TAPS, _ATTENDING, _LAST = 3, 7, 2, 5
"""Widths of kernels; the parts of the network over positions that attend to all, and that only norm."""


def logits(model: Model, tokens: Sequence[int], progress: Callable[[int], None]) -> Tensor:
    """Return logarithms of magnitudes, then phases, float32 `(tokens, n_embd_out)`."""
    x = _convolved(model, "conv1d", model.weights.rows("token_embd.weight", tokens).T, _WIDE_TAPS)
    for number in range(model.sizes["n_posnet"]):
        x = _over_positions(model, number, x)
    x = model.norm("token_embd_norm", x.T)
    for number in range(model.sizes["n_convnext"]):
        x = x + _branch(model, f"convnext.{number}.", x)
        progress(1)
    return model.linear("output", model.norm("output_norm", model.selected(x)))


def _over_positions(model: Model, number: int, x: Tensor) -> Tensor:
    """Return what a part of the network over positions makes of x `(n_width, tokens)`."""
    part = f"posnet.{number}."
    if number == _LAST:
        return _group_norm(model, f"{part}attn_norm", x)
    if number == _ATTENDING:
        read = _group_norm(model, f"{part}attn_norm", x)
        q, k, v = (_convolved(model, f"{part}attn_{name}", read, 1) for name in "qkv")
        shares = torch.softmax(q.T @ k * len(x) ** -0.5, dim=-1)
        return x + _convolved(model, f"{part}attn_output", v @ shares.T, 1)
    y = x
    for name in "12":
        y = silu(_group_norm(model, f"{part}norm{name}", y))
        y = _convolved(model, f"{part}conv{name}", y, _TAPS)
    return x + y


def _branch(model: Model, block: str, x: Tensor) -> Tensor:
    """Return the branch of a ConvNeXt block on x `(tokens, n_width)`."""
    y = model.norm(f"{block}norm", _convolved(model, f"{block}dw", x.T, _WIDE_TAPS, each=True).T)
    y = model.linear(f"{block}pw2", model.activate(model.linear(f"{block}pw1", y)))
    return y * model.weights.vector(f"{block}gamma.weight")


def _convolved(model: Model, name: str, x: Tensor, taps: int, each: bool = False) -> Tensor:
    """Return x `(columns, tokens)` convolved over the tokens, zeros beyond both ends; `each`: column by column."""
    kernel = model.weights.vector(f"{name}.weight").view(-1, 1 if each else len(x), taps)
    bias = model.weights.vector(f"{name}.bias").view(-1)
    groups = len(x) if each else 1
    return torch.nn.functional.conv1d(x[None], kernel, bias, padding=taps // 2, groups=groups)[0]


def _group_norm(model: Model, name: str, x: Tensor) -> Tensor:
    """Return x `(columns, tokens)` normalized group by group of columns, over all tokens."""
    weight, bias = (model.weights.vector(f"{name}.{part}").view(-1) for part in ("weight", "bias"))
    return torch.nn.functional.group_norm(x[None], model.sizes["n_groups"], weight, bias, model.sizes["group_eps"])[0]
