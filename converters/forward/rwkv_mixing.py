"""The recurrences of RWKV's generations ("time mix"): x `(tokens, n_embd)`, normed, to what a block adds to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ggferry.converters.forward.model import Model
from ggferry.quant.registry import lazy

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = lazy("torch")


@dataclass(slots=True)
class Shared:
    """What one block hands to the later ones. `first_value`: RWKV-7's values of block 0."""

    first_value: Tensor | None = None


def shifted(x: Tensor) -> Tensor:
    """The token before each token, nothing before the first."""
    return torch.cat((torch.zeros_like(x[:1]), x[:-1]))


def mixed(model: Model, name: str, x: Tensor, before: Tensor) -> Tensor:
    """Each token and the one before it, in the shares that RWKV-4 states for the former and later generations for the
    latter."""
    share = model.weights.vector(f"{name}.weight")
    return x * share + before * (1 - share) if model.recipe.wkv == "rwkv4" else x + (before - x) * share


def rwkv4(model: Model, block: str, x: Tensor, shared: Shared) -> Tensor:
    """Weighted mean of the values so far: the weight exp(k) of each fades with every token, and the token at hand has a
    bonus (`time_mix_first`)."""
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


MIXING: dict[str, Callable[[Model, str, Tensor, Shared], Tensor]] = {"rwkv4": rwkv4}
