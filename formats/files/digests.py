"""BLAKE3 digests of whole files for receipts: started alongside other work, awaited when the receipt is written."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, NotRequired, cast

from typing_extensions import TypedDict  # pydantic refuses that of typing below Python 3.12

from ggferry.formats.files.local_files import Named
from ggferry.formats.files.sources import LocalFile, Source
from ggferry.support.progress import Progress

if TYPE_CHECKING:
    from blake3 import blake3

BLOCK = 8 << 20
SMALLEST, MOST = 64 << 10, 8192
"""Bytes of a block that has a digest of its own, at least, and how many a file has, at most."""


class Blocks(TypedDict):
    """The digests of a file's blocks, from the first byte on: a tree of two levels.

    `bytes`: of every block but the last. `blake3`: their BLAKE3 digests in hex, one after another. `root`: BLAKE3 of
    these digests as bytes.
    """

    bytes: int
    root: str
    blake3: str


class Record(TypedDict):
    """A file as a receipt names it: its name without a folder, its bytes, its digests in hex.

    `transport`: how it is known that a file of a store was read as the store has it. `blocks`: of an output.
    """

    name: str
    bytes: int
    blake3: str
    sha256: NotRequired[str]
    transport: NotRequired[str]
    blocks: NotRequired[Blocks]


Taken = Callable[[], Record]
"""Returns the record of a file, once the file has been read."""


class BlockDigests:
    """Takes the bytes of a file in order, and digests each block."""

    def __init__(self, size: int) -> None:
        """Begin with a file of `size` bytes."""
        self._bytes = block_bytes(size)
        self._digests = bytearray()
        self._state: blake3 | None = None
        self._room = self._bytes

    def update(self, data: memoryview) -> None:
        """Add the next bytes."""
        from blake3 import blake3

        while data:
            piece, data = data[: self._room], data[self._room :]
            self._state = self._state or blake3()
            self._state.update(piece)
            self._room -= len(piece)
            if not self._room:
                self._end()

    def _end(self) -> None:
        if self._state is not None:
            self._digests += self._state.digest()
        self._state, self._room = None, self._bytes

    def finish(self) -> Blocks:
        """Return the digests of all blocks, after the last byte."""
        self._end()
        digests = bytes(self._digests)
        return {"bytes": self._bytes, "root": root_of(digests), "blake3": digests.hex()}


def block_bytes(size: int) -> int:
    """Return how large the blocks of a file are: a power of two, of which it has MOST at the most."""
    return max(SMALLEST, 1 << (-(-size // MOST) - 1).bit_length()) if size else SMALLEST


def without_blocks(record: Record) -> Record:
    """Return a record without the digests of blocks."""
    return cast("Record", {key: value for key, value in record.items() if key != "blocks"})


def root_of(digests: bytes) -> str:
    """Return the digest of the digests of blocks, in hex."""
    from blake3 import blake3

    return str(blake3(digests).hexdigest())


def digest(
    source: Source, threads: int = -1, progress: Progress | None = None, stopped: Callable[[], bool] = lambda: False
) -> str:
    """Return the BLAKE3 digest of a file in hex; the file is streamed.

    docs/decisions/digest.md says why it is not SHA-256.

    Args:
        source: The file.
        threads: Threads to use; −1: one per core.
        progress: Called with the bytes of each chunk.
        stopped: Once it returns True, reading stops, and the digest covers only what was read until then.
    """
    from blake3 import blake3

    state = blake3(max_threads=threads)
    for piece in pieces(source, 0, source.size, threads, stopped):
        state.update(piece)
        if progress:
            progress(len(piece))
    return str(state.hexdigest())


def pieces(
    source: Source, start: int, stop: int, threads: int, stopped: Callable[[], bool] = lambda: False
) -> Iterator[memoryview]:
    """Yield the bytes of a file in pieces of BLOCK, each valid until the next is asked for.

    With several threads, one is read while the one before it is used. Once `stopped` returns True, no more is read.
    """
    size = max(1, min(BLOCK, stop - start))

    def read(offset: int, view: memoryview) -> memoryview:
        piece = view[: min(size, stop - offset)]
        source.read_into(offset, piece)
        return piece

    offsets = (offset for offset in range(start, stop, size) if not stopped())
    if threads == 1 or stop - start <= size:
        view = memoryview(bytearray(size))
        yield from (read(offset, view) for offset in offsets)
        return
    views = cycle([memoryview(bytearray(size)) for _ in range(2)])
    with ThreadPoolExecutor(1, "ggferry-ahead") as pool:
        ahead = None
        for offset in offsets:
            ready, ahead = ahead, pool.submit(read, offset, next(views))
            if ready:
                yield ready.result()
        if ahead:
            yield ahead.result()


class FileDigest:
    """Takes the bytes of a file in order, and digests it, and its blocks where that is asked for.

    Args:
        size: The file's bytes.
        threads: Threads that digest it; −1: one per core.
        blocks: Whether its blocks are digested, too.
    """

    def __init__(self, size: int, threads: int = 1, *, blocks: bool = False) -> None:
        from blake3 import blake3

        self._state = blake3(max_threads=threads)
        self._size, self._blocks = size, BlockDigests(size) if blocks else None

    def update(self, data: memoryview, beside: Executor | None = None) -> None:
        """Add the next bytes; `beside` digests the blocks meanwhile."""
        if self._blocks is None:
            self._state.update(data)
            return
        ahead = beside.submit(self._blocks.update, data) if beside else None
        self._state.update(data)
        if ahead:
            ahead.result()
        else:
            self._blocks.update(data)

    def fill(
        self, source: Source, start: int, stop: int, threads: int = -1, stopped: Callable[[], bool] = lambda: False
    ) -> Iterator[int]:
        """Read and add the bytes `start:stop`, and yield how many each piece has."""
        with nullcontext() if threads == 1 else ThreadPoolExecutor(1, "ggferry-blocks") as beside:
            for piece in pieces(source, start, stop, threads, stopped):
                self.update(piece, beside)
                yield len(piece)

    def record(self, path: str) -> Record:
        """Return the file as a receipt names it, after the last byte."""
        made: Record = {"name": os.path.basename(path), "bytes": self._size, "blake3": str(self._state.hexdigest())}
        return {**made, "blocks": self._blocks.finish()} if self._blocks is not None else made


def file_record(
    source: Source, threads: int = -1, stopped: Callable[[], bool] = lambda: False, *, blocks: bool = False
) -> Record:
    """Return a file as a receipt names it, with the digests of its `blocks` or without; else as for `digest`."""
    found = FileDigest(source.size, threads, blocks=blocks)
    for _ in found.fill(source, 0, source.size, threads, stopped):
        pass
    return found.record(source.path)


class Digests:
    """Digests of several files, computed in threads. Leaving the context stops what is still running.

    Args:
        threads: How many threads a conversion may use.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "ggferry-digest")
        self._left = threading.Event()
        self._opened = ExitStack()

    def open(self, path: str) -> Source:
        """Open a file that we wrote; it is closed at the end."""
        return self._opened.enter_context(LocalFile(Named(path)))

    def begin(self, sources: Sequence[Source], beside: int, *, blocks: bool = False) -> list[Taken]:
        """Start digesting files; return a function for each that waits for its record.

        Local files are read at once, if more than one thread is allowed. A remote file is read when its record is asked
        for: its bytes are cached here after the conversion.

        Args:
            sources: The files.
            beside: Threads to leave to the other work meanwhile.
            blocks: Whether their blocks are digested, too.
        """
        share = max(1, (self._threads - beside) // max(1, len(sources)))
        return [
            self._pool.submit(self._record, source, share, blocks).result
            if self._threads > 1 and isinstance(source, LocalFile)
            else partial(self._record, source, self._threads, blocks)
            for source in sources
        ]

    def _record(self, source: Source, threads: int, blocks: bool) -> Record:
        return file_record(source, threads, self._left.is_set, blocks=blocks)

    def __enter__(self) -> Digests:
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._pool.shutdown(cancel_futures=True)
        self._opened.close()
