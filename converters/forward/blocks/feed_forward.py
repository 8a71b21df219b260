"""Feed-forward: one network for every token, or the few experts a router picks for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ggferry.converters.forward.model import Model
from ggferry.support.lazy_import import lazy

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = lazy("torch")

SIGMOID = 2
"""LLAMA_EXPERT_GATING_FUNC_TYPE_SIGMOID; softmax is 1, and the default."""


def feed_forward(model: Model, block: str, x: Tensor) -> Tensor:
    """The feed-forward branch of a block: x and result `(tokens, n_embd)`."""
    if not model.has(f"{block}ffn_gate_inp"):
        return dense(model, block, x)
    out = experts(model, block, x)
    if model.has(f"{block}ffn_up_shexp"):
        out = out + shared(model, block, x)
    return out


def dense(model: Model, block: str, x: Tensor, suffix: str = "") -> Tensor:
    """One network for all tokens; `suffix` '_shexp' for the shared experts'."""
    up = model.linear(f"{block}ffn_up{suffix}", x)
    match model.recipe.ffn:
        case "gated":
            hidden = model.activate(model.linear(f"{block}ffn_gate{suffix}", x)) * up
        case "fused":
            gate, up = up.chunk(2, -1)
            hidden = model.activate(gate) * up
        case _:
            hidden = model.activate(up)
    return model.linear(f"{block}ffn_down{suffix}", hidden)


def shared(model: Model, block: str, x: Tensor) -> Tensor:
    """The expert that every token passes, with a gate of its own where there is one (Qwen2-MoE)."""
    out = dense(model, block, x, "_shexp")
    gate = f"{block}ffn_gate_inp_shexp.weight"
    if model.weights.has(gate):
        out = out * torch.sigmoid(x @ model.weights.vector(gate))[:, None]
    return out


def experts(model: Model, block: str, x: Tensor) -> Tensor:
    """Each token through the experts chosen for it, weighted and added up."""
    weights, chosen = route(model, block, x)
    out = torch.zeros_like(x)
    for expert in sorted(set(chosen.flatten().tolist())):
        token, place = torch.where(chosen == expert)
        out[token] += weights[token, place, None] * _expert(model, block, expert, x[token])
    return out


def _expert(model: Model, block: str, expert: int, x: Tensor) -> Tensor:
    gate, up, down = (f"{block}ffn_{name}_exps.weight" for name in ("gate", "up", "down"))
    hidden = model.activate(model.weights.item_linear(gate, expert, x)) * model.weights.item_linear(up, expert, x)
    return model.weights.item_linear(down, expert, hidden)


def route(model: Model, block: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """(weights, expert numbers), both `(tokens, n_expert_used)`.

    Experts are chosen by score, plus DeepSeek-V3's correction bias, which does not enter the weights; within the best
    groups only, where there are groups. A group counts as much as its best expert in DeepSeek-V2, which scores by
    softmax, and as the sum of its best two in V3, which scores by sigmoid.
    """
    sizes = model.sizes
    logits = model.weights.linear(f"{block}ffn_gate_inp.weight", x)
    sigmoid = sizes.get("expert_gating") == SIGMOID
    scores = torch.sigmoid(logits) if sigmoid else logits.softmax(-1)
    preference = model.biased(f"{block}exp_probs_b", scores)
    groups = sizes.get("expert_groups") or 1
    if groups > 1:
        used = sizes.get("expert_groups_used", groups)
        preference = _within_groups(preference, groups, used, best=2 if sigmoid else 1)
    chosen = preference.topk(sizes["n_expert_used"], -1).indices
    if model.routed is not None:
        model.routed.setdefault(block, set()).update(chosen.flatten().tolist())
    weights = scores.gather(-1, chosen)
    if sizes.get("expert_norm", model.recipe.expert_norm):
        weights = weights / weights.sum(-1, keepdim=True)
    return weights * float(sizes.get("expert_scale") or 1.0), chosen


def _within_groups(preference: Tensor, groups: int, used: int, best: int) -> Tensor:
    """`preference` with the experts of all but the `used` best groups out of question. `best`: experts of a group
    that are added up to rank it."""
    by_group = preference.view(len(preference), groups, -1)
    value = by_group.topk(min(best, by_group.shape[-1]), -1).values.sum(-1)
    out = torch.ones_like(value, dtype=torch.bool).scatter_(-1, value.topk(used, -1).indices, False)
    return by_group.masked_fill(out[..., None], float("-inf")).view(preference.shape)
