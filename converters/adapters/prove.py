"""Prove an adapter: compare what its pairs do to fixed vectors before and after the conversion."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ggferry.converters.adapters.bind import Adapter, Base, Pair, bind_adapter
from ggferry.converters.adapters.source import ALPHA, read_adapter
from ggferry.converters.conversion_plan.grades import measured
from ggferry.converters.model_graph import rows
from ggferry.converters.model_graph.graph import Node
from ggferry.converters.proof.compare import DeltaProof, Proof, check_accounting
from ggferry.converters.proof.tensors import Sides, TensorProof, check_tensor
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import VerificationError
from ggferry.formats.gguf.values import Value
from ggferry.support.heavy import np
from ggferry.support.progress import Progress

PROBES = 8
"""Fixed vectors that both sides' changes are applied to."""


if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]

EXACT_DELTA = 1e-6
"""Relative RMS below which two applications in float64 count as equal: alpha is a float32 in GGUF, 6e-8."""


AMPLIFICATION = 10.0
"""How many times its factors' relative errors a product may differ (a pair's errors add; the rest is a margin)."""


def prove_adapter(
    adapter: Adapter, again: Checkpoint, *, level: str, jobs: int | None = None, progress: Progress | None = None
) -> Proof:
    """Compare the re-read file with the source: every tensor through its layout and, at 'full', what each pair does.

    Raises VerificationError where they differ.
    """
    output = bind_adapter(again, read_adapter(again), Base(adapter.graph.architecture))
    if adapter.graph.architecture.name != _data(again, "general.architecture"):
        raise VerificationError("architecture", path=again.path, found=_data(again, "general.architecture"))
    if level == "none":
        return Proof("none", (), {})
    if not math.isclose(output.alpha, adapter.alpha, rel_tol=EXACT_DELTA):
        raise VerificationError(ALPHA, path=again.path, found=output.alpha, expected=adapter.alpha)
    check_accounting(adapter.graph, output.graph)
    folded = {pair.b.name: pair.factor for pair in adapter.pairs if pair.factor != 1}
    sides = [Sides(adapter.graph, output.graph)]
    tensors = tuple(
        _graded(check_tensor(sides, node.name, jobs, progress)[0], node, folded.get(node.name))
        for node in output.graph.nodes
    )
    deltas = check_deltas(adapter, output, tensors) if level == "full" else None
    return Proof(level, tensors, {ALPHA: output.alpha}, deltas=deltas)


def _data(checkpoint: Checkpoint, key: str) -> Any:
    value = checkpoint.metadata.get(key)
    return value.data if isinstance(value, Value) else None


def _graded(proof: TensorProof, node: Node, factor: float | None) -> TensorProof:
    if factor is None:
        return proof
    same = proof.max_error == 0
    return replace(proof, grade=measured(node.layout, same_bytes=False, same_values=same, factor=factor))


def check_deltas(source: Adapter, output: Adapter, tensors: Sequence[TensorProof] = ()) -> DeltaProof:
    """Compare what each pair adds to its layer's output for fixed inputs.

    On the source's side it is computed with the source's own scale and row order, on the output's side as the runtime
    computes it from the file. Raises VerificationError where they differ by more than rounding explains.
    """
    errors = {proof.name: proof.relative_rms for proof in tensors}
    mirror = {pair.weight: pair for pair in output.pairs}
    worst, name = 0.0, ""
    limits = [EXACT_DELTA]
    for pair in source.pairs:
        other = mirror[pair.weight]
        inputs = _probes(pair.lows[0].a.columns)
        expected = pair.rows.apply(
            *(low.scale * _applied(source.graph.checkpoint, low.a, low.b, inputs) for low in pair.lows)
        )
        found = _from_file(output, other, inputs).reshape(expected.shape)
        difference = _relative(found - expected, expected)
        limit = EXACT_DELTA + AMPLIFICATION * sum(errors.get(node.name, 0.0) for node in (pair.a, pair.b))
        limits.append(limit)
        if not difference <= limit:
            raise VerificationError(
                f"the output's change of {pair.weight} is not the adapter's",
                path=output.graph.checkpoint.path,
                found=f"relative RMS {difference:.3g}",
                expected=f"at most {limit:.3g}",
            )
        if difference >= worst:
            worst, name = difference, pair.weight
    return DeltaProof(len(source.pairs), PROBES, worst, name, max(limits))


def _probes(columns: int) -> Array:
    """Return vectors of ±1, float64 `(columns, PROBES)`, the same for every file."""
    return np.random.default_rng(columns).integers(0, 2, (columns, PROBES)).astype(np.float64) * 2 - 1


def _from_file(output: Adapter, pair: Pair, inputs: Array) -> Array:
    """Return alpha / rank · B·(A·x) for each matrix of the pair, stacked: `(rows, PROBES)`.

    Alpha is the file's float32.
    """
    (low,) = pair.lows
    checkpoint = output.graph.checkpoint
    scale = output.alpha / low.rank
    if len(low.b.shape) == 2:
        return scale * _applied(checkpoint, low.a, low.b, inputs)
    count = low.b.shape[0]
    a_rows, b_rows = low.a.rows // count, low.b.rows // count
    return np.concatenate(
        [
            scale
            * _applied(checkpoint, low.a, low.b, inputs, (e * a_rows, (e + 1) * a_rows), (e * b_rows, (e + 1) * b_rows))
            for e in range(count)
        ]
    )


def _applied(
    checkpoint: Checkpoint,
    a: TensorRef,
    b: TensorRef,
    inputs: Array,
    a_rows: tuple[int, int] | None = None,
    b_rows: tuple[int, int] | None = None,
) -> Array:
    return _times(checkpoint, b, _times(checkpoint, a, inputs, a_rows), b_rows)


def _times(checkpoint: Checkpoint, ref: TensorRef, x: Array, within: tuple[int, int] | None = None) -> Array:
    """Multiply a matrix, or rows of one, by `x` in float64, reading the matrix piece by piece."""
    first, last = within or (0, ref.rows)
    step = max(1, rows.CHUNK // (ref.columns * 8))
    pieces = [
        rows.values_of(checkpoint, ref, start, min(last, start + step)).astype(np.float64) @ x
        for start in range(first, last, step)
    ]
    return np.concatenate(pieces)


def _relative(delta: Array, expected: Array) -> float:
    power = float(np.square(expected).mean())
    error = float(np.square(delta).mean())
    return math.sqrt(error / power) if power else math.sqrt(error)
