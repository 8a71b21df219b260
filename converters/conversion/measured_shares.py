"""How much the errors of each kind of matrix count for this model: the divergence that they cause on a text.

All matrices of a kind (queries and keys, gates and ups, the output …) are rounded to some four bits at once, all else
is as it is, and the KL divergence of the predictions is taken. The kind's share is that divergence over the sum of the
errors that `conversion_plan.measure_types` gives for the same types. Rounded rows are made anew whenever they are
multiplied with, so that nothing of the model is held or written.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ggferry.converters.conversion_plan.measure_types import sensitivities
from ggferry.converters.conversion_plan.steps import Step
from ggferry.converters.forward.model import Places
from ggferry.converters.forward.weights import Weights
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.proof.passes import Passes, compare_logits, run_prompts
from ggferry.converters.proof.prompts import Prompt
from ggferry.formats.checkpoint import TensorRef
from ggferry.formats.imatrix import Imatrix
from ggferry.quant.codec import codec
from ggferry.quant.encode_rows import encode_rows
from ggferry.quant.recipes.allocate import Candidate
from ggferry.support.progress import Phase, Stage
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.quant.types import Floats

CHUNKS = 4
"""Chunks of the text that are read."""
ERROR = 0.005
"""The type in which a matrix is rounded is that whose error is nearest to this: some four bits."""
MOST_KINDS = 12
"""So many kinds are measured, those of most weights; the others together."""
_BLOCK = re.compile(r"(?:\w+\.)*blk\.\d+\.(.*)")
_TOGETHER = {"attn_k": "attn_q", "ffn_up": "ffn_gate", "ffn_up_exps": "ffn_gate_exps", "ffn_up_shexp": "ffn_gate_shexp"}


@dataclass(frozen=True, slots=True)
class _Rounding:
    """How the rows of a source tensor are rounded.

    Attributes:
        step: The matrix, in the type in which it is rounded.
        weights: Its importances, `(matrices, columns)`.
        first: Number of the tensor's first row in the matrix.
    """

    step: Step
    weights: Floats | None
    first: int


class _Rounded(Weights):
    """Weights of which some are rounded when they are read."""

    def __init__(self, graph: ModelGraph, threads: int, tensors: Mapping[str, _Rounding], rounding: str) -> None:
        super().__init__(graph, threads)
        self._tensors, self._rounding = tensors, rounding

    def values(self, ref: TensorRef, start: int, stop: int) -> Floats:
        """Return rows as `Weights.values`, rounded where they are to be."""
        values = super().values(ref, start, stop)
        if (found := self._tensors.get(ref.name)) is None:
            return values
        step, first = found.step, found.first + start
        blocks = encode_rows(step.type, values, found.weights, first, step.node.shape, self._rounding)
        return codec(step.type.name).values(blocks, ref.columns)


def spread(chunks: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
    """Return some chunks at equal distances, where there are more than are read."""
    few = [chunks[number * len(chunks) // CHUNKS] for number in range(CHUNKS)]
    return few if len(chunks) > CHUNKS else chunks


def measured_shares(
    graph: ModelGraph,
    steps: Mapping[str, Sequence[Step]],
    errors: Mapping[str, Sequence[Candidate]],
    chunks: Sequence[Sequence[int]],
    imatrix: Imatrix | None,
    rounding: str,
    threads: int,
    stage: Stage,
) -> dict[str, float]:
    """Return by how much the error of each tensor counts, in nats of KL divergence.

    Args:
        graph: The model.
        steps: By tensor, its step in each type that it may have.
        errors: The errors of the same, before they count for more or less.
        chunks: A text in token ids, in chunks of one length.
        imatrix: The importance matrix, if any.
        rounding: How values are rounded with it (`quant.codec`).
        threads: Worker threads.
        stage: Opens a progress display.

    Raises as `forward.evaluate.forward`.
    """
    probes = {name: _nearest(steps[name], errors[name]) for name in steps}
    kinds = _kinds(steps)
    divergences = dict.fromkeys(kinds, 0.0)
    with stage(Phase.COMPUTING, len(chunks) * (len(kinds) + 1) * graph.checkpoint.nbytes) as progress:
        for chunk in chunks:
            rows = tuple(range(len(chunk) // 2, len(chunk) - 1, 2))
            passed = partial(run_prompts, texts=[Prompt("text", tuple(chunk), Places(rows=rows))])
            expected = passed([Passes(Weights(graph, threads))])[0][0]
            progress(graph.checkpoint.nbytes)
            for kind, names in kinds.items():
                tensors = _roundings([steps[name][probes[name]] for name in names], imatrix)
                found = passed([Passes(_Rounded(graph, threads, tensors, rounding))])[0][0]
                divergences[kind] += compare_logits(expected, found).kl_divergence / len(chunks)
                progress(graph.checkpoint.nbytes)
    summed = {kind: sum(errors[name][probes[name]].error for name in names) for kind, names in kinds.items()}
    return _shares(graph, kinds, divergences, summed)


def _nearest(steps: Sequence[Step], errors: Sequence[Candidate]) -> int:
    """Return the number of the step whose error is nearest to `ERROR`, of those that have one."""
    distance = [abs(math.log(each.error / ERROR)) if each.error > 0 else math.inf for each in errors]
    return min(range(len(steps)), key=lambda number: distance[number])


def _kinds(steps: Mapping[str, Sequence[Step]]) -> dict[str, list[str]]:
    """Return the tensors of each kind."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in steps:
        block = _BLOCK.match(name)
        role = (block[1] if block is not None else name).removesuffix(".weight")
        found[_TOGETHER.get(role, role)].append(name)
    size = {kind: sum(math.prod(steps[name][0].node.shape) for name in names) for kind, names in found.items()}
    ordered = sorted(found, key=lambda kind: -size[kind])
    kept = {kind: found[kind] for kind in ordered[:MOST_KINDS]}
    rest = [name for kind in ordered[MOST_KINDS:] for name in found[kind]]
    return {**kept, "others": rest} if rest else kept


def _roundings(steps: Sequence[Step], imatrix: Imatrix | None) -> dict[str, _Rounding]:
    """Return how the source tensors of some matrices are rounded; not those whose rows are no rows of the matrix."""
    found = {}
    for step in steps:
        node, first = step.node, 0
        weights = imatrix.weights(node.name, node.shape) if imatrix is not None else None
        for ref in node.inputs:
            if ref.columns == node.shape[-1]:
                found[ref.name] = _Rounding(step, weights, first)
            first += ref.rows
    return found


def _shares(
    graph: ModelGraph,
    kinds: Mapping[str, Sequence[str]],
    divergences: Mapping[str, float],
    errors: Mapping[str, float],
) -> dict[str, float]:
    """Return the share of each tensor; what could not be measured keeps its usual one beside the others."""
    usual = sensitivities(graph, [name for names in kinds.values() for name in names])
    measured = {kind: divergences[kind] / errors[kind] for kind in kinds if divergences[kind] > 0 and errors[kind] > 0}
    ratios = [math.log(share / usual[name]) for kind, share in measured.items() for name in kinds[kind]]
    scale = math.exp(sum(ratios) / len(ratios)) if ratios else 1.0
    return {name: measured.get(kind, scale * usual[name]) for kind, names in kinds.items() for name in names}
