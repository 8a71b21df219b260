"""A value that stands in a node of the store, as a file."""

from __future__ import annotations

from ggferry.formats.errors import TruncatedError


class Inline:
    """A few bytes as a `Source`."""

    def __init__(self, path: str, data: bytes) -> None:
        self.path, self.size, self._data = path, len(data), data

    def read(self, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes from `offset`. Raises TruncatedError when they are not there."""
        if offset < 0 or size < 0 or offset + size > self.size:
            raise TruncatedError("a value of the store", path=self.path, offset=offset, found=self.size)
        return self._data[offset : offset + size]

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` from `offset`. Raises as `read`."""
        buffer[:] = self.read(offset, len(buffer))

    def close(self) -> None:
        """Do nothing: the bytes are in memory."""
