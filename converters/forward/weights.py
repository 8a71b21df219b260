"""Weights of a ModelGraph for the forward pass: decoded row by row from the file, never held whole.

The source's tensors are taken as they lie in the source, without any layout: the recipe's conventions say how to read
them. That is what makes the comparison with the converted file a proof of the layouts.

Chunks of a matrix are decoded and multiplied by threads of ours while torch has one each (`one_thread`): most of the
work is reading and decoding, which torch does not share out, and its own threads spin while they wait for each other
(measured on two busy cores: 16 to 32 s of CPU for what takes 1.9 s so).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.model_graph.rows import CHUNK, values_of
from ggferry.formats.checkpoint import TensorRef
from ggferry.formats.errors import BadValueError, MissingError
from ggferry.support.lazy_import import lazy
from ggferry.support.threads import each, workers

if TYPE_CHECKING:
    import numpy as np
    import torch

    from ggferry.quant.codec import Floats
else:
    np = lazy("numpy")
    torch = lazy("torch")

_passes: list[int] = []
"""torch's number of threads before each of the passes that run at once."""
_lock = threading.Lock()


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch computes with one thread a caller, until the last of the passes that run at once is over."""
    with _lock:
        _passes.append(torch.get_num_threads())
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _lock:
            if len(_passes) == 1:
                torch.set_num_threads(_passes[0])
            _passes.pop()


class Weights:
    """Access by role name ('blk.0.attn_q.weight'). All results are float32, the same for any number of threads
    (default: one a core)."""

    def __init__(self, graph: ModelGraph, threads: int | None = None) -> None:
        self.graph, self.threads = graph, workers(threads)

    def has(self, name: str) -> bool:
        return name in self.graph.by_name

    def refs(self, name: str) -> tuple[TensorRef, ...]:
        """The source tensors of a role. Raises MissingError."""
        node = self.graph.by_name.get(name)
        if node is None:
            raise MissingError(f"the forward pass needs {name!r}", path=self.graph.checkpoint.path)
        return node.inputs

    def vector(self, name: str) -> torch.Tensor:
        """All values of a small tensor in the order they lie in, `(n,)`."""
        return torch.cat([self._decode(ref, 0, ref.rows).reshape(-1) for ref in self.refs(name)])

    def rows(self, name: str, indices: Sequence[int]) -> torch.Tensor:
        """Chosen rows of a matrix, `(len(indices), columns)`: the embedding of tokens."""
        ref = self.refs(name)[0]
        return torch.cat([self._decode(ref, index, index + 1) for index in indices])

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """`x @ W.T` for x `(tokens, columns)`: `(tokens, rows)`, in the type of x, W streamed in row chunks. Where a
        role is made of several source matrices, they are one below the other."""
        return torch.cat([self._linear(ref, 0, ref.rows, x) for ref in self.refs(name)], -1)

    def turned_linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """`x @ W` for x `(tokens, rows)`: `(tokens, columns)`, W streamed in row chunks."""
        ref = self.refs(name)[0]
        return self._turned(ref, 0, ref.rows, x)

    def item_linear(self, name: str, item: int, x: torch.Tensor) -> torch.Tensor:
        """`x @ W[item].T` of a stack of matrices: one tensor each (Hugging Face), or one of three axes (GGUF)."""
        return self._linear(*self._item(name, item), x)

    def turned_item_linear(self, name: str, item: int, x: torch.Tensor) -> torch.Tensor:
        """`x @ W[item]` of a stack of matrices that hold a column an output."""
        ref, first, last = self._item(name, item)
        return self._turned(ref, first, last, x)

    def item(self, name: str, item: int) -> torch.Tensor:
        """A matrix of a stack, whole: for small ones."""
        return self._decode(*self._item(name, item))

    def _item(self, name: str, item: int) -> tuple[TensorRef, int, int]:
        refs = self.refs(name)
        if len(refs) > 1:
            return refs[item], 0, refs[item].rows
        rows = refs[0].rows // self.graph.by_name[name].shape[0]  # a source may have them one below the other
        return refs[0], item * rows, (item + 1) * rows

    def _turned(self, ref: TensorRef, first: int, last: int, x: torch.Tensor) -> torch.Tensor:
        out = torch.zeros((len(x), ref.columns))
        step = max(1, CHUNK // (ref.columns * 4))
        for start in range(first, last, step):
            stop = min(last, start + step)
            out.addmm_(x[:, start - first : stop - first], self._decode(ref, start, stop))
        return out

    def _linear(self, ref: TensorRef, first: int, last: int, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty((len(x), last - first), dtype=x.dtype)
        step = max(1, CHUNK // (ref.columns * 4))

        def multiply(start: int) -> None:
            stop = min(last, start + step)
            with torch.inference_mode():  # each thread has a mode of its own
                matrix = self._decode(ref, start, stop).to(x.dtype)
                torch.matmul(x, matrix.T, out=out[:, start - first : stop - first])

        starts = range(first, last, step)
        each(starts, multiply, min(self.threads, len(starts)) or 1)
        return out

    def values(self, ref: TensorRef, start: int, stop: int) -> Floats:
        """Rows `start:stop` of a tensor, float32 `(stop - start, columns)`."""
        return values_of(self.graph.checkpoint, ref, start, stop)

    def _decode(self, ref: TensorRef, start: int, stop: int) -> torch.Tensor:
        rows = self.values(ref, start, stop)
        if not np.isfinite(rows).all():
            bad = start + int(np.flatnonzero(~np.isfinite(rows).all(axis=1))[0])
            raise BadValueError(
                f"tensor {ref.name!r} holds a value that is not a number", path=self.graph.checkpoint.path,
                offset=ref.spans[0].offset, found=f"row {bad}",
            )  # fmt: skip
        return torch.from_numpy(np.ascontiguousarray(rows))
