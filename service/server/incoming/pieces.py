"""A piece of a file that is being received, and the running SHA-256 by which a file is known by its content.

Names and sizes do not tell two fine-tunes of one model apart. So whoever goes on with a file states the SHA-256 of all
of it up to the end of the piece; a piece that does not follow what was received is dropped.
"""

from __future__ import annotations

import hashlib
import threading
from base64 import b64decode
from binascii import Error as Base64Error
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol

from ggferry.formats.errors import ChecksumError, RefusedError, UsageError

BLOCK = 1 << 20
KEPT = 1000  # files whose digest so far stays in memory; that of any other is computed again

Acknowledge = Callable[[int, int, str], bool]
"""Records where a piece begins and where the file ends now, with the SHA-256 of that; True: all files are there."""


class OffsetError(RefusedError):
    """Bytes that do not begin where the last ones ended."""

    def __init__(self, offset: int, found: int) -> None:
        words = "the piece does not begin where the last one ended"
        super().__init__(words, found=found, expected=offset, hint="send what follows Upload-Offset")
        self.at = offset


class Digests:
    """The SHA-256 of files up to where they were received."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, int], tuple[int, Any]] = OrderedDict()
        self._lock = threading.Lock()

    def at(self, key: tuple[str, int], read: Callable[[int, int], bytes], offset: int) -> Any:
        """Return the digest of a file's first `offset` bytes, to be gone on with.

        If need be it is read again: `read` returns bytes at an offset, at most so many, none where there are none.
        """
        with self._lock:
            end, known = self._kept.get(key, (0, None))
        if known is not None and end == offset:
            return known.copy()
        found, at = hashlib.sha256(), 0
        while at < offset and (block := read(offset - at, at)):
            found.update(block)
            at += len(block)
        return found

    def keep(self, key: tuple[str, int], offset: int, digest: Any) -> None:
        """Keep the digest of a file's first `offset` bytes."""
        with self._lock:
            self._kept[key] = (offset, digest)
            self._kept.move_to_end(key)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)


class Sink(Protocol):
    """Where the bytes of a piece go; one request writes it."""

    def write(self, data: memoryview, at: int) -> int:
        """Write bytes at an offset of the file; return how many."""
        ...

    def keep(self) -> None:
        """Make what was written durable."""
        ...

    def drop(self) -> None:
        """Take back what was written."""
        ...

    def close(self) -> None:
        """Let the next request write the file."""
        ...


class Piece:
    """A file that is being written from `start` to `end` by one request, to a sink.

    `digest` is that of the bytes before; `whole` and `own`, in hex, are what the sender says the bytes up to the end of
    the piece have, and the piece alone.
    """

    def __init__(
        self, sink: Sink, start: int, end: int, digest: Any, done: Acknowledge, keep: Callable[[int, Any], None]
    ) -> None:
        self._sink, self._start, self._done, self._keep = sink, start, done, keep
        self._digest, self._piece = digest, hashlib.sha256()
        self.at, self.end = start, end
        self.whole: str | None = None
        self.own: str | None = None

    def write(self, data: bytes | bytearray) -> None:
        """Append bytes. Raises UsageError beyond the end, and GgferryError of a full disk."""
        if self.at + len(data) > self.end:
            raise UsageError("more bytes than Content-Range says", found=self.at + len(data), expected=self.end)
        view = memoryview(data)
        while view:
            count = self._sink.write(view, self.at)
            self._digest.update(view[:count])
            if self.own is not None:
                self._piece.update(view[:count])
            self.at += count
            view = view[count:]

    def close(self) -> bool:
        """Make what came durable, record it, and return whether the upload is complete.

        Raises ChecksumError for a whole piece that is not what its sender says, and OffsetError where another server
        took other bytes meanwhile; none of it is kept.
        """
        try:
            if self.at == self.end:
                self._check()
            self._sink.keep()
            found = self._done(self._start, self.at, self._digest.hexdigest())
            self._keep(self.at, self._digest)
            return found
        except RefusedError:
            self._sink.drop()
            raise
        finally:
            self._sink.close()

    def _check(self) -> None:
        for declared, found, words in (
            (self.own, self._piece, "the piece did not arrive as it was sent"),
            (self.whole, self._digest, "the piece does not go on with the bytes that were received before it"),
        ):
            if declared is not None and found.hexdigest() != declared:
                self._sink.drop()
                hint = "compare the sha256 of the upload's file with yours; begin a new upload where they differ"
                raise ChecksumError(words, found=found.hexdigest(), expected=declared, hint=hint)


def sha256_of(header: str | None, name: str) -> str | None:
    """Return the SHA-256, in hex, that a field states as RFC 9530 does (`sha-256=:BASE64:`). Raises UsageError."""
    if header is None:
        return None
    for each in header.split(","):
        kind, _, value = each.strip().partition("=")
        if kind.lower() == "sha-256" and len(value) > 2 and value[0] == value[-1] == ":":
            try:
                found = b64decode(value[1:-1], validate=True)
            except (Base64Error, ValueError):
                continue
            if len(found) == 32:
                return found.hex()
    raise UsageError(name, found=header[:100], expected="sha-256=:BASE64:")
