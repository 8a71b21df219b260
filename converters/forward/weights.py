"""Weights of a ModelGraph for the forward pass: decoded row by row from the file, never held whole.

The source's tensors are taken as they lie in the source, without any layout: the recipe's conventions say how to read
them. That is what makes the comparison with the converted file a proof of the layouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ggferry.converters.graph import ModelGraph
from ggferry.converters.values import CHUNK, values_of
from ggferry.formats.checkpoint import TensorRef
from ggferry.formats.errors import BadValueError, MissingError
from ggferry.quant.registry import lazy

if TYPE_CHECKING:
    import numpy as np
    import torch
else:
    np = lazy("numpy")
    torch = lazy("torch")


class Weights:
    """Access by role name ('blk.0.attn_q.weight'). All results are float32."""

    def __init__(self, graph: ModelGraph) -> None:
        self.graph = graph

    def has(self, name: str) -> bool:
        return name in self.graph.by_name

    def ref(self, name: str) -> TensorRef:
        """The source tensor of a role. Raises MissingError."""
        node = self.graph.by_name.get(name)
        if node is None:
            raise MissingError(f"the forward pass needs {name!r}", path=self.graph.checkpoint.path)
        return node.inputs[0]

    def vector(self, name: str) -> torch.Tensor:
        """A 1-D tensor, `(n,)`."""
        ref = self.ref(name)
        return self._decode(ref, 0, ref.rows).reshape(-1)

    def rows(self, name: str, indices: Sequence[int]) -> torch.Tensor:
        """Chosen rows of a matrix, `(len(indices), columns)`: the embedding of tokens."""
        ref = self.ref(name)
        return torch.cat([self._decode(ref, index, index + 1) for index in indices])

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """`x @ W.T` for x `(tokens, columns)`: `(tokens, rows)`, W streamed in row chunks."""
        ref = self.ref(name)
        out = torch.empty((len(x), ref.rows))
        step = max(1, CHUNK // (ref.columns * 4))
        for start in range(0, ref.rows, step):
            stop = min(ref.rows, start + step)
            torch.matmul(x, self._decode(ref, start, stop).T, out=out[:, start:stop])
        return out

    def _decode(self, ref: TensorRef, start: int, stop: int) -> torch.Tensor:
        rows = values_of(self.graph.checkpoint, ref, start, stop)
        if not np.isfinite(rows).all():
            bad = start + int(np.flatnonzero(~np.isfinite(rows).all(axis=1))[0])
            raise BadValueError(
                f"tensor {ref.name!r} holds a value that is not a number", path=self.graph.checkpoint.path,
                offset=ref.spans[0].offset, found=f"row {bad}",
            )  # fmt: skip
        return torch.from_numpy(np.ascontiguousarray(rows))
