"""Tensors that lie in a file one after another, without names, types or offsets: the format says which comes next."""

from __future__ import annotations

from collections.abc import Iterable

from ggferry.formats.checkpoint import Span, TensorRef
from ggferry.formats.errors import TrailingBytesError, TruncatedError
from ggferry.formats.files.sources import Source
from ggferry.quant.codec import block_type
from ggferry.support.records import dataclass


@dataclass(frozen=True, slots=True)
class FlatTensor:
    """A tensor whose place follows from those before it.

    Attributes:
        name: Its name.
        shape: Elements along each axis, outermost first.
        type: Name of the block type of its bytes.
    """

    name: str
    shape: tuple[int, ...]
    type: str = "F32"

    @property
    def nbytes(self) -> int:
        """Bytes that it takes in the file."""
        return block_type(self.type).nbytes(self.shape)


def read_flat(source: Source, offset: int, tensors: Iterable[FlatTensor]) -> dict[str, TensorRef]:
    """Return the tensors that lie in `source` from `offset` to its last byte, by name.

    Raises:
        TruncatedError: The file ends within one of them, which is named.
        TrailingBytesError: Bytes follow the last one.
    """
    found: dict[str, TensorRef] = {}
    for tensor in tensors:
        end = offset + tensor.nbytes
        if end > source.size:
            raise TruncatedError(
                f"the file ends inside tensor {tensor.name!r}",
                path=source.path,
                offset=offset,
                found=f"{max(0, source.size - offset)} bytes",
                expected=f"{tensor.nbytes} bytes",
            )
        span = Span(0, offset, tensor.shape)
        found[tensor.name] = TensorRef(tensor.name, block_type(tensor.type), tensor.shape, (span,))
        offset = end
    if offset != source.size:
        raise TrailingBytesError(
            "bytes behind the last tensor", path=source.path, offset=offset, found=f"{source.size - offset} bytes"
        )
    return found
