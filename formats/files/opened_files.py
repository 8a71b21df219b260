"""Record which files were read, and check whether they have changed since.

Whoever opens a file of a model calls `note`; whoever wants to know which files were opened uses `recorded`. Names are
not enough for that: hard links and symbolic links are other names of the same file, and a name may have come to mean
another file.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from ggferry.formats.errors import ChangedError, RefusedError
from ggferry.support.platform import here
from ggferry.support.records import dataclass

Identity = tuple[int, int]
"""Device and inode: the file itself, whatever its name is."""
TICK, COARSE = 20_000_000, 2_000_000_000
"""Nanoseconds in which two writes may get one time: of kernels that tick at 100 Hz or faster, doubled; of FAT."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """What differs once a file was written, replaced or had its times set back; nobody can set a ctime."""

    device: int
    inode: int
    bytes: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Stamp:
        """Return the stamp of a file's status."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


class Opened:
    """Files, each with its stamp at the time it was first opened."""

    def __init__(self) -> None:
        self._stamps: dict[str, Stamp] = {}

    def add(self, path: str, status: os.stat_result) -> None:
        """Record a file, unless it is recorded already."""
        self._stamps.setdefault(os.path.abspath(path), Stamp.of(status))

    def add_beside(self, paths: Iterable[str]) -> None:
        """Record files that belong to what was opened, whether they are read or not."""
        for path in paths:
            if os.path.isfile(path):
                self.add(path, here.stat_file(path))

    @property
    def identities(self) -> dict[Identity, str]:
        """The recorded files, each with the name it was opened by."""
        return {(stamp.device, stamp.inode): path for path, stamp in self._stamps.items()}

    def check_unchanged(self) -> None:
        """Raise ChangedError naming the first file that is no longer what was opened."""
        for path, before in self._stamps.items():
            try:
                now = Stamp.of(here.stat_file(path))
            except OSError as error:
                raise ChangedError(f"disappeared while it was read: {error.strerror}", path=path) from None
            if now != before:
                raise ChangedError(
                    "changed while it was read",
                    path=path,
                    found=_words(now, before),
                    expected=_words(before, now),
                    hint="do it again when nobody writes to it",
                )


_RECORD: ContextVar[Opened | None] = ContextVar("opened", default=None)


@contextmanager
def recorded() -> Iterator[Opened]:
    """Record the files that are opened within the context; they also count for any `recorded` around it."""
    outer = _RECORD.get()
    found = outer if outer is not None else Opened()
    token = _RECORD.set(found)
    try:
        yield found
    finally:
        _RECORD.reset(token)


@contextmanager
def unrecorded() -> Iterator[None]:
    """Do not record files that are opened within the context: they are outputs of ours that are read again."""
    token = _RECORD.set(None)
    try:
        yield
    finally:
        _RECORD.reset(token)


def note(path: str, descriptor: int) -> None:
    """Record that the file at `path` was opened and is going to be read."""
    record = _RECORD.get()
    if record is not None:
        record.add(path, _settled(descriptor))


def refuse_sources(targets: Iterable[str], sources: Mapping[Identity, str]) -> None:
    """Raise RefusedError when one of `targets`, or what it links to, is one of the files `sources`."""
    for target in targets:
        for status in _statuses(target):
            source = sources.get((status.st_dev, status.st_ino))
            if source is not None:
                raise RefusedError(
                    "the output would replace its own source",
                    path=target,
                    found=f"the same file as {source}",
                    hint="write to another name",
                )


def _statuses(path: str) -> Iterator[os.stat_result]:
    for look in (os.stat, os.lstat):
        try:
            yield look(path)
        except OSError:
            continue  # nothing of that name, or a link to nothing


def _settled(descriptor: int) -> os.stat_result:
    """Return the status of a file after waiting until any later write must change its time stamp."""
    status = os.fstat(descriptor)
    step = TICK if status.st_ctime_ns % 1_000_000_000 else COARSE
    left = max(status.st_mtime_ns, status.st_ctime_ns) + step - time.time_ns()
    if 0 < left <= step:
        time.sleep(left / 1e9)
        status = os.fstat(descriptor)
    return status


def _words(one: Stamp, other: Stamp) -> str:
    """Describe what differs, as `one` has it."""
    if one.bytes != other.bytes:
        return f"{one.bytes:,} bytes"
    if (one.device, one.inode) != (other.device, other.inode):
        return f"inode {one.inode}"
    name = "mtime_ns" if one.mtime_ns != other.mtime_ns else "ctime_ns"
    return f"{name} {getattr(one, name)}"
