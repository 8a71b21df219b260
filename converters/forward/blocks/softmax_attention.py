"""Softmax attention of all families: within or between sequences, causal, windowed, with a bias, capped."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ggferry.converters.forward.model import Model
from ggferry.support.lazy_import import lazy

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    Bias = Callable[[int], Tensor]
    """The bias of a head, by its number: `(n, m)`."""
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
    """Return an attention branch, from projection to projection: x `(n, width)`, result `(n, width)`.

    Args:
        model: The model.
        branch: How the names of the projections begin: `branch`_q, _k, _v and _`output`.
        x: What the queries are made of.
        over: What the keys and values are made of, `(m, width)`.
        heads: Number of heads.
        scale: As for `attend`.
        bias: As for `attend`.
        causal: Whether each position sees only itself and earlier ones.
        output: How the name of the output projection ends.
    """
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
    """Return softmax attention `(n, heads · value width)`.

    Args:
        q: Queries, `(n, heads, width)`.
        k: Keys, `(m, groups, width)`; consecutive heads share a group.
        v: Values, `(m, groups, value width)`.
        scale: Factor of the scores, by default 1/√(width of a head).
        hidden: What is not seen, bool `(n, m)`, or `(groups, n, m)` where groups see different tokens.
        bias: Added to the scaled scores of a head.
        cap: Scores then become cap · tanh(score / cap); 0 for no cap.
        sinks: `(heads,)`; a further score of each head, which takes its share of the softmax and has no value.
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
            own = hidden if hidden.ndim == 2 else hidden[head // share]
            scores = scores.masked_fill(own, float("-inf"))
        if sinks is not None:
            scores = torch.cat((scores, sinks[head].expand(len(q), 1)), -1)
        out[:, head] = scores.softmax(-1)[:, : len(k)] @ v[:, head // share]
    return out.flatten(1)


def distances(at: Tensor | int) -> Tensor:
    """Return how far each token is ahead of each other one, int64 `(count, count)`; negative for earlier tokens.

    `at` holds the positions, or the number of consecutive tokens.
    """
    at = torch.arange(at) if isinstance(at, int) else at
    return at[None, :] - at[:, None]


def later(at: Tensor | int, window: int = 0) -> Tensor:
    """Return what causal attention does not see, bool `(count, count)`.

    That is later tokens and, with a window, those `window` or more before.
    """
    ahead = distances(at)
    return (ahead > 0) | (ahead <= -window) if window else ahead > 0


def outside_window(at: Tensor, window: int) -> Tensor | None:
    """Return what attention to both sides does not see, bool `(count, count)`; None for nothing.

    With a window, that is what is farther than half of it (llama.cpp, LLAMA_SWA_TYPE_SYMMETRIC).
    """
    return distances(at).abs() > window // 2 if window else None


def outside_chunk(at: Tensor, chunk: int) -> Tensor:
    """Return what attention in chunks does not see, bool `(count, count)`.

    That is later tokens, and those of earlier chunks.
    """
    number = at // chunk
    return later(at) | (number[None, :] != number[:, None])
