"""Decoders whose state is several streams: every branch reads a mixture of them, and is spread over all of them.

Definitions: hyper-connections (2409.19606), with a doubly stochastic mixture of the streams themselves (2512.24880) or
without one (Hunyuan 4), or with a gate for every value that is read (Qwen4-Exp); llama.cpp `deepseek4.cpp`,
`glm5-next.cpp`, `hy-v4.cpp`, `qwen4exp.cpp`; transformers `modeling_{deepseek_v4,glm5_next,hy_v4,qwen4_exp}.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ggferry.converters.forward.blocks.feed_forward import feed_forward
from ggferry.converters.forward.blocks.hashed_ngrams import from_ngrams, grouped_norm
from ggferry.converters.forward.computations.decoder import (
    attended,
    embedded,
    further_logits,
    next_embedded,
    unembedded,
)
from ggferry.converters.forward.model import Model, parts, silu
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor

    Branch = Callable[[Tensor], Tensor]

PLACES = True


def logits(model: Model, tokens: Sequence[int], progress: Callable[[int], None]) -> Tensor:
    """Return the logits of every wanted position, float32 `(tokens, n_vocab)`; `progress` counts blocks."""
    return unembedded(model, _last_state(model, model.selected(_last_streams(model, tokens, progress))))


def logits_and_further(model: Model, tokens: Sequence[int], progress: Callable[[int], None]) -> Tensor:
    """Return what `logits` does, then the logits of each block that predicts further tokens, float32 `(rows, n_vocab)`.

    GLM-5.3's have one state and read the decoder's last one (llama.cpp `glm5-next.cpp`, `graph_mtp`); Qwen4-Exp's have
    streams, and read the decoder's.
    """
    streams = _last_streams(model, tokens, progress)
    x = _last_state(model, streams)
    further = further_from_streams(model, tokens, streams) if have_streams(model) else further_logits(model, tokens, x)
    return torch.cat([unembedded(model, model.selected(x)), *further])


def have_streams(model: Model) -> bool:
    """Return whether blocks that predict further tokens have several streams."""
    first = f"blk.{model.sizes['n_layer']}.hc_attn"
    return model.has(f"{first}_down") or model.has(f"{first}_fn")


def further_from_streams(model: Model, tokens: Sequence[int], streams: Tensor) -> Iterator[Tensor]:
    """Yield the logits of each block that predicts further tokens, over the decoder's streams.

    Each stream is joined with the token that follows by the same matrix. Definitions: SGLang `qwen4_exp_mtp.py`;
    llama.cpp `qwen4exp.cpp`, which normalizes each stream by itself there, and `deepseek4.cpp`; DeepSeek V4's
    `inference/model.py`, `MTPBlock`.
    """
    for ahead in range(1, min(1 + model.sizes["n_nextn"], len(tokens))):
        number, count = model.sizes["n_layer"] + ahead - 1, len(tokens) - ahead
        block, name = model.beyond(ahead, count).at(number), f"blk.{number}."
        streams = _block(block, name, _next_streams(model, name, tokens[ahead:], streams[:-1]))
        requested = range(len(tokens)) if model.places.rows is None else model.places.rows
        rows = streams[[row for row in requested if row < count]]
        yield unembedded(model, _further_state(model, name, rows), f"{name}nextn.shared_head_head")


def _further_state(model: Model, block: str, streams: Tensor) -> Tensor:
    """Return the one normalized state of each token behind a block that predicts further tokens, `(tokens, n_embd)`."""
    if model.has(f"{block}nextn.hc_head_down"):
        return _gated_mean(model, f"{block}nextn.hc_head", grouped_norm(model, f"{block}nextn.hc_head_norm", streams))
    own = f"{block}nextn.shared_head_norm"
    return model.norm(own if model.has(own) else "output_norm", collapsed(model, streams))


def _next_streams(model: Model, block: str, tokens: Sequence[int], streams: Tensor) -> Tensor:
    """Return what a block reads that predicts further tokens: its tokens and the streams before, as the latter."""
    read = next_embedded(model, block, tokens)[:, None].expand_as(streams)
    together = model.has(f"{block}nextn.hc_head_down")  # Qwen4-Exp; DeepSeek V4 has one norm for every stream
    normed = model.norm(f"{block}nextn.hnorm", streams.flatten(1) if together else streams).view(streams.shape)
    name = f"{block}nextn.eh_proj"
    if len(model.weights.refs(f"{name}.weight")) == 1:
        return model.linear(name, torch.cat([read, normed], -1).flatten(0, 1)).view(streams.shape)
    parts = [model.weights.item_linear(f"{name}.weight", n, x.flatten(0, 1)) for n, x in enumerate((read, normed))]
    return (parts[0] + parts[1]).view(streams.shape)


def _last_streams(model: Model, tokens: Sequence[int], progress: Callable[[int], None]) -> Tensor:
    """Return the streams behind the last block, `(tokens, streams, n_embd)`."""
    model.kept["tokens"] = tuple(tokens)
    streams = embedded(model, tokens)[:, None].repeat(1, model.sizes["n_streams"], 1)
    for number in range(model.sizes["n_layer"]):
        name = f"blk.{number}."
        if model.has(f"{name}ple_key"):
            streams = streams + from_ngrams(model, name, streams, tokens)
        streams = _block(model.at(number), name, streams)
        progress(1)
    return streams


def _last_state(model: Model, streams: Tensor) -> Tensor:
    """Return the one normalized state of each token, of which the logits are made, `(tokens, n_embd)`."""
    x = collapsed(model, streams)
    return model.norm("output_norm", x) if model.has("output_norm") else x


def _block(model: Model, block: str, streams: Tensor) -> Tensor:
    """Return the streams after one block, `(tokens, streams, n_embd)`."""

    def attending(x: Tensor) -> Tensor:
        seen = attended(model, block, x)
        assert seen is not None
        return seen

    return through_branches(model, block, streams, attending)


def through_branches(model: Model, block: str, streams: Tensor, attending: Branch) -> Tensor:
    """Return the streams after a block whose attention branch is `attending`, of its normalized input."""

    def read(norm: str, x: Tensor) -> Tensor:
        return model.norm(f"{block}{norm}", x) if model.has(f"{block}{norm}") else x

    streams = _connected(model, f"{block}hc_attn", streams, lambda x: attending(read("attn_norm", x)))
    return _connected(model, f"{block}hc_ffn", streams, lambda x: feed_forward(model, block, read("ffn_norm", x)))


def _connected(model: Model, name: str, streams: Tensor, branch: Branch) -> Tensor:
    """Return the streams with what the branch makes of their mixture, each in a share of its own.

    Where the model mixes the streams with each other, they are so before that.
    """
    if model.has(f"{name}_down"):
        return _gated(model, name, streams, branch)
    count, eps = streams.shape[1], float(model.sizes["hc_eps"])
    mixes = model.linear(f"{name}_fn", model.normed(streams.flatten(1)))
    scale, base = (model.weights.vector(f"{name}_{part}.weight") for part in ("scale", "base"))
    reading, writing, *rest = parts(mixes, count, count, *([count * count] if len(scale) > 2 else []))
    taken = torch.sigmoid(reading * scale[0] + base[:count]) + eps
    given = torch.sigmoid(writing * scale[1] + base[count : 2 * count])
    if rest:
        given = 2 * given
        mixture = _doubly_stochastic(model, (rest[0] * scale[2] + base[2 * count :]).view(-1, count, count))
        residual = torch.einsum("tsd,tsw->tdw", mixture, streams)
    else:
        given, residual = float(model.sizes["hc_magnitude"]) * given + eps, streams
    out = branch((taken[..., None] * streams).sum(1))
    return residual + given[..., None] * out[:, None]


def _gated(model: Model, name: str, streams: Tensor, branch: Branch) -> Tensor:
    """Return the streams with what the branch makes of the gated ones, in shares from none to twice itself."""
    normed = grouped_norm(model, f"{name}_norm", streams)
    given = 2 * torch.sigmoid(model.linear(f"{name}_inject", normed.flatten(1)) / streams.shape[1])
    return streams + given[..., None] * branch(_gated_mean(model, name, normed))[:, None]


def _gated_mean(model: Model, name: str, normed: Tensor) -> Tensor:
    """Return the mean of normalized streams `(tokens, streams, n_embd)` whose values are gated, `(tokens, n_embd)`.

    The gates are made by way of a low rank.
    """
    low = silu(model.linear(f"{name}_down", normed.flatten(1)) / normed.shape[1])
    gates = torch.sigmoid(model.linear(f"{name}_up", low))
    return (gates.view(normed.shape) * normed).mean(1)


def _doubly_stochastic(model: Model, scores: Tensor) -> Tensor:
    """Return scores `(tokens, from, to)` made such that rows and columns sum to one, by Sinkhorn's iterations."""
    eps = float(model.sizes["hc_eps"])
    mixture = scores.softmax(-1) + eps
    mixture = mixture / (mixture.sum(1, keepdim=True) + eps)
    for _ in range(1, int(model.sizes["hc_iterations"])):
        mixture = mixture / (mixture.sum(2, keepdim=True) + eps)
        mixture = mixture / (mixture.sum(1, keepdim=True) + eps)
    return mixture


def collapsed(model: Model, streams: Tensor) -> Tensor:
    """Return one state for each token: the streams' mixture, or their mean where nothing says how to mix them."""
    if model.has("output_hc_down"):
        return _gated_mean(model, "output_hc", grouped_norm(model, "output_hc_norm", streams))
    if not model.has("output_hc_fn"):
        return streams.mean(1)
    mixes = model.linear("output_hc_fn", model.normed(streams.flatten(1)))
    scale, base = (model.weights.vector(f"output_hc_{part}.weight") for part in ("scale", "base"))
    taken = torch.sigmoid(mixes * scale + base) + float(model.sizes["hc_eps"])
    return (taken[..., None] * streams).sum(1)
