"""The reference forward pass: compute the logits of a bound graph by the computation that its recipe names.

A computation is a module with `logits(model, tokens, progress)`, which returns torch float32 with one row for each
token. Its optional names:

* `RESULT` says what the rows are, where they are not the logits of every position; `result(model)` says it where that
  depends on the model.
* `logits_and_further`, with the same arguments, returns more rows: those of blocks that predict further tokens.
* `encode`, with the same arguments, returns the states of an encoder.
* `PLACES` is True where tokens may have arbitrary positions.
* `TOKENS` is False where it reads no tokens; then `fixed_inputs(model)` yields what it reads in a proof.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

from ggferry.converters.forward import computations
from ggferry.converters.forward.device import making_tensors, moved
from ggferry.converters.forward.model import LAST_STATES, LOGITS, Choices, Model, Places, Result
from ggferry.converters.forward.pooling import pooled
from ggferry.converters.forward.weights import Weights, one_thread
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.schema.recipe import Recipe, recipe_of
from ggferry.formats.errors import InconsistentError, UnsupportedError, UsageError
from ggferry.support.heavy import torch

FURTHER = "logits_and_further"


def forward(
    graph: ModelGraph,
    tokens: Sequence[int],
    progress: Callable[[int], None] | None = None,
    weights: Weights | None = None,
    inputs: Mapping[str, Any] | None = None,
    part: str = "logits",
    places: Places | None = None,
    choices: Choices | None = None,
) -> Any:
    """Return the rows that `result_of(graph)` describes, by default the logits of every position.

    Args:
        graph: A model of any dialect; the dialect's conventions decide how its tensors are read.
        tokens: Token ids.
        progress: Called while the pass runs, with the number of blocks done since the last call.
        weights: Access to the tensors, for a caller that wants to see what is multiplied with them.
        inputs: What the model reads besides tokens, by name: 'mel', numpy `(n_mels, frames)`.
        part: 'logits', 'encode' for the states of the encoder, or what `part_compared` returns.
        places: The positions of the tokens, and which rows are wanted.
        choices: Receives the experts that were chosen.

    Returns:
        numpy float32 `(len(tokens), n_vocab)` by default; fewer rows where `places.rows` is given. float64 where the
        weights say so (`Weights.wide`).

    Raises:
        UsageError: No tokens, a token id outside the vocabulary, or an input that the model does not read.
        BadValueError: A weight is not finite.
        InconsistentError: The hparams cannot be computed with.
        UnsupportedError: The architecture has no forward pass, or lacks the part or the free positions asked for.
    """
    reads = reads_tokens(graph)
    if reads and not tokens:
        raise UsageError("no tokens to evaluate")
    if not graph.nodes:
        raise UnsupportedError("file has no tensors", path=graph.checkpoint.path)
    rows = graph.sizes.get("n_vocab") if reads else 0
    if rows is None:
        raise UnsupportedError(
            "no forward pass is known for this architecture", path=graph.checkpoint.path, found=graph.architecture.name
        )
    if places is not None and places.positions is not None and not can_place(graph):
        raise UnsupportedError("tokens cannot be placed", path=graph.checkpoint.path, found=graph.architecture.name)
    foreign = sorted(set(inputs or ()) - set(result_of(graph).inputs))
    if foreign:
        raise UsageError("this model does not read", path=graph.checkpoint.path, found=foreign[0])
    outside = [token for token in tokens if not 0 <= token < rows]
    if outside:
        raise UsageError("token id", found=outside[0], expected=f"0..{rows - 1}")
    weights = weights or Weights(graph)
    try:
        with torch.inference_mode(), one_thread(), making_tensors(weights.device, weights.wide):
            module = _computation(graph)
            compute = getattr(module, part, None)
            if compute is None:
                raise UnsupportedError("no encoder", path=graph.checkpoint.path, found=graph.architecture.name)
            model = Model(graph, weights, inputs, places, choices)
            found = compute(model, tokens, progress or (lambda done: None))
            every = reads and len(found) == len(tokens) and compute is not getattr(module, FURTHER, None)
            return (model.selected(found) if every else found).cpu().numpy()
    except (ArithmeticError, ValueError) as error:
        raise InconsistentError(
            f"the hparams cannot be computed with: {error}", path=graph.checkpoint.path, found=graph.architecture.name
        ) from None


def result_of(graph: ModelGraph) -> Result:
    """Return what the rows of a forward pass of this model are."""
    module = _computation(graph)
    if hasattr(module, "result"):
        own: Result = module.result(Model(graph))
        return own
    own = getattr(module, "RESULT", LOGITS)
    return LAST_STATES if own is LOGITS and Model(graph).gives_states else own


def part_compared(graph: ModelGraph) -> str:
    """Return the part of the pass that a proof compares: 'logits', with the rows of what predicts further tokens."""
    further = graph.sizes.get("n_nextn") and hasattr(_computation(graph), FURTHER)
    return FURTHER if further else "logits"


def embedding(graph: ModelGraph, states: Any, weights: Weights | None = None, *, unit: bool = True) -> Any:
    """Return what a model of embeddings, or a classifier, makes of a text with these states.

    Args:
        graph: The model.
        states: Its states, numpy float32 `(tokens, n_embd)`, as `forward` returns them.
        weights: Access to the tensors.
        unit: Whether the vector is given unit length.

    Returns:
        numpy float32 `(n,)`: the vector, or the scores. None where nothing says how texts are pooled.
    """
    weights = weights or Weights(graph)
    with torch.inference_mode(), one_thread(), making_tensors(weights.device, weights.wide):
        found = pooled(Model(graph, weights), moved(torch.from_numpy(states), weights.device), unit)
        return None if found is None else found.cpu().numpy()


def reads_tokens(graph: ModelGraph) -> bool:
    """Return whether a pass of this model reads tokens: a vision or audio encoder reads a picture or a spectrum."""
    return getattr(_computation(graph), "TOKENS", True)


def fixed_inputs(graph: ModelGraph) -> list[tuple[str, Any]]:
    """Return the inputs on which proofs compare the vision or audio encoder: name and values (numpy float32)."""
    with torch.inference_mode(), one_thread():
        return [(name, values.numpy()) for name, values in _computation(graph).fixed_inputs(Model(graph))]


def can_place(graph: ModelGraph) -> bool:
    """Return whether the tokens of a pass may have any positions, with gaps between them."""
    return getattr(_computation(graph), "PLACES", False)


def _computation(graph: ModelGraph) -> ModuleType:
    return import_module(computation_name(recipe_of(graph.architecture.recipe, graph.dialect.conventions)))


def computation_name(recipe: Recipe) -> str:
    """Return the full name of the module that computes.

    It is one of `converters.forward.computations`, or a module elsewhere whose full name the recipe states.
    """
    own = "." not in recipe.computation
    return f"{computations.__name__}.{recipe.computation}" if own else recipe.computation
