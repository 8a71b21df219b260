"""Quality of one model against another on a text: perplexity, KL divergence, agreement, as llama-perplexity has them.

Definitions: llama.cpp `tools/perplexity/perplexity.cpp`, `kl_divergence` and `process_logits`. The text is cut into
chunks of `context` tokens, the first of each is the token that begins a text where the vocabulary asks for one, and
what is said of the second half of a chunk counts. The weights are read once for several chunks, block by block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from ggferry.converters.forward.model import Places
from ggferry.converters.forward.weights import Weights
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.proof.passes import Passes, run_prompts
from ggferry.converters.proof.prompts import Prompt
from ggferry.converters.tokenizers.tokenizer import Tokenizer, encoder
from ggferry.formats.errors import InconsistentError, UnsupportedError, UsageError
from ggferry.support.heavy import np
from ggferry.support.progress import Phase, Stage, silent
from ggferry.support.records import dataclass

CONTEXT, LEAST = 512, 8
HELD = 256 << 20
"""Bytes of logits of both models that are held at once."""
TOGETHER = 8
"""Most chunks that share one reading of the weights."""
_PERCENTILES = (0.999, 0.99, 0.95, 0.9, 0.5, 0.1, 0.05, 0.01, 0.001)


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
    """

    tokens: int
    context: int
    count: int
    chunks: tuple[Chunk, ...]
    percentiles: Mapping[float, float] = field(default_factory=dict)
    probability_mean: Figure = Figure(0.0, 0.0)
    correlation: float = 0.0


