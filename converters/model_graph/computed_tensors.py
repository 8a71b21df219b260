"""A tensor that no file holds, computed of hyper-parameters, as a source of rows."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from ggferry.formats.checkpoint import Span, TensorRef
from ggferry.formats.errors import TruncatedError
from ggferry.quant.codec import block_type


class Computed:
    """The bytes of computed tensors: a `formats.files.sources.Source` that no file holds."""

    path = "(computed from the configuration)"

    def __init__(self) -> None:
        self._data = bytearray()

    @property
    def size(self) -> int:
        return len(self._data)

    def add(self, name: str, values: Sequence[float], shape: tuple[int, ...], file: int) -> TensorRef:
        """A float32 tensor; `file`: the number this source will have among the checkpoint's files."""
        offset = self.size
        self._data += struct.pack(f"<{len(values)}f", *values)
        return TensorRef(name, block_type("F32"), shape, (Span(file, offset, shape),))

    def read(self, offset: int, size: int) -> bytes:
        if offset < 0 or size < 0 or offset + size > self.size:
            raise TruncatedError(f"{size} bytes wanted of {self.size}", path=self.path, offset=offset)
        return bytes(self._data[offset : offset + size])

    def read_into(self, offset: int, buffer: memoryview) -> None:
        buffer[:] = self.read(offset, len(buffer))

    def close(self) -> None:
        """Nothing is open."""
