"""A remote file as a `Source`: read by ranges, pinned to what was listed, cached in bounded space.

Every byte is fetched at most once while the cache has room: a conversion reads its source several times (digest, write,
proof), and a store charges for each time. The cache is a sparse file; what does not fit is fetched again, and must be
what it was.
"""

from __future__ import annotations

import errno
import os
import threading

from ggferry.formats.errors import ChangedError, TransportError, TruncatedError
from ggferry.service.storage.broker import revive
from ggferry.service.storage.checksums import Running
from ggferry.service.storage.stores import Found, check_unchanged, place

HEADER_BLOCK, DATA_BLOCK = 256 << 10, 8 << 20
MOST_AT_ONCE = 32 << 20  # bytes of one request
UNCHECKED = "not checked: the store states no checksum that is computed here"


class RangedFile:
    """`found.path`, read by ranges of whole blocks of `block` bytes; up to `room` bytes are kept in a file in `folder`.

    `transport`: whether the method `transport` will be called; then the store's checksum is computed from the bytes as
    they come. Raises ChangedError when the file is not, or no longer, the one that was listed, and UnsupportedError for
    a store without ranges.
    """

    def __init__(
        self, found: Found, folder: str, *, block: int = DATA_BLOCK, room: int = 1 << 40, transport: bool = False
    ) -> None:
        self.path, self.size, self.fetched = found.path, found.bytes, 0
        self._found, self._block, self._room = found, block, room
        self._lock, self._summing = threading.Lock(), threading.Lock()
        self._held: set[int] = set()
        self._digests: dict[int, bytes] = {}
        if found.bytes < 0:
            raise revive(dict(found.trouble or {}), found.path)
        check_unchanged(found)
        stated = place(self.path).stated(found) if transport else None
        self._running, self._summed = Running(stated) if stated else None, 0  # blocks
        self._fd = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)

    def read(self, offset: int, size: int) -> bytes:
        data = bytearray(size) if size >= 0 else bytearray()
        self.read_into(offset, memoryview(data))
        return bytes(data)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        size = len(buffer)
        if offset < 0 or offset + size > self.size:
            raise TruncatedError(f"{size} bytes wanted, the file ends at {self.size:#x}", path=self.path, offset=offset)
        while buffer:
            count = self._some(offset, buffer)
            buffer, offset = buffer[count:], offset + count

    def check(self) -> None:
        """Raise ChangedError when the file has changed meanwhile.

        Where the place states no version, that takes reading it all once more.
        """
        check_unchanged(self._found)
        if not self._found.pinned:
            for first in sorted(self._digests):
                self._fetch(first, first + 1)

    def transport(self) -> str:
        """Return how it is known that what was read is what the store has.

        It names the checksum that agreed, or says that the store states none. Raises TransportError when they differ:
        something changed on the way.
        """
        if self._running is None:
            return UNCHECKED
        while self._summed * self._block < self.size:
            before = self._summed
            self._sum(before, b"")  # what is kept
            if self._summed == before:
                self.read(before * self._block, 1)
        if not self._running.agrees():
            raise TransportError(
                "what came does not have the checksum that the store states", path=self.path,
                found=str(self._running.stated),
            )  # fmt: skip
        return f"checked: {self._running.stated}"

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> RangedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _some(self, offset: int, buffer: memoryview) -> int:
        """Fill the front of `buffer` from one run of blocks that are all cached or all absent.

        Returns how much was filled.
        """
        first, last = offset // self._block, (offset + len(buffer) - 1) // self._block
        held = first in self._held
        stop = first
        while stop <= last and (stop in self._held) == held and (held or (stop - first) * self._block < MOST_AT_ONCE):
            stop += 1
        end = min(stop * self._block, offset + len(buffer))
        if held and self._cached(offset, buffer[: end - offset]):
            return end - offset
        data = self._fetch(first, stop)
        self._keep(first, data)
        self._sum(first, data)
        start = first * self._block
        buffer[: end - offset] = data[offset - start : end - start]
        return end - offset

    def _fetch(self, first: int, stop: int) -> bytes:
        """Return blocks `first` to `stop` from the store; those that came before must be what they were."""
        from blake3 import blake3

        start = first * self._block
        data = place(self.path).fetch(self._found, start, min(stop * self._block, self.size))
        view = memoryview(data)
        for block in range(first, stop):
            piece = view[(block - first) * self._block : (block - first + 1) * self._block]
            digest = blake3(piece).digest()
            if self._digests.setdefault(block, digest) != digest:
                offset = block * self._block
                if self._found.pinned:
                    raise TransportError("a range came twice and differed", path=self.path, offset=offset)
                raise ChangedError(
                    "changed while it was read", path=self.path, offset=offset, hint="plan again"
                )  # fmt: skip
        with self._lock:
            self.fetched += len(data)
        return data

    # --- what is kept ---

    def _keep(self, first: int, data: bytes) -> None:
        with self._lock:
            if (len(self._held) + 1) * self._block + len(data) > self._room + self._block:
                return
            try:
                done = 0
                while done < len(data):
                    count = os.pwrite(self._fd, data[done:] if done else data, first * self._block + done)
                    if not count:
                        raise OSError(errno.ENOSPC, "nothing was taken")
                    done += count
            except OSError:  # a full disk: what does not fit is fetched again
                self._room = 0
                return
            self._held.update(range(first, first + -(-len(data) // self._block)))

    def _cached(self, offset: int, buffer: memoryview) -> bool:
        """Fill `buffer` from the cache; False when the bytes are not there after all."""
        while buffer:
            try:
                count = os.preadv(self._fd, [buffer], offset)
            except OSError:
                return False
            if not count:
                return False
            buffer, offset = buffer[count:], offset + count
        return True

    def _sum(self, first: int, data: bytes) -> None:
        """Add what has come to the running checksum, as far as it is in order.

        What comes out of order is taken from the cache, or asked for again at the end.
        """
        if self._running is None:
            return
        count = -(-len(data) // self._block)
        with self._summing:
            while self._summed * self._block < self.size:
                at = (self._summed - first) * self._block
                if 0 <= self._summed - first < count:
                    piece = data[at : at + self._block]
                elif self._summed in self._held:
                    offset = self._summed * self._block
                    kept = bytearray(min(self._block, self.size - offset))
                    if not self._cached(offset, memoryview(kept)):
                        return
                    piece = bytes(kept)
                else:
                    return
                self._running.update(piece)
                self._summed += 1
