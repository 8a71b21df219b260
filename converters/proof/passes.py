"""Run the prompts of a proof through models, and compare the rows that come out.

`SourceValues` are the weights of the pass that proves the structure of an output whose values were rounded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ggferry.converters.forward.batched_passes import batched
from ggferry.converters.forward.evaluate import embedding, forward, part_compared, result_of
from ggferry.converters.forward.model import Choices
from ggferry.converters.forward.weights import Factor, Weights
from ggferry.converters.model_graph import rows
from ggferry.converters.model_graph.graph import ModelGraph, Node
from ggferry.converters.proof.prompts import Prompt
from ggferry.converters.schema.layouts.base import SAME, row_count
from ggferry.formats.checkpoint import TensorRef
from ggferry.formats.errors import UnsupportedError
from ggferry.support.heavy import np
from ggferry.support.progress import Progress

if TYPE_CHECKING:
    from ggferry.converters.schema.layouts.base import Array
    from ggferry.quant.types import Floats

_BLOCK = re.compile(r"blk\.\d+")
"""Matches up to the end of the part of a name that identifies its block: blk.0, enc.blk.0."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How far rows of logits, or of states, lie apart.

    Attributes:
        max_error: Largest absolute difference.
        relative_rms: Relative RMS difference.
        top1_agreement: Share of rows whose largest number is at the same place.
        kl_divergence: Mean in nats.
    """

    max_error: float
    relative_rms: float
    top1_agreement: float
    kl_divergence: float


@dataclass(frozen=True, slots=True)
class Passes:
    """The passes of one model over the prompts.

    Attributes:
        weights: Access to its tensors.
        progress: Called with the number of blocks done.
        choices: For each prompt, the `choices` argument of `forward`.
    """

    weights: Weights
    progress: Progress | None = None
    choices: Sequence[Choices] | None = None

    def run(self, texts: Sequence[Prompt], number: int, found: list[Any], weights: Weights) -> None:
        """Put the wanted rows of one prompt among what was found."""
        text, progress = texts[number], self.progress if number == 0 else None
        chosen = self.choices[number] if self.choices else None
        found[number] = forward(
            graph := self.weights.graph,
            text.tokens,
            progress,
            weights,
            text.inputs,
            part_compared(graph),
            text.places,
            chosen,
        )


def run_prompts(sides: Sequence[Passes], texts: Sequence[Prompt]) -> list[list[Any]]:
    """Return the wanted rows of every prompt for models with the same roles, whose weights are read side by side."""
    found: list[list[Any]] = [[None] * len(texts) for _ in sides]
    if len(sides) == len(texts) == 1:
        sides[0].run(texts, 0, found[0], sides[0].weights)
    else:
        batched(
            [
                (side.weights, [partial(side.run, texts, number, rows) for number in range(len(texts))])
                for side, rows in zip(sides, found, strict=True)
            ]
        )
    return found


def pooled_vectors(side: Weights, rows: Sequence[Any]) -> list[Any]:
    """Return what the model makes of each text, `(1, n)`; nothing where it makes no vector of a text."""
    found = [embedding(side.graph, states, side) for states in rows] if not result_of(side.graph).ranked else []
    return [vector[None] for vector in found if vector is not None]


def worst(expected: Sequence[Any], found: Sequence[Any]) -> Difference:
    """Return the figures of the prompt whose rows differ most."""
    figures = [compare_logits(a, b) for a, b in zip(expected, found, strict=True)]
    return max(figures, key=lambda figure: figure.relative_rms if math.isfinite(figure.relative_rms) else math.inf)


def by_block(graph: ModelGraph, progress: Progress) -> Progress:
    """Return a progress function that counts blocks: each stands for its share of the file's bytes."""
    blocks = {name[: found.end()] for name in graph.by_name if (found := _BLOCK.search(name))}
    share = graph.checkpoint.nbytes // max(1, len(blocks))
    return lambda done: progress(done * share)


def compare_logits(expected: Any, found: Any) -> Difference:
    """Compare two logits arrays `(tokens, n_vocab)`: max |Δ|, relative RMS, top-1 agreement, mean KL in nats.

    Rows are compared one by one: in float64 and with what is computed of them, all would take eight times their memory.
    """
    rows = [_compare_rows(*pair) for pair in zip(np.asarray(expected), np.asarray(found), strict=True)]
    largest, error, power, top1, divergence = (np.array(column) for column in zip(*rows, strict=True))
    scale = math.sqrt(float(power.mean())) or 1.0
    return Difference(
        max_error=float(largest.max()),
        relative_rms=math.sqrt(float(error.mean())) / scale,
        top1_agreement=float(top1.mean()),
        kl_divergence=float(divergence.mean()),
    )


def _compare_rows(expected: Any, found: Any) -> tuple[float, float, float, bool, float]:
    """Return max |Δ|, the mean squares of Δ and of `expected`, whether the largest are at one place, and the KL."""
    a, b = expected.astype(np.float64), found.astype(np.float64)
    delta = b - a

    def log_softmax(x: Any) -> Any:
        x = x - x.max()
        return x - np.log(np.exp(x).sum())

    p, q = log_softmax(a), log_softmax(b)
    return (
        float(np.abs(delta).max()),
        float(np.square(delta).mean()),
        float(np.square(a).mean()),
        bool(a.argmax() == b.argmax()),
        float((np.exp(p) * (p - q)).sum()),
    )


