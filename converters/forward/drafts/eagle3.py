"""EAGLE-3: one block that reads, beside a token, what three blocks of the target made of the token before.

Row i guesses what follows token i, of that token and of the target's states one position earlier. Definition:
llama.cpp `eagle3.cpp`, `common/speculative.cpp`; the draft's own states, which it reads in the target's place for
further tokens, are not computed here. Positions of tokens are those of the states they go with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ggferry.converters.forward.blocks.attention import attention
from ggferry.converters.forward.blocks.feed_forward import feed_forward
from ggferry.converters.forward.blocks.rope import rotation
from ggferry.converters.forward.inputs import draft_embeddings, draft_result, drafted, states_of_target
from ggferry.converters.forward.model import Model
from ggferry.formats.errors import UsageError
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor

PLACES = True
result = draft_result


def logits(model: Model, tokens: Sequence[int], progress: Callable[[int], None]) -> Tensor:
    """Return what `drafted` describes for every token; `progress` counts blocks."""
    states = states_of_target(model, len(tokens), len(model.sizes["target_layers"]) * model.sizes["n_embd_target"])
    if len(states) != len(tokens):
        raise UsageError("states", found=len(states), expected=f"{len(tokens)} rows, one a token")
    if model.sizes.get("norm_before_fc"):
        states = model.norm("enc.output_norm", states)
    target = model.linear("fc", states)
    x = _block(model.at(0), "blk.0.", draft_embeddings(model, tokens), target)
    progress(1)
    return drafted(model, model.norm("output_norm", model.selected(x)))


def _block(model: Model, block: str, token: Tensor, target: Tensor) -> Tensor:
    """Return the state after the one block: `token`, `target` and result `(tokens, n_embd)`."""
    normed = model.norm(f"{block}attn_norm_2", target)
    both = torch.cat((model.norm(f"{block}attn_norm", token), normed), -1)
    start = normed if model.sizes.get("norm_before_residual") else target
    x = start + attention(model, block, both, rotation(model, len(both)), 0)
    return x + feed_forward(model, block, model.norm(f"{block}ffn_norm", x))
