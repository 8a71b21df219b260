"""DeepSeek's multi-head latent attention.

Keys and values are expanded from one low-rank vector for each token, and one rotary key serves all heads.
Definitions: arXiv 2405.04434 §2.1; llama.cpp `deepseek2.cpp`, `minicpm3.cpp`, `plm.cpp`, `kimi-linear.cpp`;
transformers `modeling_deepseek_v3.py` and what is derived from it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ggferry.converters.forward.blocks.heads import tempered
from ggferry.converters.forward.blocks.rope import rotate
from ggferry.converters.forward.blocks.softmax_attention import attend, later
from ggferry.converters.forward.blocks.sparse.indexer import passed_over
from ggferry.converters.forward.model import Model, parts
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from ggferry.converters.forward.blocks.rope import Rotation


def latent(model: Model, block: str, x: Tensor, turn: Rotation, window: int) -> Tensor:
    """Return latent attention before its output projection.

    x is `(tokens, n_embd)`, the result `(tokens, n_head · value width)`.
    """
    sizes = model.sizes
    heads, rank, n_rot, width = sizes["n_head"], sizes["kv_rank"], sizes["n_rot"], sizes["head_dim_mla"]
    low_q, q = _queries(model, block, x)
    q_plain, q_rotated = parts(q.view(len(x), heads, width), width - n_rot, n_rot)
    low, k_rotated = parts(model.linear(f"{block}attn_kv_a_mqa", x), rank, n_rot)
    low = _low_rank_norm(model, f"{block}attn_kv_a_norm", low) * model.scale("low_kv_factor")
    k_plain, v = _expanded(model, block, low)
    if model.has(f"{block}attn_k_norm"):  # Dots 3 Note
        k_rotated = model.norm(f"{block}attn_k_norm", k_rotated)
    q_rotated = rotate(q_rotated, turn, model.rope)
    k_rotated = rotate(k_rotated[:, None], turn, model.rope).expand(-1, heads, -1)
    scale = width**-0.5 * _yarn_scale(model)
    hidden = later(model.where(len(x)), window)
    if not window:
        hidden = passed_over(model, block, x, low_q, turn, hidden)
    q = tempered(model, torch.cat((q_plain, q_rotated), -1), turn)
    sinks = model.weights.vector(f"{block}attn_sinks.weight") if model.has(f"{block}attn_sinks") else None
    return attend(q, torch.cat((k_plain, k_rotated), -1), v, scale, hidden, sinks=sinks)


def _queries(model: Model, block: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return (input of the query projection, queries); that input is x, or a low-rank vector."""
    if not model.has(f"{block}attn_q_a"):
        return x, model.linear(f"{block}attn_q", x)
    low = _low_rank_norm(model, f"{block}attn_q_a_norm", model.linear(f"{block}attn_q_a", x))
    low = low * model.scale("low_q_factor")
    return low, model.linear(f"{block}attn_q_b", low)


def _low_rank_norm(model: Model, name: str, x: Tensor) -> Tensor:
    """Return x normalized with the epsilon of the low ranks.

    transformers does not take that epsilon from the configuration.
    """
    eps = float(model.sizes.get("latent_eps") or model.sizes["eps"])
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * model.norm_weight(name)


def _expanded(model: Model, block: str, low: Tensor) -> tuple[Tensor, Tensor]:
    """Return keys without position `(tokens, heads, width - n_rot)` and values, expanded from the low-rank vectors."""
    sizes, weights = model.sizes, model.weights
    heads, plain = sizes["n_head"], sizes["head_dim_mla"] - sizes["n_rot"]
    k_name, v_name, whole = (f"{block}attn_{name}.weight" for name in ("k_b", "v_b", "kv_b"))
    if weights.has(whole) or model.recipe.latent_kv == "joint":
        joint = weights.linear(whole if weights.has(whole) else k_name, low).view(len(low), heads, -1)
        return joint[..., :plain], joint[..., plain:]
    keys = [low @ weights.item(k_name, head) for head in range(heads)]
    values = [weights.item_linear(v_name, head, low) for head in range(heads)]
    return torch.stack(keys, 1), torch.stack(values, 1)


def _yarn_scale(model: Model) -> float:
    """Return yarn's factor of the scores: (1 + yarn_log_multiplier · ln factor)².

    Source: llama.cpp deepseek2.cpp; transformers `yarn_apply_mscale`.
    """
    multiplier, factor = model.sizes.get("yarn_log_mul") or 0.0, float(model.sizes.get("rope_factor", 1.0))
    return (1.0 + multiplier * math.log(factor)) ** 2 if factor > 1 else 1.0
