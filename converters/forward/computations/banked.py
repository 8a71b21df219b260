"""Decoders whose branches read a mixture of earlier states: Kimi K3's residual attention.

Every few blocks the state is put aside, and begins again with what the branch gives. Definition: llama.cpp
`kimi-k3.cpp`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ggferry.converters.forward.blocks.feed_forward import feed_forward
from ggferry.converters.forward.computations.decoder import attended, embedded, unembedded
from ggferry.converters.forward.model import Model
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor

PLACES = True


def logits(model: Model, tokens: Sequence[int], progress: Callable[[int], None]) -> Tensor:
    """Return the logits of every wanted position, float32 `(tokens, n_vocab)`; `progress` counts blocks."""
    x = embedded(model, tokens)
    aside: list[Tensor] = []
    for number in range(model.sizes["n_layer"]):
        block, name = model.at(number), f"blk.{number}."
        read = _mixed(block, f"{name}attn_res_score", aside, x)
        begins = number % model.sizes["res_blocks"] == 0
        if begins:
            aside.append(x)
        seen = attended(block, name, block.norm(f"{name}attn_norm", read))
        assert seen is not None
        x = seen if begins else x + seen
        read = _mixed(block, f"{name}ffn_res_score", aside, x)
        x = x + feed_forward(block, name, block.norm(f"{name}ffn_norm", read))
        progress(1)
    x = model.selected(_mixed(model, "output_res_score", aside, x))
    return unembedded(model, model.norm("output_norm", x))


def _mixed(model: Model, name: str, aside: Sequence[Tensor], x: Tensor) -> Tensor:
    """Return the states put aside and the current one, `(tokens, n_embd)` each, in shares by the scores of their norms.

    A checkpoint has the scores' weights as two factors.
    """
    if not aside:
        return x
    stack = torch.stack((*aside, x), 1)
    weights = model.weights.vector(f"{name}.weight").view(-1, x.shape[-1]).prod(0)
    shares = (model.normed(stack) * weights).sum(-1).softmax(-1)
    return (shares[..., None] * stack).sum(1)
