"""T5: an encoder reads the tokens, and a decoder continues its start token from the encoder's states.

Both add a bias of distance to scores that they do not scale. Definition: Raffel et al. (1910.10683); transformers
`modeling_t5.py`; llama.cpp `src/models/t5.cpp`, which uses 128 as the greatest distance of every model and does not
scale logits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ggferry.converters.forward.blocks.softmax_attention import attention, distances
from ggferry.converters.forward.model import ACTIVATIONS, Model, Result
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor

RESULT = Result(
    "decoder logits", how="the encoder reads the tokens, and the decoder is given them behind its start token"
)


def logits(model: Model, tokens: Sequence[int], progress: Callable[[int], None]) -> Tensor:
    """Return the decoder's logits, float32 `(tokens, n_vocab)`.

    The encoder reads all tokens; the decoder reads its start token and then all tokens but the last.
    """
    states = encode(model, tokens, progress)
    given = [model.sizes["decoder_start"], *tokens[:-1]]
    x = _blocks(model, "dec", model.sizes["n_layer_dec"], given, progress, states)
    scale = model.sizes.get("logit_scale")
    if scale is None:  # a file of another converter: what is tied is scaled, as in T5's first release
        scale = 1.0 if model.has("output") else model.sizes["n_embd"] ** -0.5
    return model.linear("output" if model.has("output") else "token_embd", x * scale)


def encode(model: Model, tokens: Sequence[int], progress: Callable[[int], None]) -> Tensor:
    """Return the states of the encoder, float32 `(tokens, n_embd)`."""
    return _blocks(model, "enc", model.sizes["n_layer"], tokens, progress)


def _blocks(
    model: Model,
    part: str,
    count: int,
    tokens: Sequence[int],
    progress: Callable[[int], None],
    states: Tensor | None = None,
) -> Tensor:
    """Return the states after all blocks of a part and its last norm.

    `states` are the encoder's, for the decoder to attend to; None for the encoder itself.
    """
    x, heads = model.weights.rows("token_embd.weight", tokens), model.sizes["n_head"]
    buckets = distance_buckets(len(tokens), model.sizes["n_buckets"], model.sizes["max_distance"], states is None)
    for number in range(count):
        block = f"{part}.blk.{number}."
        own = f"{block}attn_rel_b" if model.has(f"{block}attn_rel_b") else f"{part}.blk.0.attn_rel_b"
        bias = model.weights.vector(f"{own}.weight").view(-1, heads)[buckets].unbind(-1).__getitem__
        read = model.norm(f"{block}attn_norm", x)
        x = x + attention(model, f"{block}attn", read, read, heads, 1.0, bias, causal=states is not None, output="o")
        if states is not None:
            read = model.norm(f"{block}cross_attn_norm", x)
            x = x + attention(model, f"{block}cross_attn", read, states, heads, 1.0, output="o")
        x = x + _feed_forward(model, block, model.norm(f"{block}ffn_norm", x))
        progress(1)
    return model.norm(f"{part}.output_norm", x)


def _feed_forward(model: Model, block: str, x: Tensor) -> Tensor:
    """Return the feed-forward branch: gated by the tanh form of gelu where there is a gate, else relu.

    That is what T5's configurations mean by their names for the two.
    """
    up = model.linear(f"{block}ffn_up", x)
    if model.has(f"{block}ffn_gate"):
        return model.linear(f"{block}ffn_down", ACTIVATIONS["gelu_tanh"](model.linear(f"{block}ffn_gate", x)) * up)
    return model.linear(f"{block}ffn_down", ACTIVATIONS["relu"](up))


def distance_buckets(count: int, buckets: int, furthest: int, both_ways: bool) -> Tensor:
    """Return the bucket of the distance from each position to each other one, int64 `(count, count)`.

    Half of the buckets hold one distance each. The others grow with its logarithm up to `furthest`, and the last one
    holds all greater distances. With `both_ways`, later positions have buckets of their own; otherwise they are hidden,
    and their bucket is 0.
    """
    distance = distances(count)
    first = torch.zeros_like(distance)
    if both_ways:
        buckets //= 2
        first = (distance > 0) * buckets
        distance = distance.abs()
    else:
        distance = -distance.clamp(max=0)
    exact = buckets // 2
    growth = torch.log(distance.clamp(min=1).float() / exact) / math.log(furthest / exact)
    far = (exact + (growth * (buckets - exact)).long()).clamp(max=buckets - 1)
    return first + torch.where(distance < exact, distance, far)
