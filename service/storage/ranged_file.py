"""A remote file as a `Source`: read by ranges, pinned to what was listed, cached in bounded space.

Every byte is fetched at most once while the cache has room: a conversion reads its source several times (digest, write,
proof), and a store charges for each time. The cache is a sparse file; what does not fit is fetched again, and must be
what it was. With `kept` the file outlives the process, so that a run that broke off can be continued.
"""

from __future__ import annotations

import errno
import threading

from ggferry.formats.errors import ChangedError, TransportError, TruncatedError
from ggferry.service.storage.block_cache import Blocks, lasting
from ggferry.service.storage.broker import revive
from ggferry.service.storage.checksums import Running
from ggferry.service.storage.stores import Found, check_unchanged, place
from ggferry.support.platform import here

HEADER_BLOCK, DATA_BLOCK = 256 << 10, 8 << 20
MOST_AT_ONCE = 32 << 20  # bytes of one request
UNCHECKED = "not checked: the store states no checksum that is computed here"


class RangedFile:
    """`found.path`, read by ranges of whole blocks of `block` bytes; up to `room` bytes are kept in a file in `folder`.

    `transport`: whether the method `transport` will be called; then the store's checksum is computed from the bytes as
    they come. `kept`: a folder in which the blocks outlive the process; where they cannot, they do not. Raises
    ChangedError when the file is not, or no longer, the one that was listed, and UnsupportedError for a store without
    ranges.
    """

    def __init__(
        self,
        found: Found,
        folder: str,
        *,
        block: int = DATA_BLOCK,
        room: int = 1 << 40,
        transport: bool = False,
        kept: str | None = None,
    ) -> None:
        self.path, self.size, self.fetched = found.path, found.bytes, 0
        self._found, self.block, self.room = found, block, room
        self._lock, self._summing = threading.Lock(), threading.Lock()
        self._digests: dict[int, bytes] = {}
        if found.bytes < 0:
            raise revive(dict(found.trouble or {}), found.path)
        check_unchanged(found)
        declared = place(self.path).declared_checksum(found) if transport else None
        self._running, self._summed = Running(declared) if declared else None, 0  # blocks
        self._blocks = (lasting(kept, found, block) if kept else None) or Blocks(folder)
        self._held = set(self._blocks.digests)

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
        while self._summed * self.block < self.size:
            before = self._summed
            self._sum(before, b"")  # what is kept
            if self._summed == before:
                self.read(before * self.block, 1)
        if not self._running.agrees():
            raise TransportError(
                "download checksum mismatch",
                path=self.path,
                found=str(self._running.declared),
            )
        return f"checked: {self._running.declared}"

    @property
    def left_behind(self) -> int:
        """Return the bytes of it that stay on the disk if it is closed without being done."""
        return self._blocks.nbytes if self._blocks.lasting else 0

    def wanting(self) -> list[int]:
        """Return the numbers of the blocks that are not here, as many as there is room for."""
        count, fits = -(-self.size // self.block), self.room // self.block
        return [number for number in range(count) if number not in self._held][: max(0, fits - len(self._held))]

    def prefetch(self, number: int) -> int:
        """Fetch a block, unless it is here; return its size."""
        start = number * self.block
        size = min(self.block, self.size - start)
        self.read(start, size)
        return size

    def close(self, *, done: bool = False) -> None:
        """Close it; `done`: what is kept of it is not needed any more."""
        self._blocks.close(done=done)

    def __enter__(self) -> RangedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _some(self, offset: int, buffer: memoryview) -> int:
        """Fill the front of `buffer` from one run of blocks that are all cached or all absent.

        Returns how much was filled.
        """
        first, last = offset // self.block, (offset + len(buffer) - 1) // self.block
        held = first in self._held
        stop = first
        while stop <= last and (stop in self._held) == held and (held or (stop - first) * self.block < MOST_AT_ONCE):
            stop += 1
        end = min(stop * self.block, offset + len(buffer))
        if held and self._proved(first, stop) and self._cached(offset, buffer[: end - offset]):
            return end - offset
        data = self._fetch(first, stop)
        self._keep(first, data)
        self._sum(first, data)
        start = first * self.block
        buffer[: end - offset] = data[offset - start : end - start]
        return end - offset

    def _fetch(self, first: int, stop: int) -> bytes:
        """Return blocks `first` to `stop` from the store; those that came before must be what they were."""
        from blake3 import blake3

        start = first * self.block
        data = place(self.path).fetch(self._found, start, min(stop * self.block, self.size))
        view = memoryview(data)
        for block in range(first, stop):
            piece = view[(block - first) * self.block : (block - first + 1) * self.block]
            digest = blake3(piece).digest()
            if self._digests.setdefault(block, digest) != digest:
                offset = block * self.block
                if self._found.pinned:
                    raise TransportError("source changed between range requests", path=self.path, offset=offset)
                raise ChangedError("changed while it was read", path=self.path, offset=offset, hint="plan again")
        with self._lock:
            self.fetched += len(data)
        return data

    # --- what is kept ---

    def _proved(self, first: int, stop: int) -> bool:
        """Return whether blocks that an earlier run kept are what it recorded; what is not is forgotten."""
        from blake3 import blake3

        sound = True
        for number in range(first, stop):
            recorded = self._blocks.digests.get(number)
            if recorded is None:
                continue
            data = bytearray(min(self.block, self.size - number * self.block))
            there = self._cached(number * self.block, memoryview(data)) and blake3(data).digest() == recorded
            with self._lock:
                self._blocks.digests.pop(number, None)
                if there:
                    self._digests[number] = recorded
                else:
                    self._held.discard(number)
            sound &= there
        return sound

    def _keep(self, first: int, data: bytes) -> None:
        with self._lock:
            if (len(self._held) + 1) * self.block + len(data) > self.room + self.block:
                return
            try:
                done = 0
                while done < len(data):
                    count = here.pwrite(self._blocks.fd, data[done:] if done else data, first * self.block + done)
                    if not count:
                        raise OSError(errno.ENOSPC, "nothing was taken")
                    done += count
            except OSError:  # a full disk: what does not fit is fetched again
                self.room = 0
                return
            blocks = range(first, first + -(-len(data) // self.block))
            for number in blocks:
                self._blocks.record(number, self._digests[number])
            self._held.update(blocks)

    def _cached(self, offset: int, buffer: memoryview) -> bool:
        """Fill `buffer` from the cache; False when the bytes are not there after all."""
        while buffer:
            try:
                count = here.pread_into(self._blocks.fd, buffer, offset)
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
        count = -(-len(data) // self.block)
        with self._summing:
            while self._summed * self.block < self.size:
                at = (self._summed - first) * self.block
                if 0 <= self._summed - first < count:
                    piece = data[at : at + self.block]
                elif self._summed in self._held:
                    offset = self._summed * self.block
                    kept = bytearray(min(self.block, self.size - offset))
                    if not self._cached(offset, memoryview(kept)):
                        return
                    piece = bytes(kept)
                else:
                    return
                self._running.update(piece)
                self._summed += 1
