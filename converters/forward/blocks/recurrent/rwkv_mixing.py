"""The recurrences of RWKV's generations ("time mix").

Each takes normalized x `(tokens, n_embd)` and returns what the block adds to its residual, of the same shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ggferry.converters.forward.model import Model
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True)
class Shared:
    """What one block hands to later ones.

    Attributes:
        first_value: RWKV-7's values of block 0.
    """

    first_value: Tensor | None = None


def shifted(x: Tensor) -> Tensor:
    """Return the token before each token; zeros before the first."""
    return torch.cat((torch.zeros_like(x[:1]), x[:-1]))


def mixed(model: Model, name: str, x: Tensor, before: Tensor) -> Tensor:
    """Return each token mixed with the one before it.

    The tensor holds the share of the token itself in RWKV-4, and that of the one before it in later generations.
    """
    share = model.weights.vector(f"{name}.weight")
    return x * share + before * (1 - share) if model.recipe.wkv == "rwkv4" else x + (before - x) * share


def rwkv4(model: Model, block: str, x: Tensor, shared: Shared) -> Tensor:
    """Return the weighted mean of the values so far.

    The weight exp(k) of each decays with every token, and the current token has a bonus (`time_mix_first`).
    """
    before = shifted(x)
    k, v, r = (
        model.linear(f"{block}time_mix_{name}", mixed(model, f"{block}time_mix_lerp_{name[0]}", x, before))
        for name in ("key", "value", "receptance")
    )
    decay, first = (model.weights.vector(f"{block}time_mix_{name}.weight") for name in ("decay", "first"))
    fade = decay if model.recipe.decay == "rate" else -torch.exp(decay)
    out, total, count = torch.empty_like(v), torch.zeros_like(v[0]), torch.zeros_like(v[0])
    highest = torch.full_like(v[0], -1e38)  # all weights are kept relative to the highest exponent so far
    for t in range(len(x)):
        top = torch.maximum(highest, first + k[t])
        old, new = torch.exp(highest - top), torch.exp(first + k[t] - top)
        out[t] = (old * total + new * v[t]) / (old * count + new)
        top = torch.maximum(highest + fade, k[t])
        old, new = torch.exp(highest + fade - top), torch.exp(k[t] - top)
        total, count, highest = old * total + new * v[t], old * count + new, top
    return model.linear(f"{block}time_mix_output", torch.sigmoid(r) * out)


def rwkv6(model: Model, block: str, x: Tensor, shared: Shared) -> Tensor:
    """Return linear attention over a state for each head, `(keys, values)`.

    The state decays by key at a rate that the input sets, and the current token has a bonus.
    """
    count, mix = len(x), f"{block}time_mix_"
    change = shifted(x) - x
    low = x + change * model.weights.vector(f"{mix}lerp_x.weight")
    low = torch.tanh(model.linear(f"{mix}w1", low)).view(count, 5, -1)
    lerp = model.weights.vector(f"{mix}lerp_fused.weight").view(5, -1)
    of = (3, 1, 2, 0, 4) if model.recipe.mix_order == "rkvwg" else range(5)
    w, k, v, r, g = (x + change * (lerp[i] + expanded(model, f"{mix}w2", at, low[:, at])) for i, at in enumerate(of))
    r, k, v = (model.linear(f"{mix}{name}", part) for name, part in (("receptance", r), ("key", k), ("value", v)))
    decay = model.weights.vector(f"{mix}decay.weight") + low_rank(model, mix, "decay_w", w, torch.tanh)
    r, k, v, fade = (heads(model, part) for part in (r, k, v, torch.exp(-torch.exp(decay))))
    if not model.has(f"{mix}first"):
        return model.linear(
            f"{mix}output", _linear_attention(r, k, v, fade) * torch.sigmoid(model.linear(f"{mix}gate", g))
        )
    bonus = model.weights.vector(f"{mix}first.weight").view(r.shape[1:])
    state, out = r.new_zeros(*r.shape[1:], r.shape[2]), torch.empty_like(r)
    for t in range(count):
        entry = k[t, :, :, None] * v[t, :, None, :]
        out[t] = (r[t, :, None] @ (state + bonus[..., None] * entry))[:, 0]
        state = fade[t][..., None] * state + entry
    gate = torch.nn.functional.silu(model.linear(f"{mix}gate", g))
    return model.linear(f"{mix}output", head_norm(model, f"{mix}ln", out) * gate)


def _linear_attention(r: Tensor, k: Tensor, v: Tensor, fade: Tensor) -> Tensor:
    """Return gated linear attention `(tokens, n_embd)` of RWKV-6 in Qwen 2's place.

    Consecutive heads share keys and values, a key enters by what the state loses for it, and no token has a bonus.
    """
    k, v = (part.repeat_interleave(r.shape[1] // part.shape[1], 1) for part in (k, v))
    k, scale = k * (1 - fade), r.shape[2] ** -0.5
    state, out = r.new_zeros(*r.shape[1:], r.shape[2]), torch.empty_like(r)
    for t in range(len(r)):
        state = fade[t][..., None] * state + k[t, :, :, None] * v[t, :, None, :]
        out[t] = (r[t, :, None] @ state)[:, 0] * scale
    return out.flatten(1)


def rwkv7(model: Model, block: str, x: Tensor, shared: Shared) -> Tensor:
    """Return the delta rule over a state for each head, `(values, keys)`.

    What the state holds for a key is partly replaced, at a rate that the input sets.
    """
    mix, change = f"{block}time_mix_", shifted(x) - x

    def vector(name: str) -> Tensor:
        return model.weights.vector(f"{mix}{name}.weight")

    r, w, k, v, a, *g = (x + change * lerp for lerp in vector("lerp_fused").view(-1, x.shape[-1]))
    rate = torch.sigmoid(vector("a0") + low_rank(model, mix, "a", a))
    fade = torch.exp(-math.exp(-0.5) * torch.sigmoid(vector("w0") + low_rank(model, mix, "w", w, torch.tanh)))
    gate = low_rank(model, mix, "g", g[0], torch.sigmoid) if g else torch.ones(1)
    r, k, value = (model.linear(f"{mix}{name}", part) for name, part in (("receptance", r), ("key", k), ("value", v)))
    if shared.first_value is None:
        shared.first_value = value
    else:
        share = torch.sigmoid(vector("v0") + low_rank(model, mix, "v", v))
        value = value + (shared.first_value - value) * share
    removed = torch.nn.functional.normalize(heads(model, k * vector("k_k")), dim=-1)
    k = k * (1 + (rate - 1) * vector("k_a"))
    r, k, v, fade, rate = (heads(model, part) for part in (r, k, value, fade, rate))
    state, out = r.new_zeros(*r.shape[1:], r.shape[2]), torch.empty_like(r)
    for t in range(len(x)):
        held = state @ removed[t][..., None]
        state = state * fade[t][:, None] - held * (removed[t] * rate[t])[:, None] + v[t][..., None] * k[t][:, None]
        out[t] = (state @ r[t][..., None])[..., 0]
    bonus = (r * k * vector("r_k").view(r.shape[1:])).sum(-1, keepdim=True) * v
    seen = head_norm(model, f"{mix}ln", out) if model.has(f"{mix}ln") else out.flatten(1)
    return model.linear(f"{mix}output", (seen + bonus.flatten(1)) * gate)


def heads(model: Model, x: Tensor) -> Tensor:
    """Return x `(tokens, n_embd)` as `(tokens, heads, head_size)`."""
    return x.view(len(x), -1, model.sizes["head_size"])


def head_norm(model: Model, name: str, x: Tensor) -> Tensor:
    """Return x `(tokens, heads, head_size)` normalized head by head, flattened to `(tokens, n_embd)`.

    The epsilon is fixed in all implementations.
    """
    x = x - x.mean(-1, keepdim=True)
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 64e-5)
    return model.biased(name, x.flatten(1) * model.norm_weight(name))


def expanded(model: Model, name: str, item: int, x: Tensor) -> Tensor:
    """Return x through one of a stack of low-rank factors."""
    factor = model.weights.item(f"{name}.weight", item)
    return x @ factor if name.rpartition(".")[2] in model.recipe.transposed else x @ factor.T


def low_rank(model: Model, mix: str, name: str, x: Tensor, between: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """Return x through two low-rank factors, with the function `between` applied between them.

    Sums are float64: the recurrence would multiply what rounding makes of their order, which differs where a checkpoint
    holds the factors transposed.
    """
    low = model.linear(f"{mix}{name}1", x.double())
    return model.linear(f"{mix}{name}2", between(low) if between else low).float()


def in_place_of_attention(model: Model, block: str, x: Tensor) -> Tensor:
    """Return the time mix of a block that has it in the place of attention: x and result `(tokens, n_embd)`."""
    return MIXING[model.recipe.wkv](model, block, x, model.kept.setdefault("shared", Shared()))


MIXING: dict[str, Callable[[Model, str, Tensor, Shared], Tensor]] = {"rwkv4": rwkv4, "rwkv6": rwkv6, "rwkv7": rwkv7}
