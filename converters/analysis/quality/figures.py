"""What is said of two models' predictions, by the definitions of llama-perplexity.

Source: llama.cpp b11549, tools/perplexity/perplexity.cpp: `kl_divergence` and the functions before it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from ggferry.formats.base_logits import DEPTH, unpack
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

FRACTIONS = (1.0, 0.999, 0.99, 0.95, 0.9, 0.75, 0.5, 0.25, 0.1, 0.05, 0.01, 0.001, 0.0)
"""Those of which percentiles are given, the largest and the least among them."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A mean and its standard error."""

    value: float
    error: float


@dataclass(frozen=True, slots=True)
class Chunk:
    """The figures of all tokens up to the end of a chunk, and the mean KL divergence of the chunk alone."""

    number: int
    perplexity_a: Figure
    perplexity_b: Figure
    log_ratio: Figure
    kl_divergence: Figure
    probability_rms: Figure
    same_top: Figure
    own_kl_divergence: float


@dataclass(frozen=True, slots=True)
class Perplexity:
    """How model B stands to model A, the base.

    Attributes:
        tokens: Tokens of the text.
        context: Tokens of a chunk.
        count: Tokens whose prediction counted.
        chunks: The figures after every chunk; the last are those of the whole.
        percentiles: Of the KL divergence, by fraction; 0 and 1 are the least and the largest.
        probability_mean: Mean difference of the probability of the right token.
        correlation: Of ln(PPL) of both.
        model: What B is, as it was named.
        bytes: Size of B's files.
        bits_per_weight: Bits of B's tensors by the number of their elements.
        ratio: PPL(B)/PPL(A).
        difference: PPL(B) − PPL(A).
        probability_percentiles: Of the difference of the probability of the right token.
        others: The same of further models that were compared with A.
    """

    tokens: int
    context: int
    count: int
    chunks: tuple[Chunk, ...]
    percentiles: Mapping[float, float] = field(default_factory=dict)
    probability_mean: Figure = Figure(0.0, 0.0)
    correlation: float = 0.0
    model: str = ""
    bytes: int = 0
    bits_per_weight: float = 0.0
    ratio: Figure = Figure(1.0, 0.0)
    difference: Figure = Figure(0.0, 0.0)
    probability_percentiles: Mapping[float, float] = field(default_factory=dict)
    others: tuple[Perplexity, ...] = ()

    @property
    def whole(self) -> Chunk:
        """Return the figures of the whole text."""
        return self.chunks[-1]


@dataclass(frozen=True, slots=True)
class Rows:
    """The base's predictions of a chunk.

    Attributes:
        values: Logits `(rows, vocabulary)`, or rows that are packed as in a file of base logits.
        vocabulary: Number of tokens, of packed rows; 0 of logits.
    """

    values: Any
    vocabulary: int = 0

    def chances(self) -> tuple[Any, Any]:
        """Return ln p and p, float64 `(rows, vocabulary)`. In packed rows p is 0 where ln p is -16 or less."""
        if not self.vocabulary:
            logs = log_softmax(self.values)
            return logs, np.exp(logs)
        logs = unpack(self.values, self.vocabulary).astype(np.float64)
        return logs, np.where(logs > -DEPTH, np.exp(logs), 0.0)


def log_softmax(logits: Any) -> Any:
    """Return ln p, float64, of rows of logits."""
    values = np.asarray(logits, np.float64)
    values = values - values.max(axis=1, keepdims=True)
    return values - np.log(np.exp(values).sum(axis=1, keepdims=True))


def compared(base: Rows, logits: Any, right: Any) -> tuple[Any, int]:
    """Return -ln p of the right tokens in both, KL divergence and Δp, `(rows, 4)`, and how many rows agree on the top.

    `logits`: of the other model, `(rows, vocabulary)`; `right`: the tokens that came.
    """
    out, at = np.empty((len(logits), 4)), np.arange(len(logits))
    logs, chances = base.chances()
    top = logs.argmax(axis=1)
    other = log_softmax(logits)
    out[:, 0], out[:, 1] = -logs[at, right], -other[at, right]
    logs -= other
    logs *= chances
    out[:, 2] = logs.sum(axis=1)
    out[:, 3] = np.exp(-out[:, 1]) - np.exp(-out[:, 0])
    return out, int((top == np.argmax(logits, axis=1)).sum())


class Sums:
    """What was seen of one model so far, and its figures after every chunk."""

    def __init__(self) -> None:
        self._seen: list[Any] = []
        self._same = 0
        self.chunks: list[Chunk] = []

    def add(self, values: Any, same: int) -> None:
        """Add what `compared` returns of a chunk."""
        self._seen.append(values)
        self._same += same
        self.chunks.append(self._chunk(float(values[:, 2].mean())))

    def figures(self, tokens: int, context: int, **of_model: Any) -> Perplexity:
        """Return the figures of the whole; `of_model`: the other fields."""
        seen, last = np.concatenate(self._seen), self.chunks[-1]
        a, b = mean(seen[:, 0]), mean(seen[:, 1])
        shared, spread = _covariance(seen), a.error * b.error
        ppl_a, ppl_b = last.perplexity_a, last.perplexity_b
        apart = ppl_a.error**2 + ppl_b.error**2 - 2 * shared * ppl_a.value * ppl_b.value
        return Perplexity(
            tokens,
            context,
            len(seen),
            tuple(self.chunks),
            _percentiles(seen[:, 2]),
            mean(seen[:, 3]),
            shared / spread if spread else 1.0,
            ratio=_power(last.log_ratio),
            difference=Figure(ppl_b.value - ppl_a.value, math.sqrt(max(0.0, apart))),
            probability_percentiles=_percentiles(seen[:, 3]),
            **of_model,
        )

    def _chunk(self, own: float) -> Chunk:
        """Return the figures so far."""
        seen = np.concatenate(self._seen)
        count = len(seen)
        a, b = mean(seen[:, 0]), mean(seen[:, 1])
        apart = a.error**2 + b.error**2 - 2 * _covariance(seen)
        squares = mean(seen[:, 3] ** 2)
        rms = math.sqrt(squares.value)
        top = self._same / count
        return Chunk(
            len(self._seen),
            _power(a),
            _power(b),
            Figure(b.value - a.value, math.sqrt(max(0.0, apart))),
            mean(seen[:, 2]),
            Figure(rms, 0.5 / rms * squares.error if rms else 0.0),
            Figure(top, math.sqrt(top * (1 - top) / (count - 1)) if count > 1 else 0.0),
            own,
        )


def mean(values: Any) -> Figure:
    """Return the mean and its standard error, which is 0 for ten values or fewer."""
    count, middle = len(values), float(values.mean())
    spread = float((values**2).mean()) - middle * middle
    return Figure(middle, math.sqrt(spread / (count - 1)) if spread > 0 and count > 10 else 0.0)


def _covariance(seen: Any) -> float:
    """Return the covariance of the means of -ln p of both models; 0 for ten values or fewer, as the errors are."""
    a, b = seen[:, 0], seen[:, 1]
    return float((a * b).mean() - a.mean() * b.mean()) / (len(seen) - 1) if len(seen) > 10 else 0.0


def _percentiles(values: Any) -> dict[float, float]:
    return dict(zip(FRACTIONS, np.quantile(values, FRACTIONS).tolist(), strict=True))


def _power(figure: Figure) -> Figure:
    """Return e to the power of a mean: the perplexity of a mean of -ln p."""
    value = math.exp(min(figure.value, 700.0))
    return Figure(value, figure.error * value)
