"""What a witness is asked about, why it may have nothing to say, and how its rows are held against ours."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ggferry.converters.forward.model import Choices
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.model_graph.hparams import Known
from ggferry.converters.proof.prompts import Prompt
from ggferry.converters.proof.witnesses.testimony import Testimony
from ggferry.support.lazy_import import lazy

if TYPE_CHECKING:
    import numpy as np
else:
    np = lazy("numpy")

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Case:
    """A conversion to be witnessed. `folder`: an empty one, for what the witness's process reads and writes."""

    source: ModelGraph
    output: ModelGraph
    folder: str
    threads: int

    @property
    def asked(self) -> bool:
        """Whether the user set values that no file of the source states: a witness would not know them."""
        return any(param.known is Known.ASKED for param in self.source.hparams.values())


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a witness cannot testify. `quiet`: it has nothing to do with this model, or is not installed; `auto` then
    says nothing of it."""

    why: str
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class Witness:
    """A program that can be asked. `side`: of which it speaks, 'source' or 'output'. `refuse`: why it cannot testify;
    `hear`: what it says, and how far that is from what we compute."""

    name: str
    side: str
    refuse: Callable[[Case], Refusal | None]
    hear: Callable[[Case], tuple[Testimony, Difference | None]]


@dataclass(frozen=True, slots=True)
class Difference:
    """The rows that are furthest apart, as a share of what is allowed: relative RMS over a prompt, and its limit.
    `tokens`: of the longest prompt."""

    worst: float
    limit: float
    place: str
    count: int
    tokens: int

    @property
    def allowed(self) -> bool:
        return self.worst <= self.limit


def not_enough_memory(need: int, free: int) -> Refusal | None:
    """A refusal where a witness would not fit."""
    if need <= free:
        return None
    return Refusal(f"would need {need / GIB:.1f} GiB of memory, {free / GIB:.1f} GiB are free")


def decided(
    texts: Sequence[Prompt], ours: Sequence[Any], theirs: Sequence[Any], choices: Sequence[Choices]
) -> tuple[list[Prompt], list[Any], list[Any], tuple[str, ...]]:
    """The prompts with their rows on both sides before the first token for which a router's choice was too close to
    compare, and a line for each that has none left."""
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
    """Relative RMS of `theirs` to `ours`, prompt by prompt; rows that are no numbers are infinitely far apart."""
    found = []
    for text, a, b, limit in zip(texts, ours, theirs, limits, strict=True):
        worst, row = _apart(np.asarray(a, np.float64), np.asarray(b, np.float64))
        rows = text.places.rows or range(len(text.tokens))
        found.append((worst, limit, f"prompt {text.name!r}, token {rows[row]}"))
    worst, limit, place = max(found, key=lambda item: item[0] / item[1])
    return Difference(worst, limit, place, sum(map(len, ours)), max(len(text.tokens) for text in texts))


def _apart(a: Any, b: Any) -> tuple[float, int]:
    """Relative RMS of two arrays `(rows, n)`, and the row that is furthest."""
    if a.shape != b.shape:
        return math.inf, 0
    rows = np.square(a - b).mean(-1)
    worst = math.sqrt(float(rows.mean())) / (math.sqrt(float(np.square(a).mean())) or 1.0)
    return (worst, int(rows.argmax())) if math.isfinite(worst) else (math.inf, int(np.argmax(~np.isfinite(rows))))
