"""Round matrices with feedback while a model reads a text: `--rounding feedback`.

All chunks of the text pass through the model at once (`forward.batched_passes`), so that whatever a matrix is
multiplied with is there when it is multiplied. Then its second moments are taken, its rows are rounded by them and
written (`quant.rounding.feedback`), and the pass goes on with the rounded rows: later matrices are rounded by what the
rounded model gives them to read. No more is held than the activations of the text, two arrays of columns², and some
rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from ggferry.converters.conversion_plan.grades import Route
from ggferry.converters.conversion_plan.steps import Plan, Step
from ggferry.converters.forward.batched_passes import batched
from ggferry.converters.forward.evaluate import result_of
from ggferry.converters.forward.importance_matrix import HEADS, OUTPUT, chunks_of, group_size, read_chunk
from ggferry.converters.forward.weights import Factor, Product, Weights, in_a_thread
from ggferry.converters.model_graph import rows
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.schema.layouts.parts import Transpose
from ggferry.converters.tokenizers.tokenizer import Tokenizer
from ggferry.converters.write.write_tensors import Job, Writing, importances, mark, write_job
from ggferry.formats.errors import UnsupportedError
from ggferry.quant.codec import codec
from ggferry.quant.levels import LEVELS
from ggferry.quant.rounding.feedback import encode_with_feedback
from ggferry.quant.rounding.second_moments import correction_factors, second_moments
from ggferry.support.heavy import np, torch
from ggferry.support.progress import Progress
from ggferry.support.threads import each

if TYPE_CHECKING:
    from ggferry.quant.types import Bytes, Floats

TOKENS, CHUNK = 1 << 15, 512
"""The most tokens of a text that are read, and how many of them at most belong to one chunk."""
ACTIVATIONS = 4 << 30
"""Bytes of activations that all chunks may hold between two matrices; of a wide model fewer tokens are read."""


def calibration_chunks(graph: ModelGraph, tokenizer: Tokenizer | None, text: str) -> tuple[tuple[int, ...], ...]:
    """Return the token ids of a text in chunks of one length, as many as are read.

    Raises:
        UnsupportedError: A model without a vocabulary, or one that reads more than tokens.
        UsageError: The text does not fill one chunk.
    """
    if tokenizer is None or result_of(graph).inputs:
        why = "has no vocabulary" if tokenizer is None else "reads more than tokens"
        raise UnsupportedError(
            f"--rounding feedback needs a model that reads text, and this model {why}", path=graph.checkpoint.path
        )
    size = min(CHUNK, graph.sizes.get("n_ctx") or CHUNK)
    most = min(TOKENS // size, group_size(graph, size, ACTIVATIONS))
    return tuple(map(tuple, chunks_of(tokenizer, text, size, most)))


def write_with_feedback(writing: Writing, threads: int | None = None, progress: Progress | None = None) -> None:
    """Round and write the matrices that the text of the plan passes through; their names are in `writing.done` then.

    Raises as `write_tensors.write_tensors`.
    """
    plan = writing.plan
    weights = _Rounding(writing, threads, progress)
    batched([(weights, [partial(read_chunk, plan.graph, chunk) for chunk in plan.calibration])])
    weights.finish()


class _Rounding(Weights):
    """Weights that are rounded and written when they are multiplied with for the first time."""

    def __init__(self, writing: Writing, threads: int | None, progress: Progress | None) -> None:
        plan = writing.plan
        super().__init__(plan.graph, threads)
        self.writing, self.progress = writing, progress
        self.steps = {step.node.name: step for step in plan.steps if _rounds(plan, step)}
        self.rounded: dict[str, set[int]] = {}
        self._summed: tuple[torch.Tensor, Floats, Floats | None] | None = None

    def product(self, factor: Factor, x: torch.Tensor) -> Product:
        """Return the product with the rounded matrix, whose parts round and write it."""
        step, item = self.steps.get(factor.name), factor.item or 0
        first = step is not None and item not in self.rounded.get(factor.name, ()) and self._fits(step, factor, x)
        if factor.name in HEADS:
            parts = self._parts(step, item, x) if first and step and factor.name == OUTPUT else ()
            return Product(parts, torch.zeros(1, 1, device=x.device).expand(len(x), self.refs(factor.name)[0].rows))
        if not first or step is None:
            return super().product(factor, x)
        places = self._places(step, factor)
        if places is None:
            plain = super().product(factor, x)
            return Product((*plain.parts, *self._parts(step, item, x)), plain.result)
        out = torch.empty((len(x), len(places)), dtype=x.dtype, device=x.device)
        return Product(self._parts(step, item, x, (out, places)), out)

    def finish(self) -> None:
        """Write what was begun and not multiplied with: experts that no token was sent to, by their encoder alone."""
        for name in list(self.rounded):
            step = self.steps[name]
            rest = [item for item in range(_matrices(step)) if item not in self.rounded[name]]
            parts = [part for item in rest for part in self._parts(step, item, None)]
            each(parts, lambda part: part(), self.threads)
            self.writing.done.add(step.name)
            self.writing.marks.unrepeatable.add(step.name)

    def _fits(self, step: Step | None, factor: Factor, x: torch.Tensor) -> bool:
        """Return whether what is multiplied are the columns of the output's rows."""
        if step is None or x.shape[-1] != step.node.shape[-1] or (factor.item is None) != (_matrices(step) == 1):
            return False
        layout = step.node.layout
        return isinstance(layout, Transpose) if factor.transposed else layout.block_safe

    def _places(self, step: Step, factor: Factor) -> Any:
        """Return, for each row of the output's matrix, the column of the product that it makes, int64 `(rows,)`.

        None where the product is made of other rows, too.
        """
        count, item, inputs = _height(step), factor.item or 0, step.node.inputs
        if factor.transposed:
            return np.arange(count)
        first = item * count
        source, row = step.node.layout.locate(np.arange(first, first + count), *(ref.shape for ref in inputs))
        if factor.item is None:
            starts = np.cumsum([0, *(ref.rows for ref in inputs)])
            places, made = starts[source] + row, int(starts[-1])
        else:
            places, made = row if len(inputs) > 1 else row - first, count
        return places if np.array_equal(np.sort(places), np.arange(made)) else None

    def _parts(
        self, step: Step, item: int, x: torch.Tensor | None, target: tuple[torch.Tensor, Any] | None = None
    ) -> tuple[Callable[[], None], ...]:
        """Return what rounds and writes the rows of a matrix, and puts their products with x into `target`.

        Without x, they are rounded by their encoder alone.
        """
        self.rounded.setdefault(step.node.name, set()).add(item)
        moments, factors = (None, None) if x is None else self._of_inputs(x)
        given = importances(self.writing.plan, step)
        own = None if given is None else given[min(item, len(given) - 1)]
        read = x.cpu().contiguous() if x is not None and target is not None else None

        def encode(values: Floats) -> Bytes:
            if factors is None:
                encoder = codec(step.type.name).encode
                assert encoder is not None
                return encoder(values, own)
            return encode_with_feedback(step.type, values, moments if own is None else own, factors)

        def part(job: Job) -> None:
            blocks = write_job(self.writing, job, rows.laid_out_values, self.progress, {}, encode)
            if _matrices(step) == 1:
                mark(self.writing, job, blocks)
            if target is not None and read is not None:
                out, places = target
                first = item * _height(step)
                with in_a_thread():
                    values = np.ascontiguousarray(codec(step.type.name).values(blocks, job.node.shape[-1]))
                    to = places[job.start - first : job.stop - first]
                    if out.device == read.device and np.array_equal(to, np.arange(to[0], to[0] + len(to))):
                        self._multiply_rows(values, read, out, int(to[0]))
                        return
                    made = torch.empty((len(read), len(values)), dtype=read.dtype)
                    self._multiply_rows(values, read, made, 0)
                    out[:, torch.from_numpy(to).to(out.device)] = made.to(out.device)

        return tuple(partial(part, job) for job in _jobs(step, item))

    def _of_inputs(self, x: torch.Tensor) -> tuple[Floats, Floats | None]:
        """Return the mean squares of the columns of x, and the corrections by their second moments."""
        if self._summed is None or self._summed[0] is not x:  # queries, keys and values are made of the same rows
            self._summed = None
            inputs = x.float().cpu().numpy()
            moments = second_moments(inputs, self.threads)
            factors = correction_factors(moments)
            squares = moments.diagonal() / np.float32(max(1, len(inputs)))
            self._summed = x, squares, factors
        return self._summed[1:]


def _rounds(plan: Plan, step: Step) -> bool:
    """Return whether a tensor can be rounded with feedback: to levels that are chosen one by one, if it is read."""
    return step.route is Route.TRANSCODE and step.type.name in LEVELS and len(step.node.shape) in (2, 3)


def _matrices(step: Step) -> int:
    return prod(step.node.shape[:-2])


def _height(step: Step) -> int:
    return step.node.shape[-2]


def _jobs(step: Step, item: int) -> list[Job]:
    """Return the chunks of one matrix of a tensor."""
    count, piece = _height(step), max(1, rows.piece_rows(step.node, step.type))
    first = item * count
    return [
        Job(step, step.node, start, min(first + count, start + piece)) for start in range(first, first + count, piece)
    ]
