"""Run the prompts of a proof through models, and compare the rows that come out."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ggferry.converters.forward.batched_passes import batched
from ggferry.converters.forward.evaluate import embedding, forward, part_compared, result_of
from ggferry.converters.forward.model import Choices
from ggferry.converters.forward.weights import Weights
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.proof.prompts import Prompt
from ggferry.support.heavy import np
from ggferry.support.progress import Progress

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
