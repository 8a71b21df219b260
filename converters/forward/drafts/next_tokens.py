"""Blocks that predict further tokens in a file of their own: a draft, over the states of the decoder it belongs to.

Row i of a block n tokens ahead reads the state of token i of the block before it, normalized by most recipes, which for
the first one is the decoder's, and the token n places behind. Definition: `decoder.logits_and_further`, and where such
a block reads several streams of states `streams.further_from_streams`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ggferry.converters.forward.computations.decoder import further_logits
from ggferry.converters.forward.computations.streams import further_from_streams, have_streams
from ggferry.converters.forward.inputs import STATES, states_of_target
from ggferry.converters.forward.model import Model, Result
from ggferry.formats.errors import UsageError
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor

PLACES = True
RESULT = Result(
    "logits of the blocks that predict further tokens",
    inputs=(STATES,),
    how="over fixed states of the decoder, which is not in this file",
    how_given="over the given states of the decoder",
)


def logits_and_further(model: Model, tokens: Sequence[int], progress: Callable[[int], None]) -> Tensor:
    """Return the logits of each block in turn, `(rows, n_vocab)`: of the block n tokens ahead n rows fewer than tokens.

    Raises UsageError for fewer than two tokens, and for another number of states than tokens.
    """
    if len(tokens) < 2:
        raise UsageError("tokens", found=len(tokens), expected="at least 2: a block reads a state and the next token")
    streams = model.sizes["n_streams"] if have_streams(model) else 1
    states = states_of_target(model, len(tokens), streams * model.sizes["n_embd"])
    if len(states) != len(tokens):
        raise UsageError(STATES, found=len(states), expected=f"{len(tokens)} rows, one a token")
    found = []
    several = streams > 1
    of_streams = further_from_streams(model, tokens, states.view(len(states), streams, -1)) if several else None
    for rows in of_streams or further_logits(model, tokens, states):
        found.append(rows)
        progress(1)
    return torch.cat(found)


logits = logits_and_further
