"""Routers: which experts a token passes through, and the weight of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ggferry.converters.forward.model import Model, meaning
from ggferry.formats.errors import BadValueError
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor

    Routed = tuple[Tensor, Tensor]
    """(weights, expert numbers), both `(tokens, n_expert_used)`."""

GATING = {1: "softmax", 2: "sigmoid", 3: "chosen", 4: "root_softplus"}
"""llama.cpp's LLAMA_EXPERT_GATING_FUNC_TYPE as `Recipe.routing` calls it."""

CLOSE = 1e-4
"""Preferences whose relative difference is at most this are equal but for rounding."""
GROUPS = "groups"
"""Last part of the name under which a choice of groups is recorded."""

SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda logits: logits.softmax(-1),
    "sigmoid": lambda logits: torch.sigmoid(logits),
    "chosen": lambda logits: logits,
    "root_softplus": lambda logits: torch.nn.functional.softplus(logits).sqrt(),
}


def route(model: Model, block: str, x: Tensor) -> Routed:
    """Return the weights and the numbers of the experts for every token of x `(tokens, n_embd)`."""
    sizes = model.sizes
    declared = sizes.get("expert_gating") or 0
    kind = meaning("expert_gating_func", declared, GATING) if declared else model.recipe.routing
    logits = _logits(model, block, x)
    if kind == "sparsemixer":
        return sparsemixer(logits, float(sizes["router_jitter"]))
    weights, chosen = _scored(model, block, logits, kind)
    if kind == "chosen":
        weights = weights.softmax(-1)
    elif sizes.get("expert_norm", model.recipe.expert_norm):
        weights = weights / weights.sum(-1, keepdim=True).clamp(min=float(sizes.get("expert_norm_min") or 0))
    if model.weights.has(f"{block}ffn_down_exps.scale"):
        weights = weights * model.weights.vector(f"{block}ffn_down_exps.scale")[chosen]
    return weights * float(sizes.get("expert_scale") or 1.0), chosen


def _logits(model: Model, block: str, x: Tensor) -> Tensor:
    """Return the router's logits of every expert, `(tokens, n_expert)`.

    Gemma 4's router reads the normalized state, multiplied by weights and divided by the root of its width.
    """
    name = f"{block}ffn_gate_inp"
    if model.weights.has(f"{name}.scale"):
        x = model.normed(x) * model.weights.vector(f"{name}.scale") * x.shape[-1] ** -0.5
    logits = model.linear(name, x)
    cap = float(model.sizes.get("router_softcap") or 0)
    return cap * torch.tanh(logits / cap) if cap else logits


def _scored(model: Model, block: str, logits: Tensor, kind: str) -> Routed:
    """Choose experts by score, and return their scores and numbers.

    DeepSeek-V3's correction bias changes the choice, but not the scores returned. Where there are groups, only experts
    of the best groups are chosen. A group is ranked by its best expert in DeepSeek-V2, which scores by softmax, and by
    the sum of its best two in V3, which scores by sigmoid, and in Mistral 4. In the first blocks of V4 the token
    alone chooses.
    """
    sizes, scores = model.sizes, SCORES[kind](logits)
    if model.has(f"{block}ffn_gate_tid2eid"):
        chosen = _by_token(model, f"{block}ffn_gate_tid2eid.weight")
        return scores.gather(-1, chosen), chosen
    bias = f"{block}exp_probs_b"
    named = (bias, f"{bias}.weight", f"{bias}.bias")  # llama.cpp's Hunyuan 3, its towers, all others
    preference = scores + sum(model.weights.vector(name) for name in named if model.weights.has(name))
    groups = sizes.get("expert_groups") or 1
    if groups > 1:
        used = sizes.get("expert_groups_used", groups)
        best = 1 if kind == "softmax" and model.recipe.group_rank == "gating" else 2
        preference = _within_groups(model, block, preference, groups, used, best=best)
    chosen = _best(model, block, preference, sizes["n_expert_used"])
    return scores.gather(-1, chosen), chosen


def _by_token(model: Model, name: str) -> Tensor:
    """Return the experts that a table lists for the tokens, int64 `(tokens, n_expert_used)`. Raises BadValueError."""
    chosen = model.weights.rows(name, model.kept["tokens"]).long()
    if not bool(((chosen >= 0) & (chosen < model.sizes["n_expert"])).all()):
        raise BadValueError(
            f"{name}: no such expert",
            path=model.weights.graph.checkpoint.path,
            found=[int(chosen.min()), int(chosen.max())],
            expected=f"0 to {model.sizes['n_expert'] - 1}",
        )
    return chosen


def _best(model: Model, name: str, values: Tensor, count: int) -> Tensor:
    """Return the indices of the `count` largest of values `(tokens, n)`: `(tokens, count)`.

    Of two passes that differ by rounding, the second takes over the first one's choice unless its own is clearly
    better.
    """
    largest = values.topk(min(count + 1, values.shape[-1]), -1)
    chosen, choices = largest.indices[:, :count], model.choices
    if choices is None or values.shape[-1] <= count:
        return chosen
    last = largest.values[:, count - 1 : count]
    slack = CLOSE * last.abs()
    close = torch.where((last - largest.values[:, count:] <= slack)[:, 0])[0]
    if len(close):
        choices.close = min(choices.close, int(close[0]))
    earlier = choices.earlier.get(name)
    if earlier is not None:
        chosen = torch.where(values.gather(-1, earlier).amin(-1, keepdim=True) >= last - slack, earlier, chosen)
    choices.chosen[name] = chosen
    return chosen


def _within_groups(model: Model, block: str, preference: Tensor, groups: int, used: int, best: int) -> Tensor:
    """Return `preference` with -inf for the experts of all but the `used` best groups.

    `best` is the number of experts of a group that are summed to rank it.
    """
    by_group = preference.view(len(preference), groups, -1)
    value = by_group.topk(min(best, by_group.shape[-1]), -1).values.sum(-1)
    out = torch.ones_like(value, dtype=torch.bool).scatter_(-1, _best(model, f"{block}{GROUPS}", value, used), False)
    return by_group.masked_fill(out[..., None], float("-inf")).view(preference.shape)


def sparsemixer(logits: Tensor, jitter: float) -> Routed:
    """Return the two experts of SparseMixer (Liu et al., 2310.00811) for each token.

    The first is the best one, weighted by a softmax over those close to it; the second is the best of the others,
    weighted likewise among these (transformers `modeling_phimoe.py`).
    """
    weights, numbers, left = [], [], logits
    for _ in range(2):
        best, number = left.max(-1, keepdim=True)
        away = (best - logits) / logits.abs().clamp(min=best) > 2 * jitter
        near = left.masked_fill(away, float("-inf")).softmax(-1)
        weights.append(near.gather(-1, number))
        numbers.append(number)
        left = left.scatter(-1, number, float("-inf"))
    return torch.cat(weights, -1), torch.cat(numbers, -1)
