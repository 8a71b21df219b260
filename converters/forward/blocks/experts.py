"""Experts: the few networks that a router chooses for each token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ggferry.converters.forward.blocks.routing import route
from ggferry.converters.forward.model import Model
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor

CLAMP, SLOPE = 7.0, 1.702
"""The `swiglu_limit` and `swiglu_alpha` of gpt-oss, constants of llama.cpp's graph."""


def experts(model: Model, block: str, x: Tensor, seen: Tensor | None = None) -> Tensor:
    """Return each token of x `(tokens, n_embd)` through the experts chosen for it, as a weighted sum.

    `seen` is what the router reads instead of x.
    """
    weights, chosen = route(model, block, x if seen is None else seen)
    if model.choices is not None:
        model.choices.chosen[block] = chosen
    out = _weighted(model, block, x, weights, chosen)
    if model.has(f"{block}ffn_up_chexps"):  # GroveMoE: a smaller expert for each group of consecutive ones
        group = chosen // int(model.sizes["experts_per_group"])
        out = out + model.scale("expert_group_scale") * _weighted(model, block, x, weights, group, "chexps")
    return out


def _weighted(model: Model, block: str, x: Tensor, weights: Tensor, chosen: Tensor, kind: str = "exps") -> Tensor:
    """Return the weighted sum of the chosen experts; `kind` ends the names of their tensors."""
    before = model.recipe.expert_weight == "input"
    out = torch.zeros_like(x)
    for expert in sorted(set(chosen.flatten().tolist())):
        token, place = torch.where(chosen == expert)
        weight = weights[token, place, None]
        of_expert = _expert(model, block, expert, x[token] * weight if before else x[token], kind)
        out.index_add_(0, token, of_expert if before else weight * of_expert)
    return out


def _expert(model: Model, block: str, expert: int, x: Tensor, kind: str) -> Tensor:
    names = [f"{block}ffn_{name}_{kind}" for name in ("gate", "up", "down")]
    limit = float(model.sizes.get("expert_limit") or 0)
    if model.has(f"{block}ffn_gate_up_exps"):
        gate, up = _item_linear(model, f"{block}ffn_gate_up_exps", expert, x).chunk(2, -1)
        hidden = combined(model, gate, up, limit)
    elif model.recipe.gate_up != "separate":
        joint = _item_linear(model, names[0], expert, x)
        halves = model.recipe.gate_up == "halves"
        gate, up = joint.chunk(2, -1) if halves else (joint[..., ::2], joint[..., 1::2])
        hidden = combined(model, gate, up, limit)
    elif model.has(names[0]):
        gate, up = (_item_linear(model, name, expert, x) for name in names[:2])
        hidden = combined(model, gate, up, limit)
    else:
        hidden = model.activate(_item_linear(model, names[1], expert, x))
    return _item_linear(model, names[2], expert, hidden)


def _item_linear(model: Model, name: str, item: int, x: Tensor) -> Tensor:
    """Return x through one matrix of a stack, with its bias, if it has one."""
    weights = model.weights
    rotated = not model.recipe.expert_rows or name.rpartition(".")[2] in model.recipe.transposed
    apply = weights.rotated_item_linear if rotated else weights.item_linear
    y = apply(f"{name}.weight", item, x)
    return y + weights.item(f"{name}.bias", item).view(-1) if weights.has(f"{name}.bias") else y


def combined(model: Model, gate: Tensor, up: Tensor, limit: float = 0.0) -> Tensor:
    """Return the input of the down projection: the activated gate times up, both bounded where there is a limit."""
    if model.recipe.glu == "clamped":
        gate, up = gate.clamp(max=CLAMP), up.clamp(-CLAMP, CLAMP)
        return (up + 1) * gate * torch.sigmoid(SLOPE * gate)
    beta, linear = (float(model.sizes.get(f"situ_{name}") or 0) for name in ("beta", "linear"))
    if beta:  # Kimi K3
        up = linear * torch.tanh(up / linear) if linear > 0 else up
        return beta * torch.tanh(gate / beta) * torch.sigmoid(gate) * up
    if limit:
        up = up.clamp(-limit, limit)
        before = model.recipe.limited == "before"
        return (model.activate(gate.clamp(max=limit)) if before else model.activate(gate).clamp(max=limit)) * up
    return model.activate(sparse(model, gate)) * up


def sparse(model: Model, gate: Tensor) -> Tensor:
    """Return by how much values exceed the mean by more than `sparsity_scale` standard deviations, else 0 (Gemma 3n).

    Without that hparam, the result is `gate` itself.
    """
    scale = float(model.sizes.get("sparsity_scale") or 0)
    if not scale:
        return gate
    cutoff = gate.mean(-1, keepdim=True) + scale * gate.std(-1, keepdim=True, unbiased=False)
    return torch.relu(gate - cutoff)
