"""Weights of a ModelGraph for the forward pass: decoded from the file in chunks of rows, never held whole.

Tensors are read as the source stores them, without any layout: the recipe's conventions say how to interpret them.
Therefore comparing the result with that of the converted file proves the layouts.

Chunks of a matrix are decoded and multiplied by threads of ours, while torch computes with one thread in each
(`one_thread`). Most of the work is reading and decoding, which torch does not parallelize, and its own threads spin
while they wait for each other (measured on two busy cores: 16 to 32 s of CPU instead of 1.9 s).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ggferry.converters.forward.device import CPU, chosen, moved
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


class Weights:
    """Access to tensors by role name ('blk.0.attn_q.weight').

    All results are float32 unless stated otherwise, and the same for any number of threads (default: one per core).
    They are on the device that was chosen where the weights were opened (`device.computing_on`).
    """

    def __init__(self, graph: ModelGraph, threads: int | None = None, device: str | None = None) -> None:
        self.graph, self.threads, self.device = graph, workers(threads), device or chosen()

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
        """Return chosen rows of a matrix, `(len(indices), columns)`: the embedding of tokens."""
        ref = self.refs(name)[0]
        return torch.cat([self._decode(ref, index, index + 1) for index in indices])

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """Return `x @ W.T` `(tokens, rows)` for x `(tokens, columns)`, in the dtype of x.

        W is streamed in chunks of rows. Where several source matrices make up a role, their outputs are concatenated.
        """
        return torch.cat([self._linear(ref, 0, ref.rows, x) for ref in self.refs(name)], -1)

    def row_lengths(self, name: str) -> torch.Tensor:
        """Return the Euclidean length of every row of a matrix, `(rows,)`; it is streamed in chunks of rows."""
        ref = self.refs(name)[0]
        step = max(1, CHUNK // (ref.columns * 4))
        chunks = (self._decode(ref, start, min(ref.rows, start + step)) for start in range(0, ref.rows, step))
        return torch.cat([chunk.norm(dim=-1) for chunk in chunks])

    def turned_linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """Return `x @ W` `(tokens, columns)` for x `(tokens, rows)`; W is streamed in chunks of rows."""
        ref = self.refs(name)[0]
        return self._turned(ref, 0, ref.rows, x)

    def item_linear(self, name: str, item: int, x: torch.Tensor) -> torch.Tensor:
        """Return `x @ W[item].T` for a stack of matrices.

        The stack is one tensor for each matrix (Hugging Face), or one tensor of three axes (GGUF).
        """
        return self._linear(*self._item(name, item), x)

    def turned_item_linear(self, name: str, item: int, x: torch.Tensor) -> torch.Tensor:
        """Return `x @ W[item]` for a stack of matrices that hold one column for each output."""
        ref, first, last = self._item(name, item)
        return self._turned(ref, first, last, x)

    def item(self, name: str, item: int) -> torch.Tensor:
        """Return one whole matrix of a stack; for small ones."""
        return self._decode(*self._item(name, item))

    def _item(self, name: str, item: int) -> tuple[TensorRef, int, int]:
        refs = self.refs(name)
        if len(refs) > 1:
            return refs[item], 0, refs[item].rows
        rows = refs[0].rows // self.graph.by_name[name].shape[0]  # a source may have them concatenated in one matrix
        return refs[0], item * rows, (item + 1) * rows

    def _turned(self, ref: TensorRef, first: int, last: int, x: torch.Tensor) -> torch.Tensor:
        out = torch.zeros((len(x), ref.columns), dtype=x.dtype, device=x.device)
        step = max(1, CHUNK // (ref.columns * 4))
        for start in range(first, last, step):
            stop = min(last, start + step)
            out.addmm_(x[:, start - first : stop - first], self._decode(ref, start, stop).to(x.dtype))
        return out

    def _linear(self, ref: TensorRef, first: int, last: int, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty((len(x), last - first), dtype=x.dtype, device=x.device)
        step = max(1, CHUNK // (ref.columns * 4))

        def multiply(start: int) -> None:
            stop = min(last, start + step)
            with torch.inference_mode():  # each thread has a mode of its own
                here = out[:, start - first : stop - first]
                if self.device != CPU:
                    torch.matmul(x, self._decode(ref, start, stop).to(x.dtype).T, out=here)
                    return
                rows = self.values(ref, start, stop)
                torch.matmul(x, torch.from_numpy(np.ascontiguousarray(rows)).to(x.dtype).T, out=here)
                if not bool(here.isfinite().all()):  # it holds a product with every value of the rows, and is smaller
                    self._check(ref, start, rows)

        starts = range(first, last, step)
        each(starts, multiply, min(self.threads, len(starts)) or 1)
        return out

    def values(self, ref: TensorRef, start: int, stop: int) -> Floats:
        """Return rows `start:stop` of a tensor, float32 `(stop - start, columns)`."""
        return values_of(self.graph.checkpoint, ref, start, stop)

    def _decode(self, ref: TensorRef, start: int, stop: int) -> torch.Tensor:
        rows = self.values(ref, start, stop)
        self._check(ref, start, rows)
        return moved(torch.from_numpy(np.ascontiguousarray(rows)), self.device)

    def _check(self, ref: TensorRef, start: int, rows: Floats) -> None:
        """Raise BadValueError for rows, from `start` on, that hold a value that is not finite."""
        if not np.isfinite(rows).all():
            bad = start + int(np.flatnonzero(~np.isfinite(rows).all(axis=1))[0])
            raise BadValueError(
                f"tensor {ref.name!r} holds a value that is not a number", path=self.graph.checkpoint.path,
                offset=ref.spans[0].offset, found=f"row {bad}",
            )  # fmt: skip
