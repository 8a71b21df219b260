"""Write GGUF: declare the tensors, lay them out, stream data to known offsets, publish.

A file grows under a private name (`formats.files.partial_files`) without its header, which is written last. Until
`finish`, its bytes are no GGUF file; until `publish`, it does not have its final name. So nothing that a crash leaves
behind can be taken for a finished model. Data is flushed to disk from the first bytes on, not only at the end.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeAlias

from ggferry.formats.errors import OutOfRangeError, UsageError, VerificationError
from ggferry.formats.files.opened_files import Identity
from ggferry.formats.files.partial_files import Partial, begin_file, name_together
from ggferry.formats.gguf.header_layout import Declared, FileLayout, GGUFLayout, Placed, lay_out
from ggferry.formats.gguf.values import DEFAULT_ALIGNMENT, Value
from ggferry.quant.types import BlockType
from ggferry.support.heavy import np
from ggferry.support.platform import here

Data: TypeAlias = "bytes | bytearray | memoryview | np.ndarray[Any, Any]"
"""Contiguous bytes, or a C-contiguous array."""

FLUSH, FLUSH_MOST, QUICK = 64 << 20, 512 << 20, 0.25
"""Bytes between two flushes, at first, and at most where the disk is quick: one that took less than QUICK seconds is
followed by one of twice the bytes. An interrupt waits for one. Each costs a journal's commit and empties the queue: 2.1
GB take 0.1 s more by 33 of them than by 6."""
PIECE = 256 << 10
"""Bytes written at once: for more, Linux looks for large pages, which took 2 to 6 times the processor time of the copy
(6.18, ext4: 0.2 s a GiB in pieces of 256 KiB at any offset, 0.5 to 1.2 s in pieces of 2 MiB)."""

__all__ = ["Declared", "FileLayout", "GGUFFile", "GGUFLayout", "Placed", "lay_out", "write_gguf"]


class GGUFFile:
    """A GGUF file, or one of another container, that is being written.

    `pwrite` may be called from any number of threads at once.

    Its life: `pwrite` …, `finish` (complete and on disk, still at `partial`, to be verified), then `publish` or
    `discard`. As a context manager it discards what was not published.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        layout: FileLayout,
        *,
        overwrite: bool = False,
        file: Partial | None = None,
        sources: Mapping[Identity, str] | None = None,
        wrote: Callable[[str, int, memoryview], None] | None = None,
    ) -> None:
        """Begin `path`, replacing what a crashed run left of it.

        Args:
            path: The final name.
            layout: Header and offsets.
            overwrite: Whether an existing file may be replaced.
            file: The partial, if the caller has claimed it already.
            sources: Files that must not be replaced.
            wrote: Called with what was written of a tensor: its name, the offset in it, the bytes as the file has them.

        Raises:
            RefusedError: `path` exists (without `overwrite`) or is one of `sources`.
            BusyError: Another live writer has the same target.
            NotFoundError: Its folder does not exist.
        """
        self.path = os.fspath(path)
        self.layout = layout
        self.overwrite = overwrite
        self._wrote = wrote
        self._written: dict[str, list[tuple[int, int]]] = {name: [] for name in layout.tensors}
        self._lock = threading.Lock()
        self._finished = False
        self.file = file or begin_file(self.path, overwrite=overwrite, sources=sources)
        self._flusher = _Flusher(lambda: self.file.attempt(here.sync_data, self.file.fd))
        try:
            self.file.attempt(os.ftruncate, self.file.fd, layout.size)  # a hole reads as zeros: all padding is in place
        except BaseException:
            self.discard()
            raise

    @property
    def partial(self) -> str:
        """Path of the bytes until they are published."""
        return self.file.path

    def pwrite(self, name: str, offset: int, data: Data) -> None:
        """Write little-endian `data` at byte `offset` of tensor `name`.

        In a big-endian file its numbers are swapped; `offset` and size must then be whole blocks. Raises UsageError for
        a tensor that the layout lacks, OutOfRangeError when the bytes are not inside the tensor.
        """
        tensor = self.layout.tensors.get(name)
        if tensor is None or self._finished:
            raise UsageError(f"tensor {name!r} cannot be written", path=self.path, expected="a declared tensor")
        view = _as_bytes(data)
        end = offset + len(view)
        if offset < 0 or end > tensor.nbytes:
            found, expected = f"{offset}..{end}", f"0..{tensor.nbytes}"
            raise OutOfRangeError(f"bytes of {name!r}", path=self.path, found=found, expected=expected)
        if self.layout.big_endian:
            view = self._swapped(tensor, offset, view)
        self._put(tensor.offset + offset, view)
        if self._wrote is not None:
            self._wrote(name, offset, view)
        with self._lock:
            self._written[name].append((offset, end))
            self._flusher.wrote(len(view))

    def read_back(self, name: str, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` with what was written of tensor `name`, from byte `offset` of it."""
        start, done = self.layout.tensors[name].offset + offset, 0
        while done < len(buffer):
            count = self.file.attempt(here.pread_into, self.file.fd, buffer[done:], start + done)
            if not count:
                raise VerificationError("the file shrank while it was written", path=self.path, offset=start + done)
            done += count

    def finish(self) -> None:
        """Write the header, and begin to flush the rest to disk; meanwhile the file can be read. `flush` waits for it.

        Raises VerificationError naming a tensor that was not written from its first byte to its last, exactly once.
        """
        for name, tensor in self.layout.tensors.items():
            position = 0
            for begin, end in sorted(self._written[name]):
                if begin != position:
                    fault = "missing" if begin > position else "written twice"
                    raise VerificationError(
                        f"tensor {name!r}: bytes {fault}", path=self.path, found=begin, expected=position
                    )
                position = end
            if position != tensor.nbytes:
                message = f"tensor {name!r}: bytes missing"
                raise VerificationError(message, path=self.path, found=position, expected=tensor.nbytes)
        for offset, piece in reversed(self.layout.pieces):
            self._put(offset, memoryview(piece))
        self._flusher.begin(lambda: self.file.attempt(os.fsync, self.file.fd))
        self._finished = True

    def flush(self) -> None:
        """Wait until everything is on disk."""
        self._flusher.wait()

    def publish(self) -> None:
        """Give the finished file its name. Raises RefusedError when a file of that name has appeared meanwhile."""
        name_together([self.finished()], overwrite=self.overwrite)
        self._flusher.stop()

    def finished(self) -> Partial:
        """Return the complete file, on disk, to be published with others. Raises UsageError before `finish`."""
        if not self._finished:
            raise UsageError("published before it was finished", path=self.path)
        self.flush()
        return self.file

    def discard(self) -> None:
        """Remove what was written; a published file stays."""
        self._flusher.stop()
        self.file.discard()

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    def _swapped(self, tensor: Placed, offset: int, view: memoryview) -> memoryview:
        from ggferry.quant.endian import swap

        kind = tensor.type
        row = kind.row_bytes(tensor.shape[-1]) if kind.whole_rows else kind.block_bytes
        block = row * kind.interleaved
        if offset % block or len(view) % block:
            found = f"{len(view)} bytes at {offset}"
            raise UsageError(f"part of {tensor.name!r}", found=found, expected=f"whole blocks of {block} bytes")
        rows = np.frombuffer(view, dtype=np.uint8).reshape(-1, row)
        return _as_bytes(np.ascontiguousarray(swap(kind, rows)))

    def _put(self, offset: int, view: memoryview) -> None:
        while len(view):
            count = self.file.attempt(here.pwrite, self.file.fd, view[:PIECE], offset)
            view, offset = view[count:], offset + count


class _Flusher:
    """Flush a file to disk while it grows, in a thread of its own.

    The kernel reports a failed flush only once, so what one raises is kept for the next `wrote` or `wait`.
    """

    def __init__(self, sync: Callable[[], None]) -> None:
        self._sync = sync
        self._pool = ThreadPoolExecutor(1, "ggferry-flush")
        self._begun: list[Future[None]] = []
        self._waiting, self._enough = 0, FLUSH

    def wrote(self, count: int) -> None:
        """Note that `count` more bytes are to be flushed. Only one thread at a time may call this."""
        self._waiting += count
        if self._waiting >= self._enough and all(each.done() for each in self._begun):
            self.wait()
            self._waiting = 0
            self.begin(self._timed)

    def begin(self, sync: Callable[[], None]) -> None:
        """Flush, after what is being flushed."""
        self._begun.append(self._pool.submit(sync))

    def _timed(self) -> None:
        start = time.monotonic()
        self._sync()
        quick = time.monotonic() - start < QUICK
        self._enough = min(2 * self._enough, FLUSH_MOST) if quick else FLUSH

    def wait(self) -> None:
        for each in self._begun:
            each.result()
        self._begun.clear()

    def stop(self) -> None:
        self._pool.shutdown(wait=True)


def _as_bytes(data: Any) -> memoryview:
    view = memoryview(data)
    return view.cast("B") if view.nbytes else memoryview(b"")


def write_gguf(
    path: str | os.PathLike[str],
    metadata: Mapping[str, Value],
    tensors: Sequence[tuple[str, BlockType, tuple[int, ...], Data]],
    *,
    alignment: int = DEFAULT_ALIGNMENT,
    big_endian: bool = False,
    version: int = 3,
    overwrite: bool = False,
    sources: Mapping[Identity, str] | None = None,
) -> GGUFLayout:
    """Write a whole small file at once, for fixtures and tests.

    `tensors` are (name, type, shape, little-endian bytes).
    """
    declared = [(name, kind, shape) for name, kind, shape, _ in tensors]
    layout = lay_out(metadata, declared, alignment=alignment, big_endian=big_endian, version=version)
    with GGUFFile(path, layout, overwrite=overwrite, sources=sources) as file:
        for name, _, _, data in tensors:
            file.pwrite(name, 0, data)
        file.finish()
        file.publish()
    return layout
