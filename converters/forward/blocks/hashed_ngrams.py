"""Embeddings of hashed sequences of tokens, which one block adds to every stream (Qwen4-Exp).

A sequence of two to `ngram_size` tokens that ends with a token is hashed by several heads, each to a row of a table.
The rows together are one embedding, which becomes a value, gated for each stream and convolved with earlier ones.
Definitions: transformers `Qwen4ExpTextNGramEmbedding`, `Qwen4ExpTextPLELayer`; llama.cpp `qwen4exp.cpp`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ggferry.converters.forward.blocks.recurrent.causal_convolution import convolved
from ggferry.converters.forward.model import Model, silu
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor

LEAST = 1e-6
"""The least product of a key and a query whose root is taken."""


def from_ngrams(model: Model, block: str, streams: Tensor, tokens: Sequence[int]) -> Tensor:
    """Return what the block adds to its streams, both `(tokens, streams, n_embd)`, for the sequences of `tokens`."""
    sizes = model.sizes
    rows = [row for at in range(len(tokens)) for row in hashed(model, tokens, at)]
    found = model.weights.rows("per_layer_token_embd.weight", rows).view(len(tokens), -1)
    key = grouped_norm(model, f"{block}ple_norm_key", model.linear(f"{block}ple_key", found).view(streams.shape))
    query = grouped_norm(model, f"{block}ple_norm_query", streams)
    alike = (key * query).sum(-1, keepdim=True) * streams.shape[-1] ** -0.5
    gate = torch.sigmoid(alike.sign() * alike.abs().clamp(min=LEAST).sqrt())
    value = gate * model.linear(f"{block}ple_value", found)[:, None]
    normed = grouped_norm(model, f"{block}ple_norm_conv", value).flatten(1)
    mixed = silu(convolved(model, f"{block}ple_conv1d", normed, dilation=sizes["ngram_size"]))
    return value + mixed.view(value.shape)


def hashed(model: Model, tokens: Sequence[int], at: int) -> Iterator[int]:
    """Yield the row of each head for the token number `at`: shorter sequences first.

    What lies before the text, and before the last end of a text, counts as that end. A product fits 63 bits.
    """
    sizes = model.sizes
    end, seen = sizes["ple_eos"], [tokens[at]]
    for back in range(1, sizes["ngram_size"]):
        cut = at < back or tokens[at - back] == end or (back > 1 and seen[-1] == end)
        seen.append(end if cut else tokens[at - back])
    mixed, head = seen[0] * sizes["multipliers"][0], 0
    for token, factor in zip(seen[1:], sizes["multipliers"][1:], strict=False):
        mixed ^= token * factor
        for _ in range(sizes["heads_per_ngram"]):
            yield mixed % sizes["head_sizes"][head] + sizes["head_offsets"][head]
            head += 1


def grouped_norm(model: Model, name: str, streams: Tensor) -> Tensor:
    """Return streams `(tokens, streams, n_embd)`, each normalized by itself, with weights of its own."""
    return model.normed(streams) * model.norm_weight(name).view(streams.shape[1:])
