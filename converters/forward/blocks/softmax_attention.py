"""Softmax attention, of all families: over one sequence or another, causal, windowed, with a bias, capped."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ggferry.converters.forward.model import Model
from ggferry.support.lazy_import import lazy

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    Bias = Callable[[int], Tensor]
    """Of a head by its number: `(n, m)`."""
else:
    torch = lazy("torch")


def attention(
    model: Model,
    branch: str,
    x: Tensor,
    over: Tensor,
    heads: int,
    scale: float | None = None,
    bias: Bias | None = None,
    causal: bool = False,
    output: str = "output",
) -> Tensor:
    """The attention branch whose projections are named `branch`_q, _k, _v and _`output`: x `(n, width)` attends to
    `over` `(m, width)`; result `(n, width)`. `scale`, `bias`: `attend`'s; `causal`: to what came before alone."""
    q, k, v = (
        model.linear(f"{branch}_{name}", read).view(len(read), heads, -1)
        for name, read in (("q", x), ("k", over), ("v", over))
    )
    hidden = later(len(x)) if causal else None
    return model.linear(f"{branch}_{output}", attend(q, k, v, scale, hidden, bias))


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    hidden: Tensor | None = None,
    bias: Bias | None = None,
    cap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    """q `(n, heads, width)` over k, v `(m, groups, width)`, which heads share in groups: `(n, heads · width)`.

    `scale`: of the scores, by default 1/√(width of a head). `hidden`: bool `(n, m)`, what is not seen. `bias`: added to
    the scaled scores. `cap`: then they pass through cap · tanh(score / cap). `sinks`: `(heads,)`, a further score a
    head, which takes its share and gives nothing.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    heads = q.shape[1]
    share = heads // k.shape[1]
    out = torch.empty((len(q), heads, v.shape[-1]))
    for head in range(heads):
        scores = q[:, head] @ k[:, head // share].T * scale
        if bias is not None:
            scores = scores + bias(head)
        if cap:
            scores = cap * torch.tanh(scores / cap)
        if hidden is not None:
            scores = scores.masked_fill(hidden, float("-inf"))
        if sinks is not None:
            scores = torch.cat((scores, sinks[head].expand(len(q), 1)), -1)
        out[:, head] = scores.softmax(-1)[:, : len(k)] @ v[:, head // share]
    return out.flatten(1)


def distances(at: Tensor | int) -> Tensor:
    """How far each token lies ahead of each other, int64 `(count, count)`: negative for what came before. `at`: where
    each stands, or how many there are, one after the other."""
    at = torch.arange(at) if isinstance(at, int) else at
    return at[None, :] - at[:, None]


def later(at: Tensor | int, window: int = 0) -> Tensor:
    """What causal attention does not see, bool `(count, count)`: later tokens, and those `window` or more before."""
    ahead = distances(at)
    return (ahead > 0) | (ahead <= -window) if window else ahead > 0


def outside_chunk(at: Tensor, chunk: int) -> Tensor:
    """What attention in chunks does not see, bool `(count, count)`: later tokens, and those of earlier chunks."""
    number = at // chunk
    return later(at) | (number[None, :] != number[:, None])
