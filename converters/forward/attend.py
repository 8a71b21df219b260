"""Softmax attention as encoders and their decoders have it: over all positions, over another sequence, with a bias."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ggferry.converters.forward.model import Model
from ggferry.quant.registry import lazy

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = lazy("torch")


def attention(
    model: Model,
    branch: str,
    x: Tensor,
    over: Tensor,
    heads: int,
    scale: float | None = None,
    bias: Sequence[Tensor] | None = None,
    causal: bool = False,
    output: str = "output",
) -> Tensor:
    """The attention branch whose projections are named `branch`_q, _k, _v and _`output`: x `(n, width)` attends to
    `over` `(m, width)`; result `(n, width)`. The other arguments are `attend`'s."""
    q, k, v = (
        model.linear(f"{branch}_{name}", read).view(len(read), heads, -1)
        for name, read in (("q", x), ("k", over), ("v", over))
    )
    return model.linear(f"{branch}_{output}", attend(q, k, v, scale, bias, causal))


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    bias: Sequence[Tensor] | None = None,
    causal: bool = False,
) -> Tensor:
    """q `(n, heads, width)` over k, v `(m, heads, width)`: `(n, heads · width)`.

    `scale`: of the scores, by default 1/√(width of a head). `bias`: `(n, m)` a head, added to the scaled scores.
    `causal`: position i sees 0..i only.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    hidden = torch.ones((len(q), len(k)), dtype=torch.bool).triu(1) if causal else None
    out = torch.empty((len(q), q.shape[1], v.shape[-1]))
    for head in range(q.shape[1]):
        scores = q[:, head] @ k[:, head].T * scale
        if bias is not None:
            scores = scores + bias[head]
        if hidden is not None:
            scores = scores.masked_fill(hidden, float("-inf"))
        out[:, head] = scores.softmax(-1) @ v[:, head]
    return out.flatten(1)
