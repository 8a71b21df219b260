"""Alternating updates and the learned augmented residual (Gemma 3n).

The state is a few streams. A block computes one of them, and predicts and corrects the others. Streams are
`(streams, tokens, n_embd)`.

Definition: Baykal et al. (2301.13310), Menghani et al. (2411.07501); transformers `modeling_gemma3n.py`
(`Gemma3nTextAltUp`, `Gemma3nTextLaurelBlock`); llama.cpp `gemma3n.cpp`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ggferry.converters.forward.model import Model
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor

LEAST = 1e-5
"""The least mean square of a stream to divide by."""


def spread(model: Model, x: Tensor) -> Tensor:
    """Return the streams of x `(tokens, n_embd)`: x itself, and its projections scaled to the magnitude of x."""
    streams = range(model.sizes["n_altup"] - 1)
    return torch.stack([x, *(_as_large(x, model.weights.item_linear("altup_proj.weight", n, x)) for n in streams)])


def gathered(model: Model, streams: Tensor) -> Tensor:
    """Return the mean of the streams, `(tokens, n_embd)`.

    All but the first are projected back and scaled to the magnitude of the first.
    """
    back = (model.weights.item_linear("altup_unembd_proj.weight", n, x) for n, x in enumerate(streams[1:]))
    return torch.stack([streams[0], *(_as_large(streams[0], x) for x in back)]).mean(0)


def _as_large(x: Tensor, other: Tensor) -> Tensor:
    target = x.square().mean(-1, keepdim=True).sqrt()
    return other * target / other.square().mean(-1, keepdim=True).clamp(min=LEAST).sqrt()


def predicted(model: Model, block: str, streams: Tensor) -> Tensor:
    """Return a block's prediction of every stream: the stream plus a mixture of all, weighted by the active one."""
    count = len(streams)
    coefs = model.linear(f"{block}altup_predict_coef", _modalities(model, block, streams[model.sizes["altup_active"]]))
    return streams + torch.einsum("ste,tos->ote", streams, coefs.view(-1, count, count))


def corrected(model: Model, block: str, streams: Tensor, active: Tensor) -> Tensor:
    """Return the predicted streams, each corrected by a share of the difference between `active` and its prediction.

    `active` is the computed stream, `(tokens, n_embd)`.
    """
    coefs = model.linear(f"{block}altup_correct_coef", _modalities(model, block, active)) + 1
    return streams + (active - streams[model.sizes["altup_active"]]) * coefs.T[..., None]


def _modalities(model: Model, block: str, x: Tensor) -> Tensor:
    routed = model.linear(f"{block}altup_router", model.norm(f"{block}altup_router_norm", x) / x.shape[-1])
    return torch.tanh(routed)


def laurel(model: Model, block: str, x: Tensor) -> Tensor:
    """Return x plus its low-rank branch, which runs in parallel with attention: `(tokens, n_embd)`."""
    low = model.linear(f"{block}laurel_l", x)
    return x + model.norm(f"{block}laurel_post_norm", model.linear(f"{block}laurel_r", low))
