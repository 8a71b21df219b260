"""Softmax attention of all families: within or between sequences, causal, windowed, with a bias, capped."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ggferry.converters.forward.device import CPU
from ggferry.converters.forward.model import Model
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor

    Bias = Callable[[int], Tensor]
    """The bias of a head, by its number: `(n, m)`."""

BLOCK, CACHED = 128, 1 << 18
"""The most queries whose scores are computed at once, and the most scores: a core's cache holds them."""


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
    heads, groups = q.shape[1], k.shape[1]
    share = heads // groups
    out = torch.empty((len(q), heads, v.shape[-1]))
    mask = None if hidden is None else torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
    blocks = _blocks(len(q), len(k), share, hidden)
    for group in range(groups):
        own = slice(group * share, (group + 1) * share)
        biases = None if bias is None else torch.stack([bias(head) for head in range(heads)[own]], 1)
        group_mask = mask if mask is None or mask.ndim == 2 else mask[group]
        for rows, seen in blocks:
            asking = q[rows, own].flatten(0, 1)  # heads of a group have the same keys: one product for all of them
            scores = (asking @ k[seen, group].T).mul_(scale).view(-1, share, seen.stop)
            if biases is not None:
                scores += biases[rows, :, seen]
            if cap:
                scores = cap * torch.tanh(scores / cap)
            if group_mask is not None:
                scores += group_mask[rows, None, seen]
            if sinks is not None:
                scores = torch.cat((scores, sinks[own, None].expand(len(scores), -1, 1)), -1)
            shares = scores.softmax(-1)[..., seen].flatten(0, 1)
            out[rows, own] = (shares @ v[seen, group]).view(-1, share, v.shape[-1])
    return out.flatten(1)


def _blocks(queries: int, keys: int, share: int, hidden: Tensor | None) -> list[tuple[slice, slice]]:
    """Return blocks of queries, each with the first keys: those up to the last one that a query of the block sees."""
    if hidden is not None and hidden.device.type != CPU:
        return [(slice(0, queries), slice(0, keys))]
    found, step = [], max(1, min(BLOCK, CACHED // (share * keys)))
    for first in range(0, queries, step):
        rows, last = slice(first, min(first + step, queries)), keys
        if hidden is not None:
            seen = (~hidden[..., rows, :]).flatten(0, -2).any(0).nonzero()
            last = int(seen[-1]) + 1 if len(seen) else 1
        found.append((rows, slice(0, last)))
    return found


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
