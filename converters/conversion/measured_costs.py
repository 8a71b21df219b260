"""What each type of a tensor costs this model: the divergence that it causes on a text.

All matrices of a kind (queries and keys, gates and ups, the output …) are rounded to one type at once, all else is as
it is, and the KL divergence of the predictions is taken. It is shared out among them as their errors are, which
`conversion_plan.measure_types` gives. Rounded rows are made anew whenever they are multiplied with, so that nothing
of the model is held or written.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ggferry.converters.conversion_plan.measure_types import sensitivities
from ggferry.converters.conversion_plan.measurements import Measurements
from ggferry.converters.conversion_plan.steps import Step
from ggferry.converters.forward.model import Places
from ggferry.converters.forward.weights import Weights
from ggferry.converters.model_graph import rows
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.proof.passes import Passes, compare_logits, run_prompts
from ggferry.converters.proof.prompts import Prompt
from ggferry.formats.checkpoint import TensorRef
from ggferry.formats.imatrix.matrix import Imatrix
from ggferry.quant.codec import codec
from ggferry.quant.encode_rows import encode_rows
from ggferry.quant.recipes.allocate import Candidate
from ggferry.quant.recipes.mixtures import needing_imatrix
from ggferry.support.heavy import np
from ggferry.support.progress import Phase, Stage
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.quant.types import Floats

CHUNKS = 4
"""Chunks of the text that are read."""
ERROR = 0.005
"""The type in which matrices are rounded for all chunks is that whose error is nearest to this: some four bits."""
SMALL = 1 << 22
"""Elements of a tensor that is no candidate, up to which its values are part of the digest of a model."""
MOST_FACTOR = 4.0
"""How many times what its errors say a type may cost, or the least part of it."""
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


def measured_costs(
    graph: ModelGraph,
    steps: Mapping[str, Sequence[Step]],
    errors: Mapping[str, Sequence[Candidate]],
    chunks: Sequence[Sequence[int]],
    imatrix: Imatrix | None,
    rounding: str,
    threads: int,
    stage: Stage,
    kept: Measurements,
) -> dict[str, list[Candidate]]:
    """Return the candidates of each tensor with what they cost: their shares of a KL divergence, in nats.

    Args:
        graph: The model.
        steps: By tensor, its step in each type that it may have.
        errors: The same as candidates, with their errors.
        chunks: A text in token ids, in chunks of one length.
        imatrix: The importance matrix, if any.
        rounding: How values are rounded with it (`quant.codec`).
        threads: Worker threads.
        stage: Opens a progress display.
        kept: Divergences that have been measured before are taken from it, the rest put into it.

    Raises as `forward.evaluate.forward`.
    """
    kinds = [_Kind(names, steps, errors) for names in _kinds(steps).values()]
    passes = len(chunks) + sum(len(chunks) + len(kind.others) for kind in kinds)
    of = "" if kept.path is None else _digest(graph, errors, chunks, rounding)
    with stage(Phase.COMPUTING, passes * graph.checkpoint.nbytes) as progress:

        def run(chunk: Sequence[int], chosen: Sequence[Step]) -> Any:
            counted = tuple(range(len(chunk) // 2, len(chunk) - 1, 2))
            weights = _Rounded(graph, threads, _roundings(chosen, imatrix), rounding)
            return run_prompts([Passes(weights)], [Prompt("text", tuple(chunk), Places(rows=counted))])[0][0]

        for number, chunk in enumerate(chunks):
            expected: Any = None
            progress(graph.checkpoint.nbytes)

            def divergence(kind: _Kind, name: str | None, number: int = number, chunk: Sequence[int] = chunk) -> float:
                nonlocal expected
                progress(graph.checkpoint.nbytes)
                line = f"{of} {number} {kind.names[0]}", name or "usual"
                if (known := kept.known(*line)) is not None:
                    return known
                expected = run(chunk, []) if expected is None else expected
                found = max(0.0, compare_logits(expected, run(chunk, kind.chosen(name))).kl_divergence)
                kept.keep(line[0], {line[1]: found})
                return found

            for kind in kinds:
                kind.usual.append(divergence(kind, None))
                kind.single.update({name: divergence(kind, name) for name in kind.others if not number})
    usual = _usual(graph, kinds)
    return {name: found for kind in kinds for name, found in kind.costs(usual).items()}


def _digest(
    graph: ModelGraph, errors: Mapping[str, Sequence[Candidate]], chunks: Sequence[Sequence[int]], rounding: str
) -> str:
    """Return the digest of what divergences depend on: matrices by their errors, other tensors, text and rounding."""
    from blake3 import blake3

    state = blake3(f"{rounding} {[list(chunk) for chunk in chunks]} {sorted(errors.items())}".encode())
    for node in graph.nodes:
        if node.name not in errors and math.prod(node.shape) <= SMALL:
            values: Any = rows.laid_out_values(graph.checkpoint, node, 0, math.prod(node.shape[:-1]))
            state.update(np.ascontiguousarray(values).view(np.uint8).data)
    return str(state.hexdigest())


class _Kind:
    """Matrices that are rounded together.

    Attributes:
        usual: The divergence that they cause in each chunk, in types of some four bits.
        others: The types besides that all of them have, and that need no importance matrix.
        single: The divergence that each of these causes in the first chunk.
    """

    def __init__(
        self,
        names: Sequence[str],
        steps: Mapping[str, Sequence[Step]],
        errors: Mapping[str, Sequence[Candidate]],
    ) -> None:
        self.names, self._steps, self.errors = names, steps, errors
        self._sums: dict[str, float] = defaultdict(float)
        for each in (each for name in names for each in errors[name]):
            self._sums[each.type] += each.error
        self.probes = {name: errors[name][_nearest(errors[name])].type for name in names}
        shared = set.intersection(*({each.type for each in errors[name]} for name in names))
        shared -= {*needing_imatrix(), *(self.probes.values() if len(set(self.probes.values())) == 1 else ())}
        self.others = sorted(kind for kind in shared if self.error(kind) > 0)
        self.usual: list[float] = []
        self.single: dict[str, float] = {}

    def chosen(self, kind: str | None = None) -> list[Step]:
        """Return the steps of one type, by default those of some four bits."""
        return [
            next(step for step in self._steps[name] if step.type.name == (kind or self.probes[name]))
            for name in self.names
        ]

    def error(self, kind: str | None = None) -> float:
        """Return the sum of the errors of one type, by default of those of some four bits."""
        if kind is not None:
            return self._sums[kind]
        return sum(each.error for name in self.names for each in self.errors[name] if each.type == self.probes[name])

    @property
    def share(self) -> float:
        """Return the divergence by the errors, 0.0 where there is none."""
        return sum(self.usual) / len(self.usual) / error if (error := self.error()) > 0 else 0.0

    def costs(self, usual: Mapping[str, float]) -> dict[str, list[Candidate]]:
        """Return the candidates with their costs; `usual`: the shares of tensors that no divergence was found for."""
        share = self.share
        if share <= 0:
            return {
                name: [each._replace(error=each.error * usual[name]) for each in self.errors[name]]
                for name in self.names
            }
        first = self.usual[0] / self.error()
        factors = [
            (math.log(self.error(kind)), self.single[kind] / self.error(kind) / first)
            for kind in self.others
            if first > 0 and self.single[kind] > 0
        ]
        factors.append((math.log(self.error()), 1.0))

        def cost(each: Candidate) -> float:
            if each.error <= 0:
                return 0.0
            whole = math.log(self.error(each.type))
            factor = min(factors, key=lambda known: abs(known[0] - whole))[1]
            return each.error * share * min(MOST_FACTOR, max(1 / MOST_FACTOR, factor))

        return {name: [each._replace(error=cost(each)) for each in self.errors[name]] for name in self.names}


def _usual(graph: ModelGraph, kinds: Sequence[_Kind]) -> dict[str, float]:
    """Return the usual shares of all tensors, brought to the scale of those that were measured."""
    found = sensitivities(graph, [name for kind in kinds for name in kind.names])
    shares = {name: share for kind in kinds if (share := kind.share) > 0 for name in kind.names}
    ratios = [math.log(share / found[name]) for name, share in shares.items()]
    scale = math.exp(sum(ratios) / len(ratios)) if ratios else 1.0
    return {name: scale * share for name, share in found.items()}


def _nearest(errors: Sequence[Candidate]) -> int:
    """Return the number of the candidate whose error is nearest to `ERROR`, of those that need no importance matrix."""
    plain = [number for number, each in enumerate(errors) if each.type not in needing_imatrix() and each.error > 0]
    return min(plain or range(len(errors)), key=lambda number: abs(math.log(max(errors[number].error, 1e-30) / ERROR)))


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
