"""Prove names, order, layout and hparams of the output by what its model computes: by forward passes.

The source is run in its own conventions, with no layout applied; the output is run by what its file states. Where
values were rounded, the passes differ by what rounding costs. The *structure* is then proved by a third pass, of the
output's model over the source's values in the output's layout. It must agree with the source's pass as two float32
passes do. The values that the file really holds are proved tensor by tensor (`proof.tensors`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ggferry.converters.forward.device import title
from ggferry.converters.forward.evaluate import embedding, forward, reads_tokens, result_of
from ggferry.converters.forward.lockstep import in_lockstep
from ggferry.converters.forward.model import LOGITS, Choices, Result
from ggferry.converters.forward.weights import Factor, Weights
from ggferry.converters.model_graph import rows
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.proof.prompts import Prompt, prompts, reach
from ggferry.converters.proof.tensors import TensorProof
from ggferry.converters.schema.layouts import SAME
from ggferry.formats.checkpoint import TensorRef
from ggferry.formats.errors import VerificationError
from ggferry.support.lazy_import import lazy
from ggferry.support.progress import Phase, Progress, Stage, silent

if TYPE_CHECKING:
    import numpy as np

    from ggferry.quant.codec import Floats
else:
    np = lazy("numpy")

EXACT_LOGITS = 2e-6
"""Relative RMS below which two float32 passes over equal values, in another order, count as equal for a few blocks."""
_FEW_BLOCKS = 3
_COUNTERS = ("n_layer", "n_layer_enc", "n_layer_dec", "v_n_layer", "a_n_layer")
CANCELLED = 8
ROWS = 8 << 20
"""Bytes of logits that the sides of passes which run together may hold."""

_BLOCK = re.compile(r"blk\.\d+")
"""Matches up to the end of the part of a name that identifies its block: blk.0, enc.blk.0."""


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
    """

    max_error: float
    relative_rms: float
    limit: float
    top1_agreement: float | None
    kl_divergence: float | None
    what: Result = LOGITS
    structure: float | None = None
    prompts: tuple[Mapping[str, Any], ...] = ()
    reached: tuple[str, ...] = ()
    not_reached: tuple[str, ...] = ()
    embedding: float | None = None
    device: str = "cpu"

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as receipts hold them, with `what` in words."""
        return {**asdict(self), "what": str(self.what)}


class SourceValues(Weights):
    """The output's tensors with the source's values in the output's layout."""

    def __init__(self, output: ModelGraph, source: Weights) -> None:
        super().__init__(output, source.threads, source.device)
        self._source = source
        self._nodes = {node.inputs[0].name: source.graph.by_name[node.name] for node in output.nodes}

    def values(self, ref: TensorRef, start: int, stop: int) -> Floats:
        """Return rows `start:stop` of the source's values for the tensor, float32."""
        return rows.laid_out_values(self._source.graph.checkpoint, self._nodes[ref.name], start, stop)

    def holder(self, factor: Factor) -> Weights:
        """Return the source's weights for a matrix that has no other layout in the output.

        Only where its pass then has the same bits as without a third one: receipts of one model must be equal.
        """
        node = self._source.graph.by_name[factor.name]
        shapes = {ref.shape for ref in (*node.inputs, *self.refs(factor.name))}
        same = node.layout == SAME and len(node.inputs) == len(shapes) == 1
        return self._source if same and self._source.by_kernel(factor) else self


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
        chosen, found = _compared(origin, sides, texts, progress)
    come_to = reach(source, texts, [choices.chosen for choices in chosen])
    said = tuple(text.as_dict() for text in texts)
    return [
        replace(
            _judged(source, side, found[id(side)], found[id(third)] if third else None),
            prompts=said, reached=come_to.reached, not_reached=come_to.missed, device=title(origin.device),
        )
        for side, third in zip(own, alike, strict=True)
    ]  # fmt: skip


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

    rows: LogitsProof
    vectors: float | None


