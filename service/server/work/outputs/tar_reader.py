"""A folder as one tar file, made while it is read: its length and every offset are known before, and nothing is kept.

The headers are those of `tarfile` in the form of POSIX.1-2001 (pax): names and sizes, no owner and no time, so that the
same files give the same bytes, and a download can be taken up at any of them.
"""

from __future__ import annotations

import tarfile
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import accumulate

from ggferry.formats.errors import ChangedError
from ggferry.service.server.work.outputs.readers import BLOCK, STORED, OutputReader
from ggferry.service.storage.safe_names import safe_name
from ggferry.service.storage.stores import is_remote
from ggferry.support.records import dataclass

MODE = 0o644


@dataclass(frozen=True, slots=True)
class Member:
    """A file of the folder.

    Attributes:
        name: Its name there.
        bytes: Its size.
        blake3: Its digest in hex.
        path: Path or URL.
        stamp: Of the file that was found to have this digest; "" where its place has none.
    """

    name: str
    bytes: int
    blake3: str
    path: str
    stamp: str


class TarReader:
    """The files of one folder as a tar file, read at offsets; at most one of them is open at a time."""

    def __init__(self, folder: str, members: Sequence[Member], open_file: Callable[[str], OutputReader]) -> None:
        """`folder`: the name of the folder in the tar file; `open_file` opens the path or URL of a member."""
        self.path, self._open = members[0].path, open_file
        self.best = STORED if is_remote(self.path) else BLOCK
        self._parts: list[bytes | Member] = []
        for each in members:
            self._parts += [_header(folder, each), each, bytes(-each.bytes % tarfile.BLOCKSIZE)]
        lengths = [part.bytes if isinstance(part, Member) else len(part) for part in self._parts]
        end = 2 * tarfile.BLOCKSIZE
        self._parts.append(bytes(end + -(sum(lengths) + end) % tarfile.RECORDSIZE))
        self._ends = [*accumulate((*lengths, len(self._parts[-1])))]  # type: ignore[arg-type]
        self.size = self._ends[-1]
        self.stamp = ""
        self._member: Member | None = None
        self._reader: OutputReader | None = None

    def read(self, offset: int, size: int) -> bytes:
        """Return `size` bytes from `offset`, fewer only where the tar file ends. Raises ChangedError, OSError."""
        pieces, end = [], min(self.size, offset + size)
        while offset < end:
            number = bisect_right(self._ends, offset)
            part, first = self._parts[number], self._ends[number - 1] if number else 0
            length = min(end, self._ends[number]) - offset
            piece = self._data(part, offset - first, length)
            pieces.append(piece)
            offset += len(piece)
        return b"".join(pieces)

    def _data(self, part: bytes | Member, offset: int, length: int) -> bytes:
        if not isinstance(part, Member):
            return part[offset : offset + length]
        if self._reader is None or self._member is not part:
            self.close()
            self._reader, self._member = self._open(part.path), part
            if self._reader.size != part.bytes or self._reader.stamp != part.stamp:
                raise ChangedError("not the file that was proved", path=part.path)
        found = self._reader.read(offset, length)
        if not found:
            raise ChangedError("the file shrank while it was sent", path=part.path)
        return found

    def close(self) -> None:
        """Close the member that is open; a second time is harmless."""
        reader, self._reader, self._member = self._reader, None, None
        if reader is not None:
            reader.close()

    def __del__(self) -> None:
        with suppress(AttributeError):  # of one that was not made
            self.close()


def _header(folder: str, member: Member) -> bytes:
    """Return the header of a file; its name in there is its last one, below the folder's."""
    info = tarfile.TarInfo(f"{safe_name(folder)}/{safe_name(member.name.replace('/', '_'))}")
    info.size, info.mode = member.bytes, MODE
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
