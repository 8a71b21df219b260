"""Experts: the few networks that a router picks for each token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ggferry.converters.forward.blocks.routing import route
from ggferry.converters.forward.model import Model
from ggferry.support.lazy_import import lazy

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = lazy("torch")

CLAMP, SLOPE = 7.0, 1.702
"""gpt-oss' `swiglu_limit` and `swiglu_alpha`, constants of llama.cpp's graph."""


def experts(model: Model, block: str, x: Tensor, seen: Tensor | None = None) -> Tensor:
    """Each token of x `(tokens, n_embd)` through the experts chosen for it, weighted and added up. `seen`: what the
    router sees in its place."""
    weights, chosen = route(model, block, x if seen is None else seen)
    if model.choices is not None:
        model.choices.chosen[block] = chosen
    before = model.recipe.expert_weight == "input"
    out = torch.zeros_like(x)
    for expert in sorted(set(chosen.flatten().tolist())):
        token, place = torch.where(chosen == expert)
        weight = weights[token, place, None]
        if before:
            out[token] += _expert(model, block, expert, x[token] * weight)
        else:
            out[token] += weight * _expert(model, block, expert, x[token])
    return out


def _expert(model: Model, block: str, expert: int, x: Tensor) -> Tensor:
    names = [f"{block}ffn_{name}_exps" for name in ("gate", "up", "down")]
    if model.has(f"{block}ffn_gate_up_exps"):
        gate, up = _item_linear(model, f"{block}ffn_gate_up_exps", expert, x).chunk(2, -1)
        hidden = combined(model, gate, up)
    elif model.recipe.gate_up != "separate":
        joint = _item_linear(model, names[0], expert, x)
        halves = model.recipe.gate_up == "halves"
        gate, up = joint.chunk(2, -1) if halves else (joint[..., ::2], joint[..., 1::2])
        hidden = combined(model, gate, up)
    elif model.has(names[0]):
        gate, up = (_item_linear(model, name, expert, x) for name in names[:2])
        hidden = combined(model, gate, up)
    else:
        hidden = model.activate(_item_linear(model, names[1], expert, x))
    return _item_linear(model, names[2], expert, hidden)


def _item_linear(model: Model, name: str, item: int, x: Tensor) -> Tensor:
    """x through a matrix of a stack, with its bias, where there are some."""
    weights = model.weights
    turned = not model.recipe.expert_rows or name.rpartition(".")[2] in model.recipe.transposed
    apply = weights.turned_item_linear if turned else weights.item_linear
    y = apply(f"{name}.weight", item, x)
    return y + weights.item(f"{name}.bias", item).view(-1) if weights.has(f"{name}.bias") else y


def combined(model: Model, gate: Tensor, up: Tensor) -> Tensor:
    """What goes down: the activated gate times what went up."""
    if model.recipe.glu == "clamped":
        gate, up = gate.clamp(max=CLAMP), up.clamp(-CLAMP, CLAMP)
        return (up + 1) * gate * torch.sigmoid(SLOPE * gate)
    return model.activate(sparse(model, gate)) * up


def sparse(model: Model, gate: Tensor) -> Tensor:
    """Only what stands out by more than `sparsity_scale` standard deviations, and by how much (Gemma 3n)."""
    scale = float(model.sizes.get("sparsity_scale") or 0)
    if not scale:
        return gate
    cutoff = gate.mean(-1, keepdim=True) + scale * gate.std(-1, keepdim=True, unbiased=False)
    return torch.relu(gate - cutoff)
