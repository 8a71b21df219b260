"""Prove names, order, layout and hparams of the output by what its model computes: by forward passes.

The source is run in its own conventions, with no layout applied; the output is run by what its file states. Where
values were rounded, the passes differ by what rounding costs. The *structure* is then proved by a third pass, of the
output's model over the source's values in the output's layout. It must agree with the source's pass as two float32
passes do. The values that the file really holds are proved tensor by tensor (`proof.tensors`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

from ggferry.converters.forward.device import title
from ggferry.converters.forward.evaluate import reads_tokens, result_of
from ggferry.converters.forward.model import LOGITS, Choices, Result
from ggferry.converters.forward.weights import Weights
from ggferry.converters.metadata.receipt_fields import LogitsRecord, PromptRecord
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.proof.passes import (
    Difference,
    Passes,
    SourceValues,
    by_block,
    compare_logits,
    pooled_vectors,
    run_prompts,
    worst,
)
from ggferry.converters.proof.prompts import Prompt, prompts, reach
from ggferry.converters.proof.tensors import TensorProof
from ggferry.formats.errors import VerificationError
from ggferry.support.progress import Phase, Progress, Stage, silent

EXACT_LOGITS = 2e-6
"""Relative RMS below which two float32 passes over equal values, in another order, count as equal for a few blocks."""
_FEW_BLOCKS = 3
_COUNTERS = ("n_layer", "n_nextn", "n_layer_enc", "n_layer_dec", "v_n_layer", "a_n_layer")
CANCELLED = 8
ROWS = 8 << 20
"""Bytes of logits that the sides of passes which run together may hold."""

_NOTHING = 1e-300
SHARE, SHARE_OF_PRODUCTS = 1 / 16, 2.0
"""What two passes in float64 may differ by, as a share of what float32 costs; the latter where weights are products.

Measured: 7e-9 and 0.7 at most (docs/decisions/verify-limit.md)."""


@dataclass(frozen=True, slots=True)
class LogitsProof:
    """The two forward passes compared over the prompts; the figures are those of the worst prompt.

    Attributes:
        max_error: Largest absolute difference.
        relative_rms: Relative RMS difference.
        limit: What `structure`, or else `relative_rms`, may be at most.
        top1_agreement: Share of rows whose largest logit is the same; None for states, which are no logits.
        kl_divergence: Mean in nats; None for states.
        what: What the rows are, such as logits.
        structure: Where the output's values are rounded: relative RMS between the source's pass and a pass of the
            output's
            model over the source's values; else None.
        prompts: The prompts, as plain data.
        reached: The parts of the model that the prompts exercised.
        not_reached: The parts that they did not.
        embedding: Largest relative RMS difference of what a text is used for, its pooled vector or scores; None where
            the model makes none.
        device: Where the passes were computed: 'cpu', or a GPU by number and name.
        rounding: What float32 costs the passes: relative RMS between one in float32 and one in float64, of the side
            that it costs more. Measured where the passes differ by more than those of other models; else None.
        in_float64: Then the relative RMS between the two sides in float64, at most `SHARE` of `rounding`.
    """

    max_error: float
    relative_rms: float
    limit: float
    top1_agreement: float | None
    kl_divergence: float | None
    what: Result = LOGITS
    structure: float | None = None
    prompts: tuple[PromptRecord, ...] = ()
    reached: tuple[str, ...] = ()
    not_reached: tuple[str, ...] = ()
    embedding: float | None = None
    device: str = "cpu"
    rounding: float | None = None
    in_float64: float | None = None

    def as_dict(self) -> LogitsRecord:
        """Return the figures as receipts hold them, with `what` in words."""
        found = {**asdict(self), "what": str(self.what)}
        kept = {name: value for name, value in found.items() if value is not None or name not in _MEASURED_AGAIN}
        return cast("LogitsRecord", kept)


_MEASURED_AGAIN = ("rounding", "in_float64")


def check_logits(
    source: ModelGraph,
    output: ModelGraph,
    tensors: Sequence[TensorProof] = (),
    jobs: int | None = None,
    stage: Stage = silent,
) -> LogitsProof:
    """Run both sides on the fixed prompts and compare the results.

    Args:
        source: The source's graph.
        output: The graph of the output as it was read again.
        tensors: What was found for the tensors; where one was rounded, the third pass is run.
        jobs: Number of threads; None for the default.
        stage: Opens a progress bar.

    Raises VerificationError when the sides differ by more than two float32 passes over the same values do.
    """
    return check_all_logits(source, [(output, tensors)], jobs, stage)[0]


def check_all_logits(
    source: ModelGraph,
    outputs: Sequence[tuple[ModelGraph, Sequence[TensorProof]]],
    jobs: int | None = None,
    stage: Stage = silent,
) -> list[LogitsProof]:
    """Do for several outputs of one source what `check_logits` does for one.

    The source's values are read once for as many passes as the room for their rows allows. Outputs that state the same
    model have one third pass.
    """
    texts, origin = prompts(source), Weights(source, jobs)
    own = [Weights(output, jobs) for output, _ in outputs]
    alike = _structures(outputs, origin)
    sides = [*{id(side): side for side in alike if side is not None}.values(), *own]
    with stage(Phase.COMPUTING, sum(side.graph.checkpoint.nbytes for side in (origin, *sides))) as progress:
        base, found = _compared(origin, sides, texts, progress)
        unequal = [
            side
            for side in (third or one for side, third, one in zip(own, alike, own, strict=True))
            if not _agree(found[id(side)], exact_limit(source))
        ]
        again = _in_float64(base, unequal, found, texts) if unequal else {}
    come_to = reach(source, texts, [choices.chosen for choices in base.choices])
    described = tuple(text.as_dict() for text in texts)
    return [
        replace(
            _judged(source, side, found[id(side)], found[id(third)] if third else None, again.get(id(third or side))),
            prompts=described,
            reached=come_to.reached,
            not_reached=come_to.missed,
            device=title(origin.device),
        )
        for side, third in zip(own, alike, strict=True)
    ]


def _structures(
    outputs: Sequence[tuple[ModelGraph, Sequence[TensorProof]]], origin: Weights
) -> list[SourceValues | None]:
    """Return the third pass of each output, which is one and the same for those that state the same model."""
    found: list[SourceValues | None] = []
    for output, tensors in outputs:
        if any(tensor.max_error for tensor in tensors):
            same = (each for each in found if each is not None and _same_model(each.graph, output))
            found.append(next(same, None) or SourceValues(output, origin))
        else:
            found.append(None)
    return found


def _same_model(one: ModelGraph, other: ModelGraph) -> bool:
    """Return whether two outputs differ, for a forward pass over other values than theirs, in nothing at all."""
    sides = [
        (graph.architecture, graph.dialect, graph.sizes, [(n.name, n.shape, n.layout) for n in graph.nodes])
        for graph in (one, other)
    ]
    return sides[0] == sides[1]


@dataclass(frozen=True, slots=True)
class _Found:
    """How the passes of one side differ from the source's: over the rows, and over what is made of a text."""

    rows: Difference
    vectors: float | None
    results: Sequence[Any] = ()
    """The rows and vectors themselves, where they differ by more than two float32 passes usually do."""


