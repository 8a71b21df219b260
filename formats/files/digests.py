"""BLAKE3 of whole files, for receipts: begun beside other work, waited for when the receipt is written."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

from ggferry.formats.files.local_files import Named
from ggferry.formats.files.sources import LocalFile, Source
from ggferry.support.progress import Progress

_BLOCK = 8 << 20
Record = dict[str, Any]
"""A file as a receipt names it: name, bytes, blake3 (hex)."""
Taken = Callable[[], Record]
"""Gives the record of a file, once it was read."""


def digest(
    source: Source, threads: int = -1, progress: Progress | None = None, stopped: Callable[[], bool] = lambda: False
) -> str:
    """BLAKE3 of a file, hex; streamed. (Why not SHA-256: docs/decisions/digest.md.) `threads`: −1 for one a core. Once
    `stopped`, the digest is of what was read until then."""
    from blake3 import blake3

    state = blake3(max_threads=threads)
    view = memoryview(bytearray(min(_BLOCK, source.size) or 1))
    for offset in range(0, source.size, len(view)):
        if stopped():
            break
        piece = view[: min(len(view), source.size - offset)]
        source.read_into(offset, piece)
        state.update(piece)
        if progress:
            progress(len(piece))
    return str(state.hexdigest())


def file_record(source: Source, threads: int = -1, stopped: Callable[[], bool] = lambda: False) -> Record:
    """A file as a receipt names it; `threads`, `stopped` as of `digest`."""
    found = digest(source, threads, stopped=stopped)
    return {"name": os.path.basename(source.path), "bytes": source.size, "blake3": found}


class Digests:
    """As a context: leaving it ends what still runs. `threads`: how many a conversion may take."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "ggferry-digest")
        self._left = threading.Event()
        self._opened = ExitStack()

    def open(self, path: str) -> Source:
        """A file that we wrote, closed at the end."""
        return self._opened.enter_context(LocalFile(Named(path)))

    def begin(self, sources: Sequence[Source], beside: int) -> list[Taken]:
        """What gives the records of files. `beside`: threads that are left to the work meanwhile. Where there is more
        than one, local files are read at once; of a remote one the bytes are here when it was converted."""
        share = max(1, (self._threads - beside) // max(1, len(sources)))
        return [
            self._pool.submit(self._record, source, share).result
            if self._threads > 1 and isinstance(source, LocalFile)
            else partial(self._record, source, self._threads)
            for source in sources
        ]

    def _record(self, source: Source, threads: int) -> Record:
        return file_record(source, threads, self._left.is_set)

    def __enter__(self) -> Digests:
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._pool.shutdown(cancel_futures=True)
        self._opened.close()
