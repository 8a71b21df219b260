"""Adapters that tokens of the text switch on, for themselves and all that follows (Granite Switch).

Definition: granite-switch (generative-computing/granite-switch at b0df50b1, `hf/switch/single.py`, `SingleSwitch`);
llama.cpp `src/models/granite-switch.cpp`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ggferry.converters.forward.model import ADAPTERS, Model
from ggferry.support.heavy import torch


def exchanged(model: Model, tokens: Sequence[int]) -> Sequence[int]:
    """Return the tokens to be embedded, and keep which adapter each of them passes through.

    A token that switches an adapter on is embedded as another. Attention of one head finds it: keys are the gain, or
    less it for other tokens, values the number of the adapter or 0; what is found is rounded.
    """
    sizes = model.sizes
    numbers = {token: number for number, token in enumerate(sizes["adapter_tokens"], 1)}
    others = dict(zip(sizes["adapter_tokens"], sizes["adapter_substitutes"], strict=True))
    value = torch.tensor([float(numbers.get(token, 0)) for token in tokens], dtype=torch.float64)
    weight = torch.where(value > 0, 1.0, math.exp(-2 * float(sizes["router_gain"])))
    found = (weight * value).cumsum(0) / weight.cumsum(0)
    model.kept[ADAPTERS] = found.round().clamp(0, len(numbers)).to(torch.int64)
    return [others.get(token, token) for token in tokens]
