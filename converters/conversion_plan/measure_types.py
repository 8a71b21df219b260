"""Measure what each type would cost a tensor: encode rows of it, decode them, and compare.

The error of a tensor in a type is the sum of the squared differences over that of the squared values, both weighed by
the importance matrix where it has an entry. As its weights are mean squares of what the matrix is multiplied by, that
is the share of error in the matrix's output, were the inputs uncorrelated. Of a large tensor, groups of rows at equal
distances stand for all. Every sum belongs to one tensor and is made by one thread, so threads change nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from ggferry.converters.conversion_plan.grades import Route
from ggferry.converters.conversion_plan.measurements import Measurements
from ggferry.converters.conversion_plan.steps import Step
from ggferry.converters.model_graph import rows
from ggferry.converters.model_graph.graph import ModelGraph, Node
from ggferry.formats.errors import BadValueError
from ggferry.formats.imatrix.matrix import Imatrix
from ggferry.quant.codec import codec
from ggferry.quant.encode_rows import encode_rows
from ggferry.quant.recipes.allocate import Candidate
from ggferry.quant.types import BlockError
from ggferry.support.heavy import np
from ggferry.support.progress import Progress
from ggferry.support.threads import each

if TYPE_CHECKING:
    from ggferry.quant.types import Floats

SAMPLE = 1 << 19
"""Elements of a tensor that are measured; a tensor of at most so many is measured whole."""
GROUP = 8
"""Rows that are read together."""
SHARES = {"attn_q": 0.4, "attn_k": 0.4, "attn_output": 0.6, "ffn_gate": 1.1, "ffn_up": 1.1, "ffn_down": 1.2}
"""By how much more or less than others the errors of some matrices of a block count, experts' like others'."""
MOST_WEIGHT = 16.0
"""How many times the median of its row an importance may count: a few tokens give some columns a million times that."""
_BLOCK = re.compile(r"(?:\w+\.)*blk\.(\d+)\.(.*)")


def measure_types(
    graph: ModelGraph,
    steps: Mapping[str, Sequence[Step]],
    imatrix: Imatrix | None,
    rounding: str,
    threads: int,
    alignment: int,
    progress: Progress,
    kept: Measurements,
) -> dict[str, list[Candidate]]:
    """Return the candidates of each tensor, with their bytes in the file and their errors, which all count as one.

    Args:
        graph: The model.
        steps: By tensor, its step in each type that it may have.
        imatrix: The importance matrix, if any.
        rounding: How values are rounded with it (`quant.codec`).
        threads: Worker threads.
        alignment: Bytes to whose multiples each tensor's data is aligned.
        progress: Called with the bytes of rows just measured (`measured_bytes`).
        kept: What has been measured before is taken from it, the rest put into it.

    Raises:
        BadValueError: A value that one of the types cannot hold.
    """
    found: dict[str, list[Candidate]] = {}

    def work(name: str) -> None:
        errors = _errors(graph, steps[name], imatrix, rounding, progress, kept)
        found[name] = [
            Candidate(-(-step.nbytes // alignment) * alignment, error, step.type.name)
            for step, error in zip(steps[name], errors, strict=True)
        ]

    each(list(steps), work, threads)
    return {name: found[name] for name in steps}


def measured_bytes(steps: Mapping[str, Sequence[Step]]) -> int:
    """Return how many bytes `measure_types` reports: four for each element that is read."""
    return sum(
        (stop - start) * some[0].node.shape[-1] * 4 for some in steps.values() for start, stop in sampled(some[0].node)
    )


def sensitivities(graph: ModelGraph, names: Sequence[str]) -> dict[str, float]:
    """Return by how much the error of each tensor counts, as a share of that of the output matrix.

    What the output matrix is multiplied by is a sum: the embedding, and of each block what its attention adds and then
    its feed-forward. An error in one of n terms is a share of 1 / n. So it was measured on SmolLM2-135M, all else in
    F16 (docs/recipes.md): the first, the middle and the last ten of its thirty blocks cost alike, and kinds of matrices
    what `SHARES` says. An embedding that is the output matrix, too, counts as both.
    """
    every = {node.name for node in graph.nodes}
    terms = 1 + len({(match[1], _is_feed_forward(match[2])) for name in every if (match := _BLOCK.match(name))})
    tied = "output.weight" not in every

    def share(name: str) -> float:
        block = _BLOCK.match(name)
        if block is not None:
            return SHARES.get(block[2].removesuffix(".weight").removesuffix("_exps"), 1.0) / terms
        return (1.0 if tied else 0.0) + 1 / terms if name == "token_embd.weight" else 1.0

    return {name: share(name) for name in names}


def _is_feed_forward(name: str) -> bool:
    return name.startswith("ffn_")


def sampled(node: Node) -> Iterator[tuple[int, int]]:
    """Yield the ranges of rows that stand for a tensor: all of a small one."""
    height = prod(node.shape[:-1])
    budget = max(GROUP, SAMPLE // max(1, node.shape[-1]))
    if height <= budget:
        yield from ((start, min(height, start + GROUP)) for start in range(0, height, GROUP))
        return
    count = budget // GROUP
    for number in range(count):
        start = number * (height - GROUP) // max(1, count - 1)
        yield start, start + GROUP


def _errors(
    graph: ModelGraph,
    steps: Sequence[Step],
    imatrix: Imatrix | None,
    rounding: str,
    progress: Progress,
    kept: Measurements,
) -> list[float]:
    """Return the error of a tensor in the type of each step, in proportion to its values."""
    node = steps[0].node
    weights: Any = imatrix.weights(node.name, node.shape) if imatrix is not None else None
    of = node.name if kept.path is None else _digest(graph, node, weights, rounding)
    missing = [step for step in steps if step.route is Route.TRANSCODE and kept.known(of, step.type.name) is None]
    bounded = None if weights is None else _bounded(weights)
    energy, lost = 0.0, [0.0] * len(missing)
    for start, stop in sampled(node):
        if missing:
            values: Any = np.ascontiguousarray(rows.laid_out_values(graph.checkpoint, node, start, stop))
            scale = _scale(bounded, node, start, stop)
            energy += _sum(values, scale)
            for number, step in enumerate(missing):
                lost[number] += _sum(_decoded(graph, step, values, weights, start, rounding) - values, scale)
        progress((stop - start) * node.shape[-1] * 4)
    kept.keep(of, {step.type.name: each / energy if energy else 0.0 for step, each in zip(missing, lost, strict=True)})
    return [kept.known(of, step.type.name) or 0.0 if step.route is Route.TRANSCODE else 0.0 for step in steps]


def _digest(graph: ModelGraph, node: Node, weights: Any, rounding: str) -> str:
    """Return the digest of what the errors of a tensor depend on: the rows that are measured, and what weighs them."""
    from blake3 import blake3

    state = blake3(f"{rounding} {node.shape} {MOST_WEIGHT}".encode())
    for start, stop in sampled(node):
        values: Any = rows.laid_out_values(graph.checkpoint, node, start, stop)
        state.update(np.ascontiguousarray(values).view(np.uint8).data)
    if weights is not None:
        state.update(np.ascontiguousarray(weights).view(np.uint8).data)
    return str(state.hexdigest())


def _decoded(graph: ModelGraph, step: Step, values: Any, weights: Any, start: int, rounding: str) -> Floats:
    """Return rows as the type of a step holds them. Raises BadValueError."""
    try:
        blocks = encode_rows(step.type, values, weights, start, step.node.shape, rounding)
    except BlockError as error:
        raise BadValueError(
            f"tensor {step.node.inputs[0].name!r}, rows {start}..{start + len(values)}: {error}",
            path=graph.checkpoint.path,
        ) from None
    return codec(step.type.name).values(blocks, step.node.shape[-1])


def _bounded(weights: Any) -> Any:
    """Return importances `(matrices, columns)` of which none is more than `MOST_WEIGHT` times its row's median."""
    usual = np.median(weights, axis=1, keepdims=True)
    return np.minimum(weights, np.where(usual > 0, MOST_WEIGHT * usual, np.inf))


def _scale(weights: Any, node: Node, start: int, stop: int) -> Any:
    """Return what the columns of some rows are weighed by: a row for each, or for all; None without importances."""
    if weights is None or len(weights) == 1:
        return weights
    height = max(1, node.shape[-2])
    return weights[np.minimum(np.arange(start, stop) // height, len(weights) - 1)]


def _sum(values: Any, scale: Any) -> float:
    """Return the weighted sum of squares, in float64."""
    squares = values.astype(np.float64) ** 2
    return float((squares if scale is None else squares * scale).sum())
