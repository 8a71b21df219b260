"""Queries, keys and values of all heads as attention compares them.

They are projected, normalized, rotated and scaled, or taken over from an earlier block.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ggferry.converters.forward.blocks.rope import rotate
from ggferry.converters.forward.model import Model, parts
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from ggferry.converters.forward.blocks.rope import Rotation

    Heads = tuple[Tensor, Tensor, Tensor, Tensor | None]
    """Queries, keys, values, `(tokens, heads, width)` each, and the gate that `Recipe.attn_gate` finds in the first."""


def projected_heads(model: Model, block: str, x: Tensor, turn: Rotation, window: int) -> Heads:
    """Return queries, keys and values of x `(tokens, n_embd)`, and the gate, if there is one.

    The last `shared_kv_layers` blocks use the keys and values of the last block before them that has the same kind of
    window (Gemma 3n and 4).
    """
    shared = model.sizes.get("shared_kv_layers") or 0
    reused = shared > 0 and model.number >= model.sizes["n_layer"] - shared
    q, k, v, gate = _projected(model, block, x, reused)
    q = tempered(model, _placed(model, f"{block}attn_q_norm", q, turn), turn)
    if reused:
        return q, *model.kept["keys and values", window > 0], gate
    k = _placed(model, f"{block}attn_k_norm", k, turn)
    v = model.normed(v) if model.recipe.v_norm else v
    if shared:
        model.kept["keys and values", window > 0] = k, v
    return q, k, v, gate


def _projected(model: Model, block: str, x: Tensor, queries_only: bool) -> Heads:
    """Return what the matrices give, before norms and rotation.

    Without a matrix for values, the keys are also the values (Gemma 4).
    """
    sizes, clamp, gate = model.sizes, model.sizes.get("clamp_kqv"), None
    width, width_v = sizes["head_dim"], sizes.get("head_dim_v", sizes["head_dim"])
    if model.recipe.qkv == "joint_kv":
        keys = sizes["n_head_kv"] * width
        joint_kv = model.linear(f"{block}attn_k", x)
        flat = [model.linear(f"{block}attn_q", x), joint_kv[:, :keys], joint_kv[:, keys:]]
    elif model.recipe.qkv == "gated":
        gate, *flat = model.linear(f"{block}attn_q", x).chunk(4, -1)
    elif model.recipe.qkv == "shards":
        shards = model.linear(f"{block}attn_q", x).view(len(x), 4, 3, -1)
        flat = [shards[:, :, part].flatten(1) for part in (0, 2, 1)]
    elif model.recipe.qkv == "separate" and not model.has(f"{block}attn_qkv"):
        names = "q" if queries_only else "qkv" if model.has(f"{block}attn_v") else "qkk"
        flat = [model.linear(f"{block}attn_{name}", x) for name in names]
    else:
        # GGUF may have cut apart what the source has in one matrix
        joint = "attn_qkv" if model.has(f"{block}attn_qkv") else "attn_q"
        flat = _cut(model, model.linear(f"{block}{joint}", x), width, width_v)
    if clamp:
        flat = [part.clamp(-clamp, clamp) for part in flat]
    if model.recipe.attn_gate == "query":
        flat[0], gate = (part.flatten(1) for part in parts(flat[0].view(len(x), -1, 2 * width), width, width))
    q, k, v = (flat[0], flat[0], flat[0]) if queries_only else flat
    return q.view(len(x), -1, width), k.view(len(x), -1, width), v.view(len(x), -1, width_v), gate


def _cut(model: Model, joint: Tensor, width: int, width_v: int) -> list[Tensor]:
    """Split the output of a fused matrix into queries, keys and values: one after the other, or group by group."""
    sizes = model.sizes
    counted = {"grouped": "n_head_kv", "ranks": "n_ranks"}.get(model.recipe.qkv)
    groups = sizes[counted] if counted else 1
    keys, values = (sizes["n_head_kv"] // groups * each for each in (width, width_v))
    joint = joint.view(len(joint), groups, -1)
    cut = parts(joint, joint.shape[-1] - keys - values, keys, values)  # queries may have gates beside them
    return [part.flatten(1) for part in cut]


def _placed(model: Model, name: str, x: Tensor, turn: Rotation) -> Tensor:
    """Return x `(tokens, heads, width)` normalized by `name`, if the model normalizes queries and keys, and rotated."""
    if model.recipe.qk_norm_at == "after":
        return _normed(model, name, rotate(x, turn, model.rope), turn)
    return rotate(_normed(model, name, x, turn), turn, model.rope)


def _normed(model: Model, name: str, x: Tensor, turn: Rotation) -> Tensor:
    """Return x normalized head by head, or over the full width at once."""
    if model.recipe.qk_norm == "unweighted":
        return model.normed(x) if turn is not None and model.sizes.get("qk_norms", True) else x
    if model.recipe.qk_norm == "gain":
        gain = model.weights.vector(f"{name}.weight")[:, None] if model.has(name) else 1.0
        return model.normed(x) * gain
    if not model.has(name):
        return x
    weight = model.norm_weight(name)
    if model.recipe.qk_norm == "layer":
        y = torch.nn.functional.layer_norm(x, x.shape[-1:]) * weight.view(x.shape[1:])
        return model.biased(name, y.flatten(1)).view(x.shape)
    if model.recipe.qk_norm == "full":
        return (model.normed(x.flatten(1)) * weight).view(x.shape)
    return model.normed(x) * weight.view(-1, x.shape[-1])


def tempered(model: Model, q: Tensor, turn: Rotation) -> Tensor:
    """Return queries scaled by 1 + scale · ln(1 + ⌊place / length⌋).

    The place is the position (Ministral 3), or, in the blocks without rotation, the number of tokens so far (LLaMA 4).
    """
    scale, where = model.sizes.get("temperature_scale"), model.recipe.temperature
    if where == "logarithm":
        return _grown(model, q)
    if not scale or where == "none" or (where == "unrotated" and turn is not None):
        return q
    place = model.where(len(q)).double() + (where == "unrotated")
    factor = 1 + float(scale) * torch.log(
        1 + torch.floor(place / float(model.sizes.get("temperature_length") or model.sizes["n_ctx"]))
    )
    return q * factor.float()[:, None, None]


def _grown(model: Model, q: Tensor) -> Tensor:
    """Return queries beyond `temperature_length` multiplied by log(position) / log(length) (Grok 2).

    Source: SGLang, `xai_temperature_len`.
    """
    length = model.sizes.get("temperature_length") or 0
    if length < 2:
        return q
    place = model.where(len(q)).double().clamp(min=length)
    return q * (torch.log(place) / math.log(length)).float()[:, None, None]
