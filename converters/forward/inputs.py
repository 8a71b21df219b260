"""What a model reads besides tokens, where nobody gives it: fixed numbers, which are the same on every machine.

A spectrum stands for a recording; states and embeddings stand for those of the model that a draft guesses for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ggferry.converters.forward.model import Model, Result
from ggferry.formats.errors import UsageError
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor

STATES, EMBEDDINGS = "states", "embeddings"
DRAFT = ("over fixed states of the model it guesses for", "over the given states of the model it guesses for")
DRAFT_LOGITS = Result("draft logits", inputs=(STATES, EMBEDDINGS), how=DRAFT[0], how_given=DRAFT[1])
DRAFT_STATES = Result("draft states", ranked=False, inputs=(STATES, EMBEDDINGS), how=DRAFT[0], how_given=DRAFT[1])
"""Of a draft that takes over its target's output matrix: the normalized states which that matrix is applied to."""


def fixed(rows: int, columns: int, first: int = 0) -> Tensor:
    """Return float32 `(rows, columns)` that stand for an input which nobody gives.

    Item (r, c) is ((7919 (first + r) + 104729 c) mod 2048) / 1024 - 1, exact in float32, and within the range of
    Whisper's own spectra.
    """
    r, c = torch.arange(first, first + rows)[:, None], torch.arange(columns)[None, :]
    return (7919 * r + 104729 * c).remainder(2048).to(torch.float32) / 1024 - 1


def states_of_target(model: Model, count: int, width: int) -> Tensor:
    """Return the target's states at consecutive positions, float32 `(positions, width)`.

    They are those in `model.inputs`, or else `count` fixed rows. Raises UsageError for another width.
    """
    return _given(model, STATES, width) if STATES in model.inputs else fixed(count, width)


def draft_embeddings(model: Model, tokens: Sequence[int]) -> Tensor:
    """Return the embeddings of tokens, `(tokens, n_embd)`: the draft's own, where it has some, else the target's."""
    if model.has("token_embd"):
        return model.weights.rows("token_embd.weight", tokens)
    return embeddings_of_target(model, tokens, model.sizes["n_embd"])


def embeddings_of_target(model: Model, tokens: Sequence[int], width: int) -> Tensor:
    """Return the target's embeddings of tokens, `(tokens, width)`: those in `model.inputs`, or a fixed row for each.

    Raises UsageError for another shape.
    """
    if EMBEDDINGS not in model.inputs:
        return torch.cat([fixed(1, width, token) for token in tokens])
    given = _given(model, EMBEDDINGS, width)
    if len(given) != len(tokens):
        raise UsageError(EMBEDDINGS, found=len(given), expected=f"{len(tokens)} rows, one a token")
    return given


def _given(model: Model, name: str, width: int) -> Tensor:
    rows = torch.as_tensor(model.inputs[name], dtype=torch.float32)
    if rows.ndim != 2 or rows.shape[1] != width:
        raise UsageError(name, found=" × ".join(map(str, rows.shape)), expected=f"rows of {width}")
    return rows


def draft_result(model: Model) -> Result:
    """Return what the rows of a draft's pass are."""
    return DRAFT_LOGITS if model.has("output") else DRAFT_STATES


def own_logits(model: Model, x: Tensor) -> Tensor:
    """Return the logits `(tokens, rows of the output)` of normalized states.

    They are the states themselves where the draft has no output matrix of its own.
    """
    return model.linear("output", x) if model.has("output") else x


def spread_logits(model: Model, logits: Tensor) -> Tensor:
    """Return logits of the draft's vocabulary as `(tokens, n_vocab)`, where it is another one than the target's.

    A token that the draft never proposes has the row's least logit less one. Raises ValueError for an id that the
    target's vocabulary does not have.
    """
    if not model.weights.has("d2t"):
        return logits
    ids = model.weights.vector("d2t").long()
    if model.recipe.draft_rows == "offsets":
        ids = ids + torch.arange(len(ids))
    n_vocab = model.sizes["n_vocab"]
    if len(set(ids.tolist())) != len(ids) or not 0 <= int(ids.min()) <= int(ids.max()) < n_vocab:
        raise ValueError(f"d2t: ids that are not distinct, or not below {n_vocab}")
    out = (logits.min(-1, keepdim=True).values - 1).expand(len(logits), n_vocab).clone()
    out[:, ids] = logits
    return out


def drafted(model: Model, x: Tensor) -> Tensor:
    """Return what the last, normalized states `(tokens, n_embd)` of a draft give: logits, or the states themselves."""
    found = own_logits(model, x)
    return spread_logits(model, found) if model.has("output") else found