class _Sums:
    """The moments of what was seen."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.same = 0

    def add(self, values: Any, same: int) -> None:
        """Add `(tokens, 4)`: -ln p of both models, KL divergence, difference of probability."""
        self.seen.append(values)
        self.same += same

    @property
    def all(self) -> Any:
        return np.concatenate(self.seen)


def perplexity(
    base: ModelGraph,
    other: ModelGraph,
    tokens: Sequence[int],
    *,
    first: int | None = None,
    context: int = CONTEXT,
    chunks: int | None = None,
    jobs: int | None = None,
    stage: Stage = silent,
) -> Perplexity:
    """Compare two models of one vocabulary on a text.

    Args:
        base: Model A.
        other: Model B.
        tokens: The text.
        first: The token that begins every chunk, in the place of its own first; None for none.
        context: Tokens of a chunk.
        chunks: The most chunks to compute; None for all.
        jobs: Number of threads; None for the default.
        stage: Opens a progress display.

    Raises:
        UsageError: The text is shorter than a chunk, or the context too short.
        InconsistentError: The vocabularies have different sizes.
    """
    rows = _vocabulary(base, other)
    if context < LEAST:
        raise UsageError("--ctx", found=context, expected=f"{LEAST} or more")
    count = min(len(tokens) // context, chunks or len(tokens))
    if count < 1:
        raise UsageError("text is shorter than one chunk", found=f"{len(tokens)} tokens", expected=f"{context} or more")
    sums, made = _Sums(), list[Chunk]()
    start = context // 2
    group = max(1, min(TOGETHER, HELD // (8 * rows * (context - 1 - start))))
    total = (base.checkpoint.nbytes + other.checkpoint.nbytes) * -(-count // group)
    with stage(Phase.COMPUTING, total) as progress:
        for numbers in _groups(count, group):
            texts = [_prompt(tokens, number, context, first) for number in numbers]
            lines = []
            for graph in (base, other):
                lines.append(run_prompts([Passes(Weights(graph, jobs))], texts)[0])
                progress(graph.checkpoint.nbytes)
            for number, a, b in zip(numbers, *lines, strict=True):
                right = np.asarray(tokens[number * context + start + 1 : (number + 1) * context])
                values, same = compared(a, b, right)
                sums.add(values, same)
                made.append(_chunk(number, sums, float(values[:, 2].mean())))
    seen = sums.all
    ordered = np.sort(seen[:, 2])
    fractions = (1.0, *_PERCENTILES, 0.0)
    percentiles = {each: float(np.quantile(ordered, each)) for each in fractions}
    spread = math.sqrt(float(seen[:, 0].var() * seen[:, 1].var()))
    together = float(np.cov(seen[:, 0], seen[:, 1], bias=True)[0, 1]) / spread if spread else 1.0
    return Perplexity(len(tokens), context, len(seen), tuple(made), percentiles, mean(seen[:, 3]), together)


def _vocabulary(base: ModelGraph, other: ModelGraph) -> int:
    sizes = [graph.sizes.get("n_vocab") for graph in (base, other)]
    if None in sizes:
        raise UnsupportedError("no forward pass is known for this architecture", path=base.checkpoint.path)
    if sizes[0] != sizes[1]:
        raise InconsistentError(
            "the vocabularies differ", path=other.checkpoint.path, found=sizes[1], expected=sizes[0]
        )
    return int(sizes[0] or 0)


def _groups(count: int, size: int) -> Iterator[range]:
    return (range(at, min(count, at + size)) for at in range(0, count, size))


def _prompt(tokens: Sequence[int], number: int, context: int, first: int | None) -> Prompt:
    own = tuple(tokens[number * context : (number + 1) * context])
    begun = own if first is None else (first, *own[1:])
    return Prompt(f"chunk {number}", begun, Places(rows=tuple(range(context // 2, context - 1))))


def compared(a: Any, b: Any, right: Any) -> tuple[Any, int]:
    """Return -ln p of the right tokens in both, KL divergence and Δp, `(rows, 4)`, and how many rows agree on the top.

    `a`, `b`: logits `(rows, n_vocab)`; `right`: the tokens that came.
    """
    out, at = np.empty((len(a), 4)), np.arange(len(a))
    p, q = _log_softmax(a), _log_softmax(b)
    out[:, 0], out[:, 1] = -p[at, right], -q[at, right]
    chances = np.exp(p)
    p -= q
    p *= chances
    out[:, 2] = p.sum(axis=1)
    out[:, 3] = np.exp(-out[:, 1]) - np.exp(-out[:, 0])
    return out, int((np.argmax(a, axis=1) == np.argmax(b, axis=1)).sum())


def _log_softmax(logits: Any) -> Any:
    values = np.asarray(logits, np.float64)
    values = values - values.max(axis=1, keepdims=True)
    return values - np.log(np.exp(values).sum(axis=1, keepdims=True))


def mean(values: Any) -> Figure:
    """Return the mean and its standard error, which is 0 for ten values or fewer."""
    count, middle = len(values), float(values.mean())
    spread = float((values**2).mean()) - middle * middle
    return Figure(middle, math.sqrt(spread / (count - 1)) if spread > 0 and count > 10 else 0.0)


def _chunk(number: int, sums: _Sums, own: float) -> Chunk:
    """Return the figures so far."""
    seen = sums.all
    count = len(seen)
    a, b = mean(seen[:, 0]), mean(seen[:, 1])
    shared = float((seen[:, 0] * seen[:, 1]).mean() - a.value * b.value) / (count - 1) if count > 10 else 0.0
    ratio = Figure(b.value - a.value, math.sqrt(max(0.0, a.error**2 + b.error**2 - 2 * shared)))
    squares = mean(seen[:, 3] ** 2)
    rms = math.sqrt(squares.value)
    top = sums.same / count
    return Chunk(
        number + 1,
        _power(a),
        _power(b),
        ratio,
        mean(seen[:, 2]),
        Figure(rms, 0.5 / rms * squares.error if rms else 0.0),
        Figure(top, math.sqrt(top * (1 - top) / (count - 1)) if count > 1 else 0.0),
        own,
    )


def _power(figure: Figure) -> Figure:
    """Return e to the power of a mean: the perplexity of a mean of -ln p."""
    value = math.exp(min(figure.value, 700.0))
    return Figure(value, figure.error * value)


def tokens_of(text: str, a: Tokenizer, b: Tokenizer, path: str) -> tuple[list[int], int | None]:
    """Return the text's tokens, and the token that begins every chunk, where the vocabulary asks for one.

    Raises InconsistentError for two different vocabularies.
    """
    if a.tokens != b.tokens:
        odd = next((n for n, pair in enumerate(zip(a.tokens, b.tokens, strict=False)) if pair[0] != pair[1]), 0)
        raise InconsistentError("the vocabularies differ", path=path, found=f"token {odd}: {b.tokens[odd]!r}")
    first = a.ids.get("bos") if a.flags.get("add_bos", a.model == "llama") else None
    return encoder(a).encode(text), first
