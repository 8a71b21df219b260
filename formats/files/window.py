"""A range of a file's bytes, read as a file of its own: an archive inside a file, an entry of an archive."""

from __future__ import annotations

from ggferry.formats.errors import TruncatedError
from ggferry.formats.files.sources import Source


class Window:
    """`size` bytes of `source` from `offset`, as a file that has the same path."""

    def __init__(self, source: Source, offset: int, size: int) -> None:
        self.path, self.size, self.offset = source.path, size, offset
        self._source = source

    def read(self, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes from `offset`. Raises TruncatedError when they are not there."""
        self._check(offset, size)
        return self._source.read(self.offset + offset, size)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` from `offset`. Raises as `read`."""
        self._check(offset, len(buffer))
        self._source.read_into(self.offset + offset, buffer)

    def _check(self, offset: int, size: int) -> None:
        if offset < 0 or size < 0 or offset + size > self.size:
            words = f"{size} bytes wanted, what the archive has of it ends at {self.size:#x}"
            raise TruncatedError(words, path=self.path, offset=self.offset + offset)

    def close(self) -> None:
        """Close the file."""
        self._source.close()