class SourceValues(Weights):
    """The output's tensors with the source's values in the output's layout."""

    def __init__(self, output: ModelGraph, source: Weights) -> None:
        super().__init__(output, source.threads, source.device, source.wide)
        self._source = source
        self._alike = dict(pair for node in output.nodes for pair in _laid_out_alike(node, source.graph))
        self._users: dict[str, list[Node]] = {}
        self._places: dict[str, list[tuple[Node, Array]]] = {}
        for node in output.nodes:
            for ref in node.inputs:
                self._users.setdefault(ref.name, []).append(node)

    def values(self, ref: TensorRef, start: int, stop: int) -> Floats:
        """Return rows `start:stop` of the source's values for the tensor, float32. Raises UnsupportedError.

        Where the output is a checkpoint, too, passes read its tensors' own rows: OPT's queries, keys and values are
        three tensors, those of CodeGen one in an order of its own.
        """
        checkpoint = self._source.graph.checkpoint
        if ref.name in self._alike:
            return rows.values_of(checkpoint, self._alike[ref.name], start, stop)
        users = self._users[ref.name]
        if len(users) == 1 and users[0].layout == SAME:
            return rows.laid_out_values(checkpoint, self._source.graph.by_name[users[0].name], start, stop)
        if ref.name not in self._places:
            self._places[ref.name] = self._placed(ref, users)
        vector = len(ref.shape) == 1  # one row, whose elements layouts move
        found = np.zeros((ref.columns, 1) if vector else (stop - start, ref.columns), np.float32)
        for node, places in self._places[ref.name]:
            at = places if vector else places[start:stop]
            for first, last in _runs(at):
                begin, end = int(at[first]), int(at[first]) + last - first
                if vector:
                    found[first:last, 0] = rows.laid_out_values(checkpoint, node, 0, 1)[0, begin:end]
                else:
                    found[first:last] = rows.laid_out_values(checkpoint, node, begin, end)
        return found.reshape(1, -1) if vector else found

    def _placed(self, ref: TensorRef, users: list[Node]) -> list[tuple[Node, Array]]:
        """Return the source's nodes that the tensor is a part of, and their row for each of its own, -1 for none."""
        placed, whole = [], np.arange(row_count(ref.shape))
        for node in sorted(users, key=lambda each: not each.layout.lossless):  # of two, the one that has the values
            origin, at = self._source.graph.by_name[node.name], whole
            if node.layout.block_safe:
                source, row = node.layout.locate(np.arange(row_count(node.shape)), *(one.shape for one in node.inputs))
                own = source == next(n for n, one in enumerate(node.inputs) if one.name == ref.name)
                at = np.full(len(whole), -1)
                at[row[own]] = np.flatnonzero(own)
            placed.append((origin, at))
        if len({each.inputs for each, _ in placed}) > 1 and not all(each.layout.lossless for each in users):
            raise UnsupportedError(  # BioGPT's embedding, which is multiplied, is its output matrix, which is not
                f"tensor {ref.name!r} becomes two, each rounded by itself: no pass proves that",
                path=self.graph.checkpoint.path,
                hint="without rounding (--dtype f32) it is proved, and so is GGUF",
            )
        return _once(placed)

    def holder(self, factor: Factor) -> Weights:
        """Return the source's weights for a matrix that has no other layout in the output.

        Only where its pass then has the same bits as without a third one: receipts of one model must be equal.
        """
        node = self._source.graph.by_name[factor.name]
        shapes = {ref.shape for ref in (*node.inputs, *self.refs(factor.name))}
        same = node.layout == SAME and len(node.inputs) == len(shapes) == 1
        return self._source if same and self._source.by_kernel(factor) else self


def _once(placed: list[tuple[Node, Array]]) -> list[tuple[Node, Array]]:
    """Return the same with each row in the first node that has it: a tied matrix is two nodes, and read for one."""
    left, found = np.ones(len(placed[0][1]), bool), []
    for node, at in placed:
        own = left & (at >= 0)
        if own.any():
            found.append((node, np.where(own, at, -1)))
            left &= ~own
    return found


def _runs(at: Array) -> Iterator[tuple[int, int]]:
    """Yield where numbers that follow one another begin and end in an array; nothing of those below zero."""
    breaks = np.flatnonzero((np.diff(at) != 1) | (at[:-1] < 0)) + 1
    for first, last in zip((0, *breaks.tolist()), (*breaks.tolist(), len(at)), strict=True):
        if first < last and at[first] >= 0:
            yield first, last


def _laid_out_alike(node: Node, source: ModelGraph) -> Iterator[tuple[str, TensorRef]]:
    """Yield the source's tensor for each of an output that is laid out as the source is: both are checkpoints."""
    origin = source.by_name[node.name]
    alike = [ref.shape for ref in node.inputs] == [ref.shape for ref in origin.inputs] and node.layout == origin.layout
    if node.layout != SAME and alike:
        yield from zip((ref.name for ref in node.inputs), origin.inputs, strict=True)
