"""Models of Mamba or Mamba-2 blocks alone: each block is a norm and a state space."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ggferry.converters.forward.blocks.recurrent.state_space import state_space
from ggferry.converters.forward.model import Model

if TYPE_CHECKING:
    from torch import Tensor


def logits(model: Model, tokens: Sequence[int], progress: Callable[[int], None]) -> Tensor:
    """Return the logits of every position, float32 `(tokens, n_vocab)`; `progress` counts blocks."""
    x = model.weights.rows("token_embd.weight", tokens)
    for number in range(model.sizes["n_layer"]):
        block = f"blk.{number}."
        x = x + state_space(model, block, model.norm(f"{block}attn_norm", x))
        progress(1)
    return model.linear("output" if model.has("output") else "token_embd", model.norm("output_norm", x))
