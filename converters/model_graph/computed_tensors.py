"""A source of rows for tensors that no file holds, because they are computed from hyper-parameters."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from ggferry.formats.checkpoint import Span, TensorRef
from ggferry.formats.errors import TruncatedError
from ggferry.quant.codec import block_type


class Computed:
    """The bytes of computed tensors, as a `formats.files.sources.Source` without a file."""

    path = "(computed from the configuration)"

    def __init__(self) -> None:
        self._data = bytearray()

    @property
    def size(self) -> int:
        """Number of bytes."""
        return len(self._data)

    def add(self, name: str, values: Sequence[float], shape: tuple[int, ...], file: int) -> TensorRef:
        """Add a float32 tensor, and return a reference to it.

        Args:
            name: Its name.
            values: Its values, in row order.
            shape: Elements along each axis, outermost first.
            file: The number that this source will have among the checkpoint's files.
        """
        offset = self.size
        self._data += struct.pack(f"<{len(values)}f", *values)
        return TensorRef(name, block_type("F32"), shape, (Span(file, offset, shape),))

    def read(self, offset: int, size: int) -> bytes:
        """Return `size` bytes from `offset` on. Raises TruncatedError outside the data."""
        if offset < 0 or size < 0 or offset + size > self.size:
            raise TruncatedError(f"{size} bytes wanted of {self.size}", path=self.path, offset=offset)
        return bytes(self._data[offset : offset + size])

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` with the bytes from `offset` on. Raises TruncatedError outside the data."""
        buffer[:] = self.read(offset, len(buffer))

    def close(self) -> None:
        """Do nothing: no file is open."""