@dataclass(frozen=True, slots=True)
class _Base:
    """The source's passes: its weights, its choices of experts, its rows, and what it makes of the texts."""

    weights: Weights
    choices: Sequence[Choices]
    rows: Sequence[Any]
    vectors: Sequence[Any]


def _compared(
    origin: Weights, sides: Sequence[Weights], texts: Sequence[Prompt], progress: Progress
) -> tuple[_Base, dict[int, _Found]]:
    """Run the passes of all sides; return the source's, and what was found by side."""
    choices, limit = [Choices() for _ in texts], exact_limit(origin.graph)
    base = _Base(origin, choices, (), ())
    found = {}
    for group in _groups(origin, sides, texts):
        passes = [
            Passes(side, by_block(side.graph, progress), choices if side is origin else _after(choices))
            for side in group
        ]
        for side, logits in zip(group, run_prompts(passes, texts), strict=True):
            own = pooled_vectors(side, logits)
            if side is origin:
                base = replace(base, rows=logits, vectors=own)
                continue
            apart = worst(base.vectors, own).relative_rms if len(base.vectors) == len(own) and own else math.inf
            seen = _Found(worst(base.rows, logits), apart if base.vectors else None)
            found[id(side)] = seen if _agree(seen, limit) else replace(seen, results=[*logits, *own])
    return base, found


@dataclass(frozen=True, slots=True)
class _Again:
    """Passes in float64: how far a side's rows are from the source's, and what float32 costs either.

    Attributes:
        apart: Relative RMS between the sides, of the prompt in which it is the largest share of `rounding`.
        rounding: Relative RMS between a pass in float32 and one in float64 of that prompt, of the side where it is
            larger.
    """

    apart: float
    rounding: float


def _in_float64(
    base: _Base, sides: Sequence[Weights], known: Mapping[int, _Found], texts: Sequence[Prompt]
) -> dict[int, _Again]:
    """Run the source's passes and those of some sides in float64, one side after the other; return what was found."""
    origin = Weights(base.weights.graph, base.weights.threads, base.weights.device, wide=True)
    choices = _after(base.choices)
    expected = _results(origin, texts, choices)
    costs = _apart(expected, [*base.rows, *base.vectors])
    found = {}
    for side in sides:
        again = SourceValues(side.graph, origin) if isinstance(side, SourceValues) else _widened(side)
        results = _results(again, texts, _after(choices))
        own = map(max, costs, _apart(results, known[id(side)].results))
        pairs = zip(_apart(expected, results), own, strict=False)
        found[id(side)] = _Again(*max(pairs, key=lambda pair: pair[0] / max(pair[1], _NOTHING)))
    return found


def _results(weights: Weights, texts: Sequence[Prompt], choices: Sequence[Choices]) -> list[Any]:
    """Return the rows of all prompts, then what is made of each text."""
    rows = run_prompts([Passes(weights, choices=choices)], texts)[0]
    return [*rows, *pooled_vectors(weights, rows)]


