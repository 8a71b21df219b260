"""The reference forward pass: the logits of a bound graph, by the computation that its recipe names.

A computation is a module of this folder with `logits(model, tokens, progress)`: torch float32 `(tokens, n_vocab)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ggferry.converters.forward.model import Model
from ggferry.converters.forward.weights import Weights
from ggferry.converters.graph import ModelGraph
from ggferry.formats.errors import InconsistentError, UnsupportedError, UsageError
from ggferry.quant.registry import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


def forward(
    graph: ModelGraph,
    tokens: Sequence[int],
    progress: Callable[[int], None] | None = None,
    weights: Weights | None = None,
) -> Any:
    """Logits of every position, numpy float32 `(len(tokens), n_vocab)`.

    `graph` may be bound to any side: its dialect's conventions decide how the tensors are read. `weights`: access to
    its tensors, where somebody wants to see what passes through them. Raises UsageError for token ids outside the
    vocabulary, BadValueError for a weight that is not finite, InconsistentError for hparams that lead out of all
    numbers, UnsupportedError for an architecture without a forward pass.
    """
    if not tokens:
        raise UsageError("no tokens to evaluate")
    if not graph.nodes:
        raise UnsupportedError("a vocabulary without tensors has no forward pass", path=graph.checkpoint.path)
    rows = graph.sizes.get("n_vocab")
    if rows is None:
        raise UnsupportedError(
            "no forward pass is known for this architecture", path=graph.checkpoint.path, found=graph.architecture.name
        )
    outside = [token for token in tokens if not 0 <= token < rows]
    if outside:
        raise UsageError("token id", found=outside[0], expected=f"0..{rows - 1}")
    try:
        with torch.inference_mode():
            model = Model(graph, weights)
            computation = import_module(f"ggferry.converters.forward.{model.recipe.computation}")
            return computation.logits(model, tokens, progress or (lambda done: None)).numpy()
    except (ArithmeticError, ValueError) as error:
        raise InconsistentError(
            f"the hparams cannot be computed with: {error}", path=graph.checkpoint.path, found=graph.architecture.name
        ) from None
