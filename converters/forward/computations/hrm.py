"""HRM-Text: a low stack of blocks run through `n_low` times, then a high one, all of it `n_high` times.

Each stack reads the sum of both states and ends in a norm without weights. Definitions: transformers
`modeling_hrm_text.py`, llama.cpp `src/models/hrm-text.cpp`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ggferry.converters.forward.computations.decoder import after_block, embedded, unembedded
from ggferry.converters.forward.model import Model

if TYPE_CHECKING:
    from torch import Tensor

PLACES = True


def logits(model: Model, tokens: Sequence[int], progress: Callable[[int], None]) -> Tensor:
    """Return the logits of every wanted position, float32 `(tokens, n_vocab)`; `progress` counts runs of blocks."""
    high = embedded(model, tokens)
    low = model.weights.vector("hrm.z_l_init")
    for _ in range(model.sizes["n_high"]):
        for _ in range(model.sizes["n_low"]):
            low = _stack(model, 0, high + low, progress)
        high = _stack(model, model.sizes["n_stack"], high + low, progress)
    return unembedded(model, model.selected(high))


def _stack(model: Model, first: int, x: Tensor, progress: Callable[[int], None]) -> Tensor:
    """Return the state behind the stack that begins with block `first`."""
    for number in range(first, first + model.sizes["n_stack"]):
        x = after_block(model.at(number), f"blk.{number}.", x)
        progress(1)
    return model.normed(x)