def _compared(
    origin: Weights, sides: Sequence[Weights], texts: Sequence[Prompt], progress: Progress
) -> tuple[list[Choices], dict[int, _Found]]:
    """Run the passes of all sides; return the source's choices of experts, and what was found by side."""
    choices = [Choices() for _ in texts]
    expected: list[Any] = []
    vectors: list[Any] = []
    found = {}
    for group in _groups(origin, sides, texts):
        passes = [
            Passes(side, _by_block(side.graph, progress), choices if side is origin else _after(choices))
            for side in group
        ]
        for side, logits in zip(group, run_together(passes, texts), strict=True):
            own = _vectors(side, logits)
            if side is origin:
                expected, vectors = logits, own
                continue
            apart = _worst(vectors, own).relative_rms if len(vectors) == len(own) and vectors else math.inf
            found[id(side)] = _Found(_worst(expected, logits), apart if vectors else None)
    return choices, found


def _after(choices: Sequence[Choices]) -> list[Choices]:
    return [Choices(earlier=each.chosen) for each in choices]


def _groups(origin: Weights, sides: Sequence[Weights], texts: Sequence[Prompt]) -> list[list[Weights]]:
    """Return which sides run together: as many as ROWS holds, the source among the first.

    What reads more than tokens has activations of a size that is not known before, and runs alone.
    """
    if not reads_tokens(origin.graph) or result_of(origin.graph).inputs:
        return [[side] for side in (origin, *sides)]
    rows = sum(len(text.tokens if text.places.rows is None else text.places.rows) for text in texts)
    together = max(2, ROWS // (4 * rows * max(1, origin.graph.sizes["n_vocab"])))
    first, rest = sides[:together], sides[together:]
    return [[origin, *first], *([*rest[at : at + together]] for at in range(0, len(rest), together))]


def _judged(source: ModelGraph, side: Weights, found: _Found, third: _Found | None) -> LogitsProof:
    """Return what was found for an output. Raises VerificationError."""
    output, result = side.graph, result_of(side.graph)
    proof = replace(
        found.rows, limit=exact_limit(source), what=result, embedding=found.vectors,
        structure=third.rows.relative_rms if third else None,
    )  # fmt: skip
    if not result.ranked:
        proof = replace(proof, top1_agreement=None, kl_divergence=None)
    apart = third or found
    _check_vectors(apart.vectors, proof.limit, output.checkpoint.path)
    if not (apart.rows.relative_rms <= proof.limit and math.isfinite(proof.relative_rms)):
        raise VerificationError(
            "the forward pass of the output differs from the source's", path=output.checkpoint.path,
            found=f"relative RMS {apart.rows.relative_rms:.3g}", expected=f"at most {proof.limit:.3g}",
        )  # fmt: skip
    return proof


def _vectors(side: Weights, rows: Sequence[Any]) -> list[Any]:
    """Return what the model makes of each text, `(1, n)`; nothing where it makes no vector of a text."""
    found = [embedding(side.graph, states, side) for states in rows] if not result_of(side.graph).ranked else []
    return [vector[None] for vector in found if vector is not None]


def _check_vectors(apart: float | None, limit: float, path: str) -> None:
    """Check that texts come out as the same vectors or scores. Raises VerificationError.

    A score is a sum in which much may cancel, so it may be `CANCELLED` times as far off as the states.
    """
    if apart is not None and not apart <= limit * CANCELLED:
        raise VerificationError(
            "what the output makes of a text differs from what the source does", path=path,
            found=f"relative RMS {apart:.3g}", expected=f"at most {limit * CANCELLED:.3g}",
        )  # fmt: skip


def exact_limit(graph: ModelGraph) -> float:
    """Return the relative RMS to which two float32 passes over equal values agree in a model of that many blocks.

    With lively random weights it is 2.0e-6 at 8 blocks, 3.4e-6 at 22, 4.1e-6 at 48 (docs/decisions/verify-limit.md).
    Twice that is allowed where weights are products, which were rounded once more.
    """
    products = 2 if any(node.layout.widens for node in graph.nodes) else 1
    return EXACT_LOGITS * products * growth(graph)


def growth(graph: ModelGraph) -> float:
    """Return the factor by which rounding errors of a few blocks grow over all of a model's.

    They add up as a random walk does.
    """
    blocks = sum(graph.sizes.get(name) or 0 for name in _COUNTERS)
    return math.sqrt(max(1.0, blocks / _FEW_BLOCKS))


def run_prompts(
    weights: Weights,
    texts: Sequence[Prompt],
    progress: Progress | None = None,
    choices: Sequence[Choices] | None = None,
) -> list[Any]:
    """Return the wanted rows of every prompt, computed in one reading of the weights.

    `choices`: for each prompt, the `choices` argument of `forward`.
    """
    return run_together([Passes(weights, progress, choices)], texts)[0]


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
        text, told = texts[number], self.progress if number == 0 else None
        chosen = self.choices[number] if self.choices else None
        found[number] = forward(
            self.weights.graph, text.tokens, told, weights, text.inputs, places=text.places, choices=chosen
        )


def run_together(sides: Sequence[Passes], texts: Sequence[Prompt]) -> list[list[Any]]:
    """Return the wanted rows of every prompt for several models with the same roles, read side by side."""
    found: list[list[Any]] = [[None] * len(texts) for _ in sides]
    if len(sides) == len(texts) == 1:
        sides[0].run(texts, 0, found[0], sides[0].weights)
    else:
        in_lockstep([
            (side.weights, [partial(side.run, texts, number, rows) for number in range(len(texts))])
            for side, rows in zip(sides, found, strict=True)
        ])  # fmt: skip
    return found


def _worst(expected: Sequence[Any], found: Sequence[Any]) -> LogitsProof:
    """Return the figures of the prompt whose rows differ most."""
    figures = [compare_logits(a, b) for a, b in zip(expected, found, strict=True)]
    return max(figures, key=lambda figure: figure.relative_rms if math.isfinite(figure.relative_rms) else math.inf)


def _by_block(graph: ModelGraph, progress: Progress) -> Progress:
    """Return a progress function that counts blocks: each stands for its share of the file's bytes."""
    blocks = {name[: found.end()] for name in graph.by_name if (found := _BLOCK.search(name))}
    share = graph.checkpoint.nbytes // max(1, len(blocks))
    return lambda done: progress(done * share)


def compare_logits(expected: Any, found: Any) -> LogitsProof:
    """Compare two logits arrays `(tokens, n_vocab)`: max |Δ|, relative RMS, top-1 agreement, mean KL in nats.

    Rows are compared one by one: in float64 and with what is computed of them, all would take eight times their memory.
    """
    rows = [_compare_rows(*pair) for pair in zip(np.asarray(expected), np.asarray(found), strict=True)]
    largest, error, power, top1, divergence = (np.array(column) for column in zip(*rows, strict=True))
    scale = math.sqrt(float(power.mean())) or 1.0
    return LogitsProof(
        max_error=float(largest.max()), relative_rms=math.sqrt(float(error.mean())) / scale, limit=math.inf,
        top1_agreement=float(top1.mean()), kl_divergence=float(divergence.mean()),
    )  # fmt: skip


def _compare_rows(expected: Any, found: Any) -> tuple[float, float, float, bool, float]:
    """Return max |Δ|, the mean squares of Δ and of `expected`, whether the largest are at one place, and the KL."""
    a, b = expected.astype(np.float64), found.astype(np.float64)
    delta = b - a

    def log_softmax(x: Any) -> Any:
        x = x - x.max()
        return x - np.log(np.exp(x).sum())

    p, q = log_softmax(a), log_softmax(b)
    return (
        float(np.abs(delta).max()), float(np.square(delta).mean()), float(np.square(a).mean()),
        bool(a.argmax() == b.argmax()), float((np.exp(p) * (p - q)).sum()),
    )  # fmt: skip
