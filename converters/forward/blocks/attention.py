"""Attention of decoders: grouped queries, and what single families add to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ggferry.converters.forward.blocks.heads import projected_heads
from ggferry.converters.forward.blocks.latent_attention import latent
from ggferry.converters.forward.blocks.softmax_attention import attend, distances, later, outside_chunk, outside_window
from ggferry.converters.forward.blocks.sparse.indexer import not_chosen, not_chosen_by_mean
from ggferry.converters.forward.model import Model
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from ggferry.converters.forward.blocks.rope import Rotation


def attention(model: Model, block: str, x: Tensor, turn: Rotation, window: int) -> Tensor:
    """Return the attention branch of a block: x and result `(tokens, n_embd)`.

    `window` is the number of tokens it sees, up to and with the current one, or the length of a chunk; 0 for all.
    """
    branch = {"grouped": grouped, "latent": latent}[model.recipe.attention]
    seen = branch(model, block, x, turn, window)
    if model.recipe.attention == "latent":
        seen = _gated(model, block, x, seen, None)
    if model.has(f"{block}attn_sub_norm"):
        seen = model.norm(f"{block}attn_sub_norm", seen)
    return model.scaled_linear(f"{block}attn_output", seen)


def grouped(model: Model, block: str, x: Tensor, turn: Rotation, window: int) -> Tensor:
    """Return grouped-query attention before its output projection: `(tokens, n_head · value width)`."""
    sizes = model.sizes
    q, k, v, gate = projected_heads(model, block, x, turn, window)
    if model.recipe.query_heads == "tiled":
        k, v = (part.repeat(1, q.shape[1] // part.shape[1], 1) for part in (k, v))
    scale = float(sizes.get("attn_scale") or sizes["head_dim"] ** -0.5)
    slopes = alibi_slopes(q.shape[1], float(sizes.get("max_alibi") or 0))
    if model.recipe.alibi == "before":
        slopes = [slope * scale for slope in slopes]
    ahead = distances(model.where(len(x))) if slopes else None
    bias = None if ahead is None else lambda head: slopes[head] * ahead
    chunked = window and model.recipe.window == "chunked"
    causal = outside_chunk if chunked else later
    hidden = (causal if sizes.get("causal", True) else outside_window)(model.where(len(x)), window)
    if hidden is not None and model.has(f"{block}indexer.q_proj"):
        choose = not_chosen_by_mean if model.sizes.get("block_tokens") else not_chosen
        hidden = choose(model, block, x, turn, hidden)
    sinks = model.weights.vector(f"{block}attn_sinks.weight") if model.has(f"{block}attn_sinks") else None
    out = attend(q, k, v, scale, hidden, bias, float(sizes.get("attn_softcap") or 0), sinks)
    return _gated(model, block, x, out * model.scale("value_scale"), gate)


def _gated(model: Model, block: str, x: Tensor, out: Tensor, gate: Tensor | None) -> Tensor:
    """Return `out` `(tokens, n_head · width)` multiplied by a gate for each element or each head.

    The gate comes from the query projection, or from a matrix of its own.
    """
    if gate is None:
        if not model.has(f"{block}attn_gate"):
            return out
        gate = model.linear(f"{block}attn_gate", x)
    act = torch.sigmoid if model.recipe.gate_activation == "sigmoid" else torch.nn.functional.softplus
    return (out.view(*gate.shape, -1) * act(gate)[..., None]).flatten(1)


def alibi_slopes(heads: int, largest: float) -> list[float]:
    """Return how much each head's scores lose per token of distance; an empty list where `largest` is 0.

    Source: Press et al., 2108.12409. The slope is 2^(-largest · (i + 1) / n) for the first n heads, where n is the
    largest power of two up to the number of heads; the other heads take the odd members of the series of 2n (ggml
    `ggml_compute_forward_soft_max_f32`; transformers' BLOOM, Falcon and MPT).
    """
    whole = 1 << (heads.bit_length() - 1)
    powers = [(i + 1) / whole if i < whole else (2 * (i - whole) + 1) / (2 * whole) for i in range(heads)]
    return [2 ** (-largest * power) for power in powers] if largest else []
