"""Carry out a Plan: workers read, convert and write chunks at offsets that are known beforehand.

Output bytes do not depend on the number of workers: every chunk has its place, and rows are independent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from functools import partial
from math import prod
from typing import Any, Protocol

from ggferry.converters.conversion_plan.grades import Route
from ggferry.converters.conversion_plan.steps import Plan, Step
from ggferry.converters.model_graph import rows
from ggferry.converters.model_graph.graph import Node
from ggferry.converters.write.watch_weights import Watch, place
from ggferry.formats.checkpoint import Dropped
from ggferry.formats.errors import BadValueError, InconsistentError
from ggferry.quant.blocks import ValueRefused
from ggferry.quant.codec import codec
from ggferry.quant.encode_rows import by_directions, encode_rows
from ggferry.quant.fingerprints import Fingerprints
from ggferry.quant.types import BlockError
from ggferry.support.heavy import np
from ggferry.support.progress import Progress
from ggferry.support.records import dataclass
from ggferry.support.threads import each, workers

Encode = Callable[[Any], Any]
"""Makes uint8 `(rows, row bytes)` of float32 `(rows, columns)`."""


class Output(Protocol):
    """Where tensor data goes, such as `formats.gguf.write.GGUFFile`."""

    def pwrite(self, name: str, offset: int, data: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class Job:
    """A chunk of one step.

    Attributes:
        step: The step.
        node: The node whose rows are read.
        start: First row; first byte where `run` is given.
        stop: Row, or byte, after the last.
        run: File, offset and size of the run of bytes that is the tensor's source, where it is copied unchanged; else
            None.
    """

    step: Step
    node: Node
    start: int
    stop: int
    run: tuple[int, int, int] | None = None


@dataclass(frozen=True, slots=True)
class Writing:
    """A plan that is carried out.

    Attributes:
        plan: What to write.
        output: Where to write it.
        watch: What looks at the data.
        marks: Of the rows that are encoded by a search, for the proof.
        done: Names of the tensors that are written already.
    """

    plan: Plan
    output: Output
    watch: Watch
    marks: Fingerprints = field(default_factory=Fingerprints)
    done: set[str] = field(default_factory=set)


def write_tensors(writings: Sequence[Writing], jobs: int | None = None, progress: Progress | None = None) -> None:
    """Write the tensors of several plans for one source.

    A chunk is decoded once for all that encode it, and encoded once for all that encode it in one type.

    Raises the first error of any worker, after which the others stop: BadValueError for a value that is not finite,
    unless the plan's watch allows it.
    """
    plan = writings[0].plan
    for drop in plan.graph.dropped:
        check_replica(plan, drop)
    values = rows.LastValues() if len(writings) > 1 else rows.laid_out_values

    def work(chunk: Sequence[tuple[Writing, Job]]) -> None:
        made: dict[str, Any] = {}
        for writing, job in chunk:
            write_job(writing, job, values, progress, made)

    each(_chunks(writings), work, workers(jobs))


def prefetch_writing(writings: Sequence[Writing]) -> None:
    """Announce what will be decoded and encoded, so that it is loaded while the first chunks are read."""
    steps = [(w.plan, step) for w in writings for step in steps_in_order(w.plan) if step.route is Route.TRANSCODE]
    for _, step in steps:
        codec(step.source_type.name).prefetch(step.elements)
    for plan, step in steps:
        weighted = importances(plan, step) is not None
        codec(step.type.name).expect_encoding(step.elements, weighted, plan.options.rounding)


def _chunks(writings: Sequence[Writing]) -> Iterator[Sequence[tuple[Writing, Job]]]:
    """Yield jobs that are done in turn by one thread: those of different plans that want the same values."""
    if len(writings) == 1:
        (writing,) = writings
        yield from ([(writing, job)] for job in jobs_of(writing.plan) if job.step.name not in writing.done)
        return
    own = [steps_of(writing.plan) for writing in writings]
    for step in steps_in_order(writings[0].plan):
        together: dict[tuple[int, int], list[tuple[Writing, Job]]] = {}
        for writing, steps in zip(writings, own, strict=True):
            if step.name in writing.done:
                continue
            for job in jobs_of_step(writing.plan, steps[step.name]):
                if job.step.route is Route.TRANSCODE:
                    columns = job.node.shape[-1]
                    together.setdefault((job.start * columns, job.stop * columns), []).append((writing, job))
                else:
                    yield [(writing, job)]
        yield from together.values()


def write_job(
    writing: Writing,
    job: Job,
    values: rows.Values,
    progress: Progress | None,
    made: dict[str, Any],
    encode: Encode | None = None,
) -> Any:
    """Do a job, and return the bytes that were written, uint8 `(rows, row bytes)`; None of a run that is copied.

    Args:
        writing: The plan that is carried out.
        job: The chunk.
        values: Reads values of the source.
        progress: Called with the bytes that were written.
        made: By type, what was encoded of the same elements for other outputs; it is added to.
        encode: Encodes the rows; by default the type's encoder, as the plan's options have it.

    Raises BadValueError for a value that the type cannot hold.
    """
    plan, step = writing.plan, job.step
    finite = step.route is Route.TRANSCODE and not step.type.quantized  # of blocks, a scale may still be beyond float16

    def put(element: int, offset: int, data: Any) -> None:
        writing.watch.look(step, element, data, finite=finite)
        writing.output.pwrite(step.name, offset, data)
        if progress:
            progress(data.nbytes)

    if job.run is None:
        data = convert(plan, job, writing.watch, values, made, encode)
        if encode is None and step.route is Route.TRANSCODE and codec(step.type.name).searches:
            mark(writing, job, data)
        put(job.start * job.node.shape[-1], job.start * data.shape[1], data)
        return data
    file, offset, _ = job.run
    copied = rows.scratch(job.stop - job.start)
    plan.graph.checkpoint.files[file].read_into(offset + job.start, copied)
    put(job.start // step.type.block_bytes * step.type.elements, job.start, copied)
    return None


def mark(writing: Writing, job: Job, data: Any) -> None:
    """Keep a mark of encoded rows, which are whole pieces."""
    height, piece = prod(job.node.shape[:-1]), rows.piece_rows(job.node, job.step.type)
    writing.marks.put(job.step.name, height, piece, job.start, data)


def steps_in_order(plan: Plan) -> list[Step]:
    """Return the steps in the order of the source file, so that disks read forward."""
    return sorted(plan.steps, key=lambda step: (step.node.inputs[0].spans[0].file, step.node.inputs[0].spans[0].offset))


def steps_of(plan: Plan) -> dict[str, Step]:
    """Return the steps by name."""
    return {step.name: step for step in plan.steps}


def jobs_of(plan: Plan) -> Iterator[Job]:
    """Yield all chunks in the order of the source file."""
    for step in steps_in_order(plan):
        yield from jobs_of_step(plan, step)


def jobs_of_step(plan: Plan, step: Step) -> Iterator[Job]:
    """Yield the chunks of a step."""
    run = rows.run_of_bytes(step.node) if step.route is Route.COPY and not plan.options.big_endian else None
    if run:
        for start, stop in rows.cuts(0, run[2], rows.COPY, step.type.block_bytes):
            yield Job(step, step.node, start, stop, run)
        return
    node = step.node if plan.imatrix else rows.view_for_streaming(step.node, step.type)
    for start, stop in rows.row_chunks(node, step.type):
        yield Job(step, node, start, stop)


def convert(
    plan: Plan,
    job: Job,
    watch: Watch,
    values: rows.Values,
    made: dict[str, Any],
    encode: Encode | None = None,
) -> Any:
    """Return the output bytes of a chunk, uint8 `(rows, bytes of a row in the target type)`, little-endian.

    `made`, `encode`: as for `write_job`. Raises BadValueError for a value that the type cannot hold.
    """
    checkpoint, step = plan.graph.checkpoint, job.step
    try:
        if step.route in (Route.COPY, Route.GATHER):
            return rows.laid_out(checkpoint, job.node, job.start, job.stop)
        if step.route is Route.REPACK:
            repack = codec(step.source_type.name).repack
            assert repack is not None
            return rows.laid_out(checkpoint, job.node, job.start, job.stop, lambda r, c: repack.apply(r, c)[0])
        if step.type.name not in made:
            decoded = np.ascontiguousarray(values(checkpoint, job.node, job.start, job.stop))
            try:
                made[step.type.name] = encode(decoded) if encode else _encode(plan, job, decoded)
            except BlockError:  # every encoder refuses what is not finite: only then is it worth looking for
                watch.look_at_values(step, job.start * job.node.shape[-1], decoded)
                raise
        return made[step.type.name]
    except BlockError as error:
        hint = "--outtype bf16 or f32 holds such values" if step.type.name == "F16" else None
        where, why = f"{step.node.inputs[0].name!r}, rows {job.start}..{job.stop}", str(error)
        if isinstance(error, ValueRefused) and plan.imatrix is None:
            where, why = place(step.node, (job.start + error.row) * job.node.shape[-1] + error.column), error.why
        raise BadValueError(f"tensor {where}: {why}", path=checkpoint.path, hint=hint) from None


def _encode(plan: Plan, job: Job, rows: Any) -> Any:
    step = job.step
    rounding, weights, directions = plan.options.rounding, importances(plan, step), None
    if plan.imatrix and by_directions(step.type, rounding):
        directions = partial(plan.imatrix.directions, step.name, step.node.shape)
    return encode_rows(step.type, rows, weights, job.start, step.node.shape, rounding, directions)


def importances(plan: Plan, step: Step) -> Any:
    """Return the importances of a tensor's columns, float32 `(matrices, columns)`; None without a matrix."""
    return plan.imatrix.weights(step.name, step.node.shape) if plan.imatrix else None


