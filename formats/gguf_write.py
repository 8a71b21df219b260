"""Writing GGUF: declare, lay out, stream at known offsets, publish.

A file grows under NAME.partial without its header, which is written last: until `finish` the bytes are no GGUF file,
until `publish` the name is not the final one, so nothing that a crash leaves can be taken for a finished model.
The disk is at work from the first bytes on, not only when all are there.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from ggferry.formats.errors import (
    BusyError,
    GgferryError,
    NotFoundError,
    OutOfRangeError,
    RefusedError,
    UsageError,
    VerificationError,
)
from ggferry.formats.gguf_layout import Declared, GGUFLayout, Placed, lay_out
from ggferry.formats.gguf_values import DEFAULT_ALIGNMENT, Value
from ggferry.quant.registry import lazy
from ggferry.quant.types import BlockType

if TYPE_CHECKING:
    import numpy as np
else:
    np = lazy("numpy")

Data: TypeAlias = "bytes | bytearray | memoryview | np.ndarray[Any, Any]"
"""Contiguous bytes, or a C-contiguous array."""

FLUSH = 64 << 20
"""Bytes between two flushes: enough that a journal's commit costs nothing, little to wait for at an interrupt."""

__all__ = ["Declared", "GGUFFile", "GGUFLayout", "Placed", "lay_out", "write_gguf"]


