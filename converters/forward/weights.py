"""Weights of a ModelGraph for the forward pass: decoded from the file in chunks of rows, never held whole.

Tensors are read as the source stores them, without any layout: the recipe's conventions say how to interpret them.
Therefore comparing the result with that of the converted file proves the layouts.

Chunks of a matrix are decoded and multiplied by threads of ours, while torch computes with one thread in each
(`one_thread`). Most of the work is reading and decoding, which torch does not parallelize, and its own threads spin
while they wait for each other (measured on two busy cores: 16 to 32 s of CPU instead of 1.9 s).
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from ggferry.converters.forward.device import CPU, chosen, moved
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.model_graph.rows import CHUNK, values_of
from ggferry.formats.checkpoint import TensorRef
from ggferry.formats.errors import BadValueError, MissingError
from ggferry.quant.kernels import ALIGNED, PRODUCTS
from ggferry.support.allocator import forget_code
from ggferry.support.heavy import import_ahead, np, torch
from ggferry.support.threads import each, workers

if TYPE_CHECKING:
    from ggferry.quant.types import Floats

ROWS = 4
"""Rows of a matrix that `PRODUCTS` takes at once."""
PARTS = 4
"""Parts of a matrix are a multiple of this, so that 2 or 4 threads have equal shares whatever its size."""
LARGE = 1 << 26
"""Weights of a model from which on loading `PRODUCTS` costs less than it saves."""

_passes: list[tuple[int, str, str]] = []
"""torch's settings before each of the concurrent passes."""
_lock = threading.Lock()


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute with one thread for each caller, and GPUs in float32, until the last concurrent pass has ended.

    NVIDIA's libraries may otherwise multiply in TF32, with 10 bits of mantissa (torch's notes on numerical accuracy).
    """
    backends: Any = torch.backends  # torch's types do not know `cudnn.conv`
    products, convolutions = backends.cuda.matmul, backends.cudnn.conv
    with _lock:
        _passes.append((torch.get_num_threads(), products.fp32_precision, convolutions.fp32_precision))
        torch.set_num_threads(1)
        products.fp32_precision = convolutions.fp32_precision = "ieee"
    try:
        yield
    finally:
        with _lock:
            if len(_passes) == 1:
                threads, products.fp32_precision, convolutions.fp32_precision = _passes[0]
                torch.set_num_threads(threads)
            _passes.pop()


@contextmanager
def in_a_thread() -> Iterator[None]:
    """Let torch compute in this thread as in the pass: it keeps these settings for each thread."""
    torch.set_num_threads(1)  # of MKL's threads, too; a second one would only wait for the first
    with torch.inference_mode():
        yield


@dataclass(frozen=True, slots=True)
class Factor:
    """What x is multiplied with: `x @ W.T`, or `x @ W` where W holds one column for each output.

    Attributes:
        name: The role of the matrix, or of the stack of matrices.
        item: Its number in a stack.
        transposed: Whether it holds one column for each output.
        parts: Where one matrix is a stack of matrices one below the other, how many; 0 for what its shape says.
    """

    name: str
    item: int | None = None
    transposed: bool = False
    parts: int = 0


@dataclass(frozen=True, slots=True)
class Product:
    """A product in parts, which threads compute in any order, and the result once all are done."""

    parts: Sequence[Callable[[], None]]
    result: torch.Tensor


def compute(products: Sequence[Product], threads: int, pool: ThreadPoolExecutor | None = None) -> None:
    """Compute all parts of several products; `pool` as for `each`."""
    parts = [part for product in products for part in product.parts]
    each(parts, lambda part: part(), min(threads, len(parts)) or 1, pool)


def prepare(graph: ModelGraph, products: bool = True) -> None:
    """Begin to load, in the background, what passes over a model of this size need; what multiplies, if `products`."""
    import_ahead("torch", meanwhile=forget_code)  # 0.8 s of one core, in which the other one can work
    if products and is_large(graph) and chosen() == CPU:
        PRODUCTS.after(LARGE)


def _step(rows: int, columns: int) -> int:
    """Return how many rows of a matrix are decoded at once: CHUNK bytes at most, as equal parts for 2 or 4 threads.

    A matrix of less than a quarter of that is one part.
    """
    size = rows * columns * 4
    if size < CHUNK // PARTS:
        return max(1, rows)
    count = -(-size // CHUNK)
    step = -(-rows // (count + -count % PARTS))
    return min(max(1, CHUNK // (columns * 4)), step + -step % ROWS)


def is_large(graph: ModelGraph) -> bool:
    """Return whether a model has so many weights that what multiplies fast is worth its start."""
    return sum(math.prod(node.shape) for node in graph.nodes) >= LARGE


class Weights:
    """Access to tensors by role name ('blk.0.attn_q.weight').

    All results are float32 unless stated otherwise, and the same for any number of threads (default: one per core).
    They are on the device that was chosen where the weights were opened (`device.computing_on`).

    Attributes:
        graph: The model.
        threads: Number of threads.
        device: Where passes over it are computed.
        wide: Whether they are computed in float64. Of the weights, no more is held in it than the chunks at work.
    """

    def __init__(
        self, graph: ModelGraph, threads: int | None = None, device: str | None = None, wide: bool = False
    ) -> None:
        self.graph, self.threads, self.device, self.wide = graph, workers(threads), device or chosen(), wide

    @cached_property
    def _products(self) -> Any:
        """The kernel that multiplies; None on a GPU, and for small models, for whose last digits torch answers."""
        return PRODUCTS.if_possible() if self.device == CPU and not self.wide and is_large(self.graph) else None

    def by_kernel(self, factor: Factor) -> bool:
        """Return whether the kernel multiplies with a matrix: then a sum does not depend on what is computed beside it.

        torch's sums depend on how many rows x has.
        """
        return bool(self._products) and all(ref.columns % ALIGNED == 0 for ref in self.refs(factor.name))

    def has(self, name: str) -> bool:
        """Return whether the model has a tensor of this role."""
        return name in self.graph.by_name

    def refs(self, name: str) -> tuple[TensorRef, ...]:
        """Return the source tensors of a role. Raises MissingError."""
        node = self.graph.by_name.get(name)
        if node is None:
            raise MissingError(f"the forward pass needs {name!r}", path=self.graph.checkpoint.path)
        return node.inputs

    def vector(self, name: str) -> torch.Tensor:
        """Return all values of a small tensor in their stored order, `(n,)`."""
        return torch.cat([self._decode(ref, 0, ref.rows).reshape(-1) for ref in self.refs(name)])

    def rows(self, name: str, indices: Sequence[int]) -> torch.Tensor:
        """Return chosen rows of a matrix, `(len(indices), columns)`: the embedding of tokens.

        Where several source matrices make up a role, their rows follow each other.
        """
        refs = self.refs(name)
        ends = [*accumulate(ref.rows for ref in refs)]
        found = list[torch.Tensor]()
        for index in indices:
            part = min(bisect_right(ends, index), len(refs) - 1)
            row = index - (ends[part] - refs[part].rows)
            found.append(self._decode(refs[part], row, row + 1))
        return torch.cat(found)

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """Return `x @ W.T` `(tokens, rows)` for x `(tokens, columns)`, in the dtype of x.

        W is streamed in chunks of rows. Where several source matrices make up a role, their outputs are concatenated.
        """
        return self.multiply(Factor(name), x)

    def is_linear(self, name: str) -> bool:
        """Return whether a program that quantizes made a linear layer of a Conv1D, with a row for each output."""
        return any(ref.derived is not None and ref.derived.linear for ref in self.refs(name))

    def rotated_linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """Return `x @ W` `(tokens, columns)` for x `(tokens, rows)`; W is streamed in chunks of rows."""
        return self.multiply(Factor(name, transposed=True), x)

    def item_linear(self, name: str, item: int, x: torch.Tensor, parts: int = 0) -> torch.Tensor:
        """Return `x @ W[item].T` for a stack of matrices.

        The stack is one tensor for each matrix (Hugging Face), one tensor of three axes (GGUF), or one matrix, of whose
        rows each of `parts` matrices has as many.
        """
        return self.multiply(Factor(name, item, parts=parts), x)

    def rotated_item_linear(self, name: str, item: int, x: torch.Tensor) -> torch.Tensor:
        """Return `x @ W[item]` for a stack of matrices that hold one column for each output."""
        return self.multiply(Factor(name, item, transposed=True), x)

    def multiply(self, factor: Factor, x: torch.Tensor) -> torch.Tensor:
        """Return the product of x with a matrix, in the dtype of x."""
        product = self.product(factor, x)
        compute([product], self.threads)
        return product.result

    def product(self, factor: Factor, x: torch.Tensor) -> Product:
        """Return the product of x with a matrix, before any part of it is computed."""
        if factor.item is None:
            ranges = [(ref, 0, ref.rows) for ref in self.refs(factor.name)]
        else:
            ranges = [self._item(factor.name, factor.item, factor.parts)]
        return self._rotated(*ranges[0], x) if factor.transposed else self._linear(ranges, x)

    def holder(self, factor: Factor) -> Weights:
        """Return the weights that hold a matrix: these, or others with the same values."""
        return self

    def row_lengths(self, name: str) -> torch.Tensor:
        """Return the Euclidean length of every row of a matrix, `(rows,)`; it is streamed in chunks of rows."""
        ref = self.refs(name)[0]
        step = max(1, CHUNK // (ref.columns * 4))
        chunks = (self._decode(ref, start, min(ref.rows, start + step)) for start in range(0, ref.rows, step))
        return torch.cat([chunk.norm(dim=-1) for chunk in chunks])

    def item(self, name: str, item: int) -> torch.Tensor:
        """Return one whole matrix of a stack; for small ones."""
        return self._decode(*self._item(name, item))

    def _item(self, name: str, item: int, parts: int = 0) -> tuple[TensorRef, int, int]:
        refs = self.refs(name)
        if len(refs) > 1:
            return refs[item], 0, refs[item].rows
        # a source may have them concatenated in one matrix
        rows = refs[0].rows // (parts or self.graph.by_name[name].shape[0])
        return refs[0], item * rows, (item + 1) * rows

    def _rotated(self, ref: TensorRef, first: int, last: int, x: torch.Tensor) -> Product:
        out = torch.zeros((len(x), ref.columns), dtype=x.dtype, device=x.device)
        step = max(1, CHUNK // (ref.columns * 4))

        def add() -> None:
            with in_a_thread():
                for start in range(first, last, step):
                    stop = min(last, start + step)
                    out.addmm_(x[:, start - first : stop - first], self._decode(ref, start, stop).to(x.dtype))

        return Product([add], out)

    def _linear(self, ranges: Sequence[tuple[TensorRef, int, int]], x: torch.Tensor) -> Product:
        out = torch.empty((len(x), sum(last - first for _, first, last in ranges)), dtype=x.dtype, device=x.device)
        x, parts, at = x.contiguous(), [], 0
        for ref, first, last in ranges:
            step = _step(last - first, ref.columns)
            for start in range(first, last, step):
                stop = min(last, start + step)
                parts.append(partial(self._multiply, ref, start, stop, x, out, at))
                at += stop - start
        return Product(parts, out)

    def _multiply(self, ref: TensorRef, start: int, stop: int, x: torch.Tensor, whole: torch.Tensor, at: int) -> None:
        """Put the products of x with rows of a matrix into the columns of `whole` from `at` on."""
        with in_a_thread():
            out = whole[:, at : at + stop - start]
            if self.device != CPU:
                torch.matmul(x, self._decode(ref, start, stop).to(x.dtype).T, out=out)
                return
            rows = np.ascontiguousarray(self.values(ref, start, stop))
            self._multiply_rows(rows, x, whole, at)
            if not math.isfinite(out.sum()):  # a product with every value of the rows is in it
                self._check(ref, start, rows)

    def _multiply_rows(self, rows: Floats, x: torch.Tensor, whole: torch.Tensor, at: int) -> None:
        """Put the products of x with rows, float32 `(n, columns)`, into n columns of `whole`, on the processor."""
        if self._products and x.dtype == torch.float32 and rows.shape[1] % ALIGNED == 0:
            self._products(x.numpy(), rows, whole.numpy(), at)
        else:
            torch.matmul(x, torch.from_numpy(rows).to(x.dtype).T, out=whole[:, at : at + len(rows)])

    def values(self, ref: TensorRef, start: int, stop: int) -> Floats:
        """Return rows `start:stop` of a tensor, float32 `(stop - start, columns)`."""
        return values_of(self.graph.checkpoint, ref, start, stop)

    def _decode(self, ref: TensorRef, start: int, stop: int) -> torch.Tensor:
        rows = self.values(ref, start, stop)
        self._check(ref, start, rows)
        found = moved(torch.from_numpy(np.ascontiguousarray(rows)), self.device)
        return found.double() if self.wide else found

    def _check(self, ref: TensorRef, start: int, rows: Floats) -> None:
        """Raise BadValueError for rows, from `start` on, that hold a value that is not finite."""
        if not np.isfinite(rows).all():
            bad = start + int(np.flatnonzero(~np.isfinite(rows).all(axis=1))[0])
            raise BadValueError(
                f"tensor {ref.name!r} holds a value that is not a number",
                path=self.graph.checkpoint.path,
                offset=ref.spans[0].offset,
                found=f"row {bad}",
            )
