"""Attention of decoders: projections, norms, positions and caps of each family."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

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
    ahead = distances(len(x)) if slopes else None
    bias = None if ahead is None else lambda head: slopes[head] * ahead
    return attend(q, k, v, scale, later(len(x), window), bias, float(sizes.get("attn_softcap") or 0))


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


def latent(model: Model, block: str, x: Tensor, turn: Turn, window: int) -> Tensor:
    """DeepSeek's multi-head latent attention: keys and values are expanded from one low-rank vector a token, and one
    rotary key serves all heads."""
    sizes = model.sizes
    heads, rank, n_rot, width = sizes["n_head"], sizes["kv_rank"], sizes["n_rot"], sizes["head_dim_mla"]
    q_plain, q_turned = parts(_latent_queries(model, block, x).view(len(x), heads, width), width - n_rot, n_rot)
    low, k_turned = parts(model.linear(f"{block}attn_kv_a_mqa", x), rank, n_rot)
    k_plain, v = _expanded(model, block, model.norm(f"{block}attn_kv_a_norm", low))
    q_turned = rotate(q_turned, turn, model.recipe.rope)
    k_turned = rotate(k_turned[:, None], turn, model.recipe.rope).expand(-1, heads, -1)
    scale = width**-0.5 * _yarn_scale(model)
    q, k = torch.cat((q_plain, q_turned), -1), torch.cat((k_plain, k_turned), -1)
    return attend(q, k, v, scale, later(len(x), window))


def _latent_queries(model: Model, block: str, x: Tensor) -> Tensor:
    """Queries at once, or through a low rank of their own."""
    if not model.has(f"{block}attn_q_a"):
        return model.linear(f"{block}attn_q", x)
    low = model.norm(f"{block}attn_q_a_norm", model.linear(f"{block}attn_q_a", x))
    return model.linear(f"{block}attn_q_b", low)


def _expanded(model: Model, block: str, low: Tensor) -> tuple[Tensor, Tensor]:
    """Keys without position `(tokens, heads, width - n_rot)` and values, from the low rank."""
    sizes, weights = model.sizes, model.weights
    heads, plain = sizes["n_head"], sizes["head_dim_mla"] - sizes["n_rot"]
    k_name, v_name = f"{block}attn_k_b.weight", f"{block}attn_v_b.weight"
    if model.recipe.latent_kv == "joint":
        joint = weights.linear(k_name, low).view(len(low), heads, -1)
        return joint[..., :plain], joint[..., plain:]
    keys = [low @ weights.item(k_name, head) for head in range(heads)]
    values = [weights.item_linear(v_name, head, low) for head in range(heads)]
    return torch.stack(keys, 1), torch.stack(values, 1)


def _yarn_scale(model: Model) -> float:
    """yarn stretches the scores too: (1 + yarn_log_multiplier · ln factor)² (llama.cpp deepseek2.cpp; transformers
    `yarn_apply_mscale`)."""
    multiplier, factor = model.sizes.get("yarn_log_mul") or 0.0, float(model.sizes.get("rope_factor", 1.0))
    return (1.0 + multiplier * math.log(factor)) ** 2 if factor > 1 else 1.0