def _apart(expected: Sequence[Any], found: Sequence[Any]) -> list[float]:
    """Return the relative RMS differences; infinity for what is not finite, and for rows of which one side has none."""
    if len(expected) != len(found):
        return [math.inf] * len(expected)
    apart = [compare_logits(*pair).relative_rms for pair in zip(expected, found, strict=True)]
    return [each if math.isfinite(each) else math.inf for each in apart]


def _widened(side: Weights) -> Weights:
    return Weights(side.graph, side.threads, side.device, wide=True)


def _after(choices: Sequence[Choices]) -> list[Choices]:
    return [Choices(earlier=each.chosen) for each in choices]


def _groups(origin: Weights, sides: Sequence[Weights], texts: Sequence[Prompt]) -> list[list[Weights]]:
    """Return which sides run together: as many as ROWS holds, the source among the first.

    What reads more than tokens has activations of a size that is not known before, and runs alone.
    """
    if not reads_tokens(origin.graph) or result_of(origin.graph).inputs:
        return [[side] for side in (origin, *sides)]
    rows = sum(len(text.tokens if text.places.rows is None else text.places.rows) for text in texts)
    rows *= 1 + (origin.graph.sizes.get("n_nextn") or 0)
    together = max(2, ROWS // (4 * rows * max(1, origin.graph.sizes["n_vocab"])))
    first, rest = sides[:together], sides[together:]
    return [[origin, *first], *([*rest[at : at + together]] for at in range(0, len(rest), together))]


def _agree(found: _Found, limit: float) -> bool:
    """Return whether two passes agree as two float32 passes over equal values do.

    A score is a sum in which much may cancel, so it may be `CANCELLED` times as far off as the states.
    """
    vectors = found.vectors is None or found.vectors <= limit * CANCELLED
    return found.rows.relative_rms <= limit and vectors


def _judged(
    source: ModelGraph, side: Weights, found: _Found, third: _Found | None, again: _Again | None
) -> LogitsProof:
    """Return what was found for an output. Raises VerificationError."""
    result, limit, rows = result_of(side.graph), exact_limit(source), found.rows
    apart = third or found
    path = side.graph.checkpoint.path
    if not math.isfinite(rows.relative_rms):
        raise _differs(path, rows.relative_rms, limit)
    if again is not None:
        if not again.apart <= again.rounding * _share(source) < math.inf:
            _check_vectors(apart.vectors, limit, path)
            raise _differs(path, apart.rows.relative_rms, limit, again, _share(source))
        limit = max(limit, apart.rows.relative_rms)
    return LogitsProof(
        rows.max_error,
        rows.relative_rms,
        limit,
        rows.top1_agreement if result.ranked else None,
        rows.kl_divergence if result.ranked else None,
        result,
        third.rows.relative_rms if third else None,
        embedding=found.vectors,
        rounding=again.rounding if again else None,
        in_float64=again.apart if again else None,
    )


def _differs(path: str, found: float, limit: float, again: _Again | None = None, share: float = 0) -> VerificationError:
    wide = f", and {again.apart:.3g} in float64" if again else ""
    least = f", or {again.rounding * share:.3g} in float64, by what float32 costs this model" if again else ""
    return VerificationError(
        "the forward pass of the output differs from the source's",
        path=path,
        found=f"relative RMS {found:.3g}{wide}",
        expected=f"at most {limit:.3g}{least}",
    )


def _check_vectors(apart: float | None, limit: float, path: str) -> None:
    """Check that texts come out as the same vectors or scores. Raises VerificationError."""
    if apart is not None and not apart <= limit * CANCELLED:
        raise VerificationError(
            "the output computes something else of a text than the source",
            path=path,
            found=f"relative RMS {apart:.3g}",
            expected=f"at most {limit * CANCELLED:.3g}",
        )


def _share(graph: ModelGraph) -> float:
    return SHARE_OF_PRODUCTS if _has_products(graph) else SHARE


def _has_products(graph: ModelGraph) -> bool:
    """Return whether some weights of the output are products, which float32 rounds once more."""
    return any(node.layout.widens for node in graph.nodes)


def exact_limit(graph: ModelGraph) -> float:
    """Return the relative RMS to which two float32 passes over equal values agree in a model of that many blocks.

    With lively random weights it is 2.0e-6 at 8 blocks, 3.4e-6 at 22, 4.1e-6 at 48 (docs/decisions/verify-limit.md).
    Twice that is allowed where weights are products, which were rounded once more.
    """
    return EXACT_LOGITS * (2 if _has_products(graph) else 1) * growth(graph)


def growth(graph: ModelGraph) -> float:
    """Return the factor by which rounding errors of a few blocks grow over all of a model's.

    They add up as a random walk does.
    """
    blocks = sum(graph.sizes.get(name) or 0 for name in _COUNTERS)
    return math.sqrt(max(1.0, blocks / _FEW_BLOCKS))
