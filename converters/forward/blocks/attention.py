"""Attention of decoders: projections, norms, positions and caps of each family."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ggferry.converters.forward.blocks.latent_attention import latent
from ggferry.converters.forward.blocks.rope import rotate
from ggferry.converters.forward.blocks.softmax_attention import attend, distances, later
from ggferry.converters.forward.model import Model, parts
from ggferry.support.lazy_import import lazy

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from ggferry.converters.forward.blocks.rope import Turn
else:
    torch = lazy("torch")


def attention(model: Model, block: str, x: Tensor, turn: Turn, window: int) -> Tensor:
    """The attention branch of a block: x and result `(tokens, n_embd)`. `window`: tokens it reaches back, 0 for all."""
    branch = {"grouped": grouped, "latent": latent}[model.recipe.attention]
    return model.linear(f"{block}attn_output", branch(model, block, x, turn, window))


def grouped(model: Model, block: str, x: Tensor, turn: Turn, window: int) -> Tensor:
    """Queries share keys and values in groups: `(tokens, n_head · value width)`."""
    sizes, style = model.sizes, model.recipe.rope
    q, k, v = (part.view(len(x), -1, width) for part, width in _projections(model, block, x))
    q = rotate(_qk_norm(model, f"{block}attn_q_norm", q), turn, style)
    k = rotate(_qk_norm(model, f"{block}attn_k_norm", k), turn, style)
    scale = float(sizes.get("attn_scale") or sizes["head_dim"] ** -0.5)
    slopes = alibi_slopes(q.shape[1], float(sizes.get("max_alibi") or 0))
    if model.recipe.alibi == "before":
        slopes = [slope * scale for slope in slopes]
    ahead = distances(model.where(len(x))) if slopes else None
    bias = None if ahead is None else lambda head: slopes[head] * ahead
    return attend(q, k, v, scale, later(model.where(len(x)), window), bias, float(sizes.get("attn_softcap") or 0))


def alibi_slopes(heads: int, largest: float) -> list[float]:
    """What each head's scores lose per token of distance (Press et al., 2108.12409); none where `largest` is 0.

    2^(-largest · (i + 1) / n) for the first n heads, n the largest power of two among them; for the others the odd
    members of the series of 2n (ggml `ggml_compute_forward_soft_max_f32`; transformers' BLOOM, Falcon and MPT).
    """
    whole = 1 << (heads.bit_length() - 1)
    powers = [(i + 1) / whole if i < whole else (2 * (i - whole) + 1) / (2 * whole) for i in range(heads)]
    return [2 ** (-largest * power) for power in powers] if largest else []


def _projections(model: Model, block: str, x: Tensor) -> list[tuple[Tensor, int]]:
    """Queries, keys and values of all heads, each with the width of a head."""
    sizes = model.sizes
    widths = sizes["head_dim"], sizes["head_dim"], sizes.get("head_dim_v", sizes["head_dim"])
    if model.recipe.qkv == "separate":
        qkv = [model.linear(f"{block}attn_{name}", x) for name in "qkv"]
    else:
        joint = model.linear(f"{block}attn_qkv", x)
        groups = sizes["n_head_kv"] if model.recipe.qkv == "grouped" else 1
        heads = sizes["n_head"] // groups, sizes["n_head_kv"] // groups, sizes["n_head_kv"] // groups
        cut = parts(joint.view(len(x), groups, -1), *(n * width for n, width in zip(heads, widths, strict=True)))
        qkv = [part.flatten(1) for part in cut]
    clamp = sizes.get("clamp_kqv")
    if clamp:
        qkv = [part.clamp(-clamp, clamp) for part in qkv]
    return list(zip(qkv, widths, strict=True))


def _qk_norm(model: Model, name: str, x: Tensor) -> Tensor:
    """x `(tokens, heads, width)` normed where the model norms its queries and keys: each head, or all at once."""
    if not model.has(name):
        return x
    weight = model.norm_weight(name)
    if model.recipe.qk_norm == "full":
        return (model.normed(x.flatten(1)) * weight).view(x.shape)
    return model.normed(x) * weight.view(-1, x.shape[-1])