def check_replica(plan: Plan, drop: Dropped) -> None:
    """Check that a tensor dropped because it repeats another repeats it byte for byte. Raises InconsistentError."""
    if drop.same_as is None:
        return
    checkpoint = plan.graph.checkpoint
    if drop.ref.shape != drop.same_as.shape or drop.ref.type != drop.same_as.type:
        raise InconsistentError(
            f"{drop.ref.name!r} has another shape than {drop.same_as.name!r}, which it should repeat",
            path=checkpoint.path,
            found=f"{drop.ref.type} {drop.ref.shape}",
            expected=f"{drop.same_as.type} {drop.same_as.shape}",
        )
    step = max(1, rows.CHUNK // max(1, drop.ref.row_bytes))
    for start in range(0, drop.ref.rows, step):
        a = rows.raw_rows(checkpoint, drop.ref, start, min(drop.ref.rows, start + step))
        b = rows.raw_rows(checkpoint, drop.same_as, start, min(drop.ref.rows, start + step))
        if not np.array_equal(a, b):
            raise InconsistentError(
                f"{drop.ref.name!r} differs from {drop.same_as.name!r}, and is to be left out as {drop.reason!r}",
                path=checkpoint.files[drop.ref.spans[0].file].path,
                offset=drop.ref.spans[0].offset,
            )
