"""What a witness is asked about, why it may refuse, and how its results are compared with ours."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ggferry.converters.forward.model import Choices
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.model_graph.hparams import Known
from ggferry.converters.proof.prompts import Prompt
from ggferry.converters.proof.references.cross_check import CrossCheck
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Case:
    """A conversion to be witnessed.

    Attributes:
        source: The source's graph.
        output: The graph of the output as it was read again.
        folder: An empty folder for what the witness's process reads and writes.
        threads: Threads that the witness may use.
    """

    source: ModelGraph
    output: ModelGraph
    folder: str
    threads: int

    @property
    def has_overrides(self) -> bool:
        """Whether the user set values that no file of the source states, so that a witness would not know them."""
        return any(param.known is Known.OVERRIDDEN for param in self.source.hparams.values())


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a witness cannot be compared.

    Attributes:
        why: The reason.
        quiet: Whether `auto` does not mention it: the witness is not made for this model, or is not installed.
    """

    why: str
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class ReferenceImplementation:
    """A program that can be asked.

    Attributes:
        name: Its name.
        side: The side it speaks of, 'source' or 'output'.
        unsupported: Returns why it cannot be compared, or None.
        run: Returns its comparison, and how far its results are from ours.
        known_differences: Returns in what respects it is known to compute something else from the output.
    """

    name: str
    side: str
    unsupported: Callable[[Case], Refusal | None]
    run: Callable[[Case], tuple[CrossCheck, Difference | None]]
    known_differences: Callable[[Case], tuple[str, ...]] = lambda _: ()


@dataclass(frozen=True, slots=True)
class Difference:
    """The prompt on which both sides are furthest apart, relative to what is allowed.

    Attributes:
        worst: Relative RMS over that prompt.
        limit: The largest value allowed for it.
        place: The prompt and the token.
        count: Rows that were compared, of all prompts.
        tokens: Length of the longest prompt.
    """

    worst: float
    limit: float
    place: str
    count: int
    tokens: int

    @property
    def allowed(self) -> bool:
        """Whether the difference is within its limit."""
        return self.worst <= self.limit


def not_enough_memory(need: int, free: int) -> Refusal | None:
    """Return a refusal where a witness needs more bytes than are free, else None."""
    if need <= free:
        return None
    return Refusal(f"would need {need / GIB:.1f} GiB of memory, {free / GIB:.1f} GiB are free")


def decided(
    texts: Sequence[Prompt], ours: Sequence[Any], theirs: Sequence[Any], choices: Sequence[Choices]
) -> tuple[list[Prompt], list[Any], list[Any], tuple[str, ...]]:
    """Keep the rows of each prompt before the first token for which a router's choice was too close to compare.

    Returns the prompts that have rows left, their rows on our side, their rows on the witness's side, and a line for
    each prompt that has none left.
    """
    kept: list[tuple[Prompt, Any, Any]] = []
    missed = []
    for text, a, b, choice in zip(texts, ours, theirs, choices, strict=True):
        rows = text.places.rows or tuple(range(len(text.tokens)))
        count = sum(row < choice.close for row in rows)
        if count:
            kept.append((replace(text, places=replace(text.places, rows=rows[:count])), a[:count], b[:count]))
        else:
            missed.append(f"prompt {text.name!r}: a router's choice of experts is too close to compare")
    return [k[0] for k in kept], [k[1] for k in kept], [k[2] for k in kept], tuple(missed)


def difference(
    texts: Sequence[Prompt], ours: Sequence[Any], theirs: Sequence[Any], limits: Sequence[float]
) -> Difference:
    """Return the relative RMS of `theirs` to `ours` on the worst prompt; rows with NaN are infinitely far apart."""
    found = []
    for text, a, b, limit in zip(texts, ours, theirs, limits, strict=True):
        worst, row = _apart(np.asarray(a, np.float64), np.asarray(b, np.float64))
        rows = text.places.rows or range(len(text.tokens))
        found.append((worst, limit, f"prompt {text.name!r}, token {rows[row]}"))
    worst, limit, place = max(found, key=lambda item: item[0] / item[1])
    return Difference(worst, limit, place, sum(map(len, ours)), max(len(text.tokens) for text in texts))


def _apart(a: Any, b: Any) -> tuple[float, int]:
    """Return the relative RMS of two arrays `(rows, n)`, and the row that is furthest."""
    if a.shape != b.shape:
        return math.inf, 0
    rows = np.square(a - b).mean(-1)
    worst = math.sqrt(float(rows.mean())) / (math.sqrt(float(np.square(a).mean())) or 1.0)
    return (worst, int(rows.argmax())) if math.isfinite(worst) else (math.inf, int(np.argmax(~np.isfinite(rows))))