class GGUFFile:
    """A GGUF file in the making. `pwrite` may be called from any number of threads at once.

    The life of one: `pwrite` … `finish` (complete, on disk, still NAME.partial: to be verified) `publish` or `discard`.
    As a context manager it discards what was not published.
    """

    def __init__(self, path: str | os.PathLike[str], layout: GGUFLayout, *, overwrite: bool = False) -> None:
        """Create NAME.partial, replacing one that a crashed run left.

        Raises RefusedError when `path` exists (without `overwrite`) or another live writer has the same target,
        NotFoundError when its folder does not exist.
        """
        self.path = os.fspath(path)
        self.partial = f"{self.path}.partial"
        self.layout = layout
        self.overwrite = overwrite
        self._written: dict[str, list[tuple[int, int]]] = {name: [] for name in layout.tensors}
        self._lock = threading.Lock()
        self._finished = False
        self._flusher = _Flusher(lambda: self._try(os.fdatasync, self._fd))
        self._fd = _claim(self.partial)
        try:
            if not overwrite and os.path.lexists(self.path):
                raise self._exists()
            self._try(os.ftruncate, self._fd, layout.size)  # a hole reads as zeros: all padding is in place
        except BaseException:
            self.discard()
            raise

    def pwrite(self, name: str, offset: int, data: Data) -> None:
        """Put little-endian `data` at byte `offset` of tensor `name`; in a big-endian file its numbers are swapped,
        and then `offset` and size must be whole blocks.

        Raises UsageError for a tensor the layout lacks, OutOfRangeError when the bytes are not inside the tensor.
        """
        tensor = self.layout.tensors.get(name)
        if tensor is None or self._finished:
            raise UsageError(f"tensor {name!r} cannot be written", path=self.partial, expected="a declared tensor")
        view = _as_bytes(data)
        end = offset + len(view)
        if offset < 0 or end > tensor.nbytes:
            found, expected = f"{offset}..{end}", f"0..{tensor.nbytes}"
            raise OutOfRangeError(f"bytes of {name!r}", path=self.partial, found=found, expected=expected)
        if self.layout.big_endian:
            view = self._swapped(tensor, offset, view)
        self._put(tensor.offset + offset, view)
        with self._lock:
            self._written[name].append((offset, end))
            self._flusher.wrote(len(view))

    def finish(self) -> None:
        """Write the header and flush everything to disk. Raises VerificationError naming a tensor that was not
        written from its first byte to its last, exactly once."""
        for name, tensor in self.layout.tensors.items():
            position = 0
            for begin, end in sorted(self._written[name]):
                if begin != position:
                    fault = "missing" if begin > position else "written twice"
                    raise VerificationError(
                        f"tensor {name!r}: bytes {fault}", path=self.partial, found=begin, expected=position
                    )
                position = end
            if position != tensor.nbytes:
                message = f"tensor {name!r}: bytes missing"
                raise VerificationError(message, path=self.partial, found=position, expected=tensor.nbytes)
        self._flusher.wait()
        self._try(os.fsync, self._fd)  # the data before the header that declares it
        self._put(0, memoryview(self.layout.header))
        self._try(os.fsync, self._fd)
        self._finished = True

    def publish(self) -> None:
        """Give the finished file its name. Raises RefusedError when a file of that name has appeared meanwhile."""
        if not self._finished:
            raise UsageError("published before it was finished", path=self.partial)
        if self.overwrite:
            self._try(os.replace, self.partial, self.path)
        else:
            self._rename_to_new()
        _sync_folder(self.path)
        self._close()

    def discard(self) -> None:
        """Remove what was written. Nothing happens to a published file."""
        if self._fd >= 0:
            with suppress(FileNotFoundError):
                os.unlink(self.partial)
            self._close()

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    def _rename_to_new(self) -> None:
        """rename(2) replaces its target whatever a check before it said; link(2) fails on one that exists, so two
        publishers cannot both win. Between link and unlink both names lead to the same complete file."""
        try:
            os.link(self.partial, self.path)
        except FileExistsError:
            raise self._exists() from None
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
                raise self._failure(error) from None
            self._rename_to_claimed()  # FAT and some network file systems have no links
        else:
            self._try(os.unlink, self.partial)

    def _rename_to_claimed(self) -> None:
        """Without links: an exclusive create claims the name, and the rename replaces only our own empty file."""
        try:
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC))
        except FileExistsError:
            raise self._exists() from None
        self._try(os.replace, self.partial, self.path)

    def _swapped(self, tensor: Placed, offset: int, view: memoryview) -> memoryview:
        from ggferry.quant.endian import swap

        block = tensor.type.block_bytes
        if offset % block or len(view) % block:
            found = f"{len(view)} bytes at {offset}"
            raise UsageError(f"part of {tensor.name!r}", found=found, expected=f"whole blocks of {block} bytes")
        rows = np.frombuffer(view, dtype=np.uint8).reshape(-1, block)
        return _as_bytes(np.ascontiguousarray(swap(tensor.type, rows)))

    def _put(self, offset: int, view: memoryview) -> None:
        while len(view):
            count = self._try(os.pwrite, self._fd, view, offset)
            view, offset = view[count:], offset + count

    def _try(self, call: Any, *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except OSError as error:
            raise self._failure(error) from None

    def _failure(self, error: OSError) -> GgferryError:
        return GgferryError(f"cannot be written: {error.strerror}", path=self.partial)

    def _exists(self) -> RefusedError:
        return RefusedError("exists already", path=self.path, hint="--force replaces it")

    def _close(self) -> None:
        self._flusher.stop()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class _Flusher:
    """Brings a file to disk while it grows, by a thread of its own. `sync` raises what is to be told of a failure:
    the kernel tells it once, so it is kept for the next `wrote` or `wait`."""

    def __init__(self, sync: Callable[[], None]) -> None:
        self._sync = sync
        self._pool = ThreadPoolExecutor(1, "ggferry-flush")
        self._running: Future[None] | None = None
        self._waiting = 0

    def wrote(self, count: int) -> None:
        """`count` bytes more are to be flushed. One thread at a time may call this."""
        self._waiting += count
        if self._waiting >= FLUSH and (self._running is None or self._running.done()):
            self.wait()
            self._waiting, self._running = 0, self._pool.submit(self._sync)

    def wait(self) -> None:
        if self._running is not None:
            self._running.result()

    def stop(self) -> None:
        self._pool.shutdown(wait=True)


def _as_bytes(data: Any) -> memoryview:
    view = memoryview(data)
    return view.cast("B") if view.nbytes else memoryview(b"")


def _claim(partial: str) -> int:
    """An empty file `partial`, open and locked; the kernel drops the lock with the process that held it.

    Raises BusyError when another process or another GGUFFile holds it.
    """
    while True:
        try:
            fd = os.open(partial, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:
            raise NotFoundError("its folder does not exist", path=partial) from None
        except OSError as error:
            raise GgferryError(f"cannot be created: {error.strerror}", path=partial) from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise BusyError("another writer is at work on this file", path=partial) from None
        status = os.fstat(fd)
        if _is_still(partial, status):
            if status.st_nlink == 1:
                os.ftruncate(fd, 0)
                return fd
            # A publisher died between link and unlink: the other name is the finished file, leave its bytes alone.
            os.unlink(partial)
        os.close(fd)  # the name now leads elsewhere, or to nothing: once more


def _is_still(path: str, status: os.stat_result) -> bool:
    """Whether `path` leads to the file of `status`: it does not when its writer published or discarded it between
    our open and our lock."""
    try:
        return os.path.samestat(os.stat(path), status)
    except FileNotFoundError:
        return False


def _sync_folder(path: str) -> None:
    fd = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # some file systems cannot sync a folder
            os.fsync(fd)
    finally:
        os.close(fd)


def write_gguf(
    path: str | os.PathLike[str],
    metadata: Mapping[str, Value],
    tensors: Sequence[tuple[str, BlockType, tuple[int, ...], Data]],
    *,
    alignment: int = DEFAULT_ALIGNMENT,
    big_endian: bool = False,
    version: int = 3,
    overwrite: bool = False,
) -> GGUFLayout:
    """A whole small file at once, for fixtures and tests: tensors as (name, type, shape, little-endian bytes)."""
    declared = [(name, kind, shape) for name, kind, shape, _ in tensors]
    layout = lay_out(metadata, declared, alignment=alignment, big_endian=big_endian, version=version)
    with GGUFFile(path, layout, overwrite=overwrite) as file:
        for name, _, _, data in tensors:
            file.pwrite(name, 0, data)
        file.finish()
        file.publish()
    return layout
