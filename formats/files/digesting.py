"""Digest a file by the bytes that pass when it is read, so that it need not be read again for its digest.

BLAKE3 takes a file from its first byte to its last. Threads that read consecutive chunks finish them in nearly that
order: one that is ahead waits for the one that is still reading what comes before. What nobody reads, such as a header
or a tensor that is dropped, is read here when the bytes behind it pass, and the rest at the end, so that the digest is
right in whatever order the file was read; only the work depends on it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from ggferry.formats.files.digests import FileDigest, Record, file_record
from ggferry.formats.files.sources import LocalFile, Source, Window, whole_of

GAP = 256 << 20
"""Bytes that are read here at most, while others read, because nobody has read them."""


class DigestingSource:
    """A `Source` that digests what is read from it, each byte once; safe to use from any thread.

    Attributes:
        source: The file.
        again: How many bytes were read for the digest alone.
    """

    def __init__(self, source: Source, *, blocks: bool = False) -> None:
        """Begin with a file that was opened; nothing is digested before `begin`. `blocks`: digest these, too."""
        self.source, self.path, self.size, self.again = source, source.path, source.size, 0
        self._digest: FileDigest | None = None
        self._blocks = blocks
        self._begun = False
        self._at = 0
        self._filling = 0
        """Where the bytes end that a thread reads for the digest alone; 0 while none does."""
        self._feeding = False
        self._reading: dict[int, tuple[int, int]] = {}
        self._changed = threading.Condition()

    def begin(self) -> None:
        """Digest what passes from now on."""
        self._begun = True

    def read(self, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes from `offset`, as `Source.read`."""
        if not self._begun or offset + size <= self._at:
            return self.source.read(offset, size)
        data = bytearray(size)
        self.read_into(offset, memoryview(data))
        return bytes(data)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` from `offset`, as `Source.read_into`."""
        end = offset + len(buffer)
        if not self._begun or end <= self._at or not buffer or offset < 0 or end > self.size:
            self.source.read_into(offset, buffer)
            return
        me = id(buffer)
        with self._changed:
            self._reading[me] = (offset, end)
        is_turn = False
        try:
            self.source.read_into(offset, buffer)
            is_turn = self._my_turn(me, offset, end)
            if is_turn:
                self._fill(offset)
                self._update(buffer[self._at - offset :])
        finally:
            with self._changed:
                del self._reading[me]
                if is_turn:
                    self._feeding, self._filling = False, 0
                self._changed.notify_all()

    def _my_turn(self, me: int, offset: int, end: int) -> bool:
        """Wait while others read, or feed, what comes before; return whether to feed these bytes."""
        with self._changed:
            while True:
                if end <= max(self._at, self._filling) or offset - self._at > GAP or self._filling:
                    return False
                before = any(a <= self._at < b for key, (a, b) in self._reading.items() if key != me)
                if not self._feeding and (offset <= self._at or not before):
                    self._feeding = True
                    self._filling = offset if offset > self._at else 0
                    return True
                self._changed.wait()

    def _fill(self, stop: int, threads: int = 1, stopped: Callable[[], bool] = lambda: False) -> None:
        """Read and digest the bytes up to `stop` that have not passed."""
        for count in self._begun_digest(threads).fill(self.source, self._at, stop, threads, stopped):
            self.again += count
            self._at += count

    def _begun_digest(self, threads: int = 1) -> FileDigest:
        self._digest = self._digest or FileDigest(self.size, threads, blocks=self._blocks)
        return self._digest

    def _update(self, data: memoryview) -> None:
        self._begun_digest().update(data)
        self._at += len(data)

    def record(self, threads: int = 1, stopped: Callable[[], bool] = lambda: False) -> Record:
        """Return the file as a receipt names it, after reading what has not passed; nobody else may read meanwhile.

        With nothing passed it is `digests.file_record`. Once `stopped` returns True, reading stops, and the digest
        covers only what was read until then.
        """
        self._fill(self.size, threads, stopped)
        return self._begun_digest().record(self.path)

    def close(self) -> None:
        """Close the file."""
        self.source.close()


def digesting(files: Iterable[Source], *, blocks: bool = False) -> tuple[Source, ...]:
    """Return the files, those on disk as `DigestingSource`; `blocks`: their blocks are digested, too.

    Of what is read within an archive, the archive is digested, once.
    """
    known: dict[int, Source] = {}

    def digested(file: Source) -> Source:
        if isinstance(file, Window):
            whole = digested(file.whole)
            return file if whole is file.whole else file.over(whole)
        if isinstance(file, LocalFile):
            return known.setdefault(id(file), DigestingSource(file, blocks=blocks))
        return file

    return tuple(map(digested, files))


def begin(files: Iterable[Source]) -> None:
    """Digest what passes of these files from now on, where they are `DigestingSource`."""
    for file in map(whole_of, files):
        if isinstance(file, DigestingSource):
            file.begin()


def record(file: Source, threads: int = 1, stopped: Callable[[], bool] = lambda: False) -> Record:
    """Return a file as a receipt names it; of a `DigestingSource` one only what has not passed is read."""
    file = whole_of(file)
    if isinstance(file, DigestingSource):
        return file.record(threads, stopped)
    return file_record(file, threads, stopped)
