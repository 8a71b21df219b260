"""The rows of a chosen picture or recording: what the text model reads in its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ggferry.converters.forward.evaluate import forward, reads_tokens
from ggferry.converters.forward.model import Model
from ggferry.converters.forward.senses.pictures import pixels_of_file
from ggferry.converters.forward.senses.recordings import spectrum_of_file
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.schema.recipe import recipe_of
from ggferry.converters.understand import understand, understand_projector
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import UsageError
from ggferry.formats.reader import Kind, kind_of
from ggferry.support.heavy import np

IMAGE, AUDIO, PIXELS, SPECTRUM = "image", "audio", "pixels", "spectrum"
_READ: Mapping[str, tuple[str, str]] = {
    IMAGE: ("picture", "v_"),
    PIXELS: ("picture", "v_"),
    AUDIO: ("spectrum", "a_"),
    SPECTRUM: ("spectrum", "a_"),
}
"""What is given → the input of the pass it becomes, and how the short names of its tower's hparams begin."""


def senses_of(checkpoint: Checkpoint, hparams: Mapping[str, str] | None = None) -> ModelGraph:
    """Return the vision or audio encoder: an mmproj file, or that half of a checkpoint.

    Raises UsageError where it does neither, and what `understand` raises.
    """
    if kind_of(checkpoint.container) is Kind.TRAINING:
        graph = understand_projector(checkpoint, hparams)
    else:
        graph = understand(checkpoint, hparams)
    if graph is None or not graph.architecture.projector or reads_tokens(graph):
        raise UsageError(
            "the model has no vision or audio encoder",
            path=checkpoint.path,
            hint="give the mmproj file, or the checkpoint",
        )
    return graph


def features(graph: ModelGraph, **given: Any) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the rows that stand for a picture or a recording, and notes on what was not done.

    Args:
        graph: As `senses_of` returns it.
        given: One of `image` and `audio`, paths of files; `pixels`, normalized `(3, height, width)`; and `spectrum`,
            `(bins, frames)`.

    Returns:
        float32 `(rows, width of the text model)`.

    Raises UsageError for none or several, or for one that the model does not take, and as `pixels_of_file` and
    `spectrum_of_file`.
    """
    declared = {name: value for name, value in given.items() if value is not None}
    if len(declared) != 1:
        raise UsageError(
            "a picture or a recording",
            found=", ".join(sorted(declared)) or "nothing",
            expected="one of " + ", ".join(_READ),
        )
    ((name, value),) = declared.items()
    kind, prefix = _READ[name]
    recipe = recipe_of(graph.architecture.recipe, graph.dialect.conventions)
    if not (recipe.vision if kind == "picture" else recipe.audio):
        raise UsageError(
            f"the model has no {'vision' if kind == 'picture' else 'audio'} encoder",
            path=graph.checkpoint.path,
            found=name,
        )
    values, undone = _values(graph, name, value, Model(graph).tower(prefix).sizes)
    return forward(graph, (), inputs={kind: values}), (undone,) if undone else ()


def _values(graph: ModelGraph, name: str, value: Any, sizes: Mapping[str, Any]) -> tuple[np.ndarray, str]:
    of_file: dict[str, Callable[[], tuple[np.ndarray, str]]] = {
        IMAGE: lambda: pixels_of_file(value, graph, sizes),
        AUDIO: lambda: spectrum_of_file(value, graph, int(sizes["n_mels"])),
    }
    if name in of_file:
        return of_file[name]()
    found = np.asarray(value, np.float32)
    if not np.isfinite(found).all():
        raise UsageError(name, found="values that are no finite numbers")
    return found, ""
