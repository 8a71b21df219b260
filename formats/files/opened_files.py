"""Which files were read, and whether they still are what they were then.

Whoever opens a file of a model calls `note`; who wants to know which these were asks `recorded`. A name is no use here:
hard links and links are other names of the same file, and a name may have come to mean another file.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from ggferry.formats.errors import ChangedError, RefusedError

Identity = tuple[int, int]
"""Device and inode: the file itself, whatever it is called."""
TICK, COARSE = 20_000_000, 2_000_000_000
"""Nanoseconds in which two writes may get one time: of kernels that tick at 100 Hz or faster, doubled; of FAT."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """What differs once a file was written, replaced or had its times set back: nobody can set a ctime."""

    device: int
    inode: int
    bytes: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Stamp:
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


class Opened:
    """Files with their stamps as they were first opened."""

    def __init__(self) -> None:
        self._stamps: dict[str, Stamp] = {}

    def add(self, path: str, status: os.stat_result) -> None:
        self._stamps.setdefault(os.path.abspath(path), Stamp.of(status))

    def add_beside(self, paths: Iterable[str]) -> None:
        """Files that belong to what was opened, read or not."""
        for path in paths:
            if os.path.isfile(path):
                self.add(path, os.stat(path))

    @property
    def identities(self) -> dict[Identity, str]:
        """The files, and the names they were opened by."""
        return {(stamp.device, stamp.inode): path for path, stamp in self._stamps.items()}

    def check_unchanged(self) -> None:
        """Raises ChangedError naming the first file that is no longer what was opened."""
        for path, before in self._stamps.items():
            try:
                now = Stamp.of(os.stat(path))
            except OSError as error:
                raise ChangedError(f"gone while it was read: {error.strerror}", path=path) from None
            if now != before:
                raise ChangedError(
                    "changed while it was read", path=path, found=_words(now, before), expected=_words(before, now),
                    hint="do it again when nobody writes to it",
                )  # fmt: skip


_RECORD: ContextVar[Opened | None] = ContextVar("opened", default=None)


@contextmanager
def recorded() -> Iterator[Opened]:
    """What is opened within, and within any `recorded` around it."""
    outer = _RECORD.get()
    found = outer if outer is not None else Opened()
    token = _RECORD.set(found)
    try:
        yield found
    finally:
        _RECORD.reset(token)


@contextmanager
def unrecorded() -> Iterator[None]:
    """For as long, nothing that is opened is a source: it is what we wrote, read again."""
    token = _RECORD.set(None)
    try:
        yield
    finally:
        _RECORD.reset(token)


def note(path: str, descriptor: int) -> None:
    """The file at `path` was opened and is going to be read."""
    record = _RECORD.get()
    if record is not None:
        record.add(path, _settled(descriptor))


def refuse_sources(targets: Iterable[str], sources: Mapping[Identity, str]) -> None:
    """Raises RefusedError when one of `targets`, or what it leads to, is one of the files `sources`."""
    for target in targets:
        for status in _statuses(target):
            source = sources.get((status.st_dev, status.st_ino))
            if source is not None:
                raise RefusedError(
                    "would replace what it is made of", path=target, found=f"the same file as {source}",
                    hint="write to another name",
                )  # fmt: skip


def _statuses(path: str) -> Iterator[os.stat_result]:
    for look in (os.stat, os.lstat):
        try:
            yield look(path)
        except OSError:
            continue  # nothing of that name, or a link to nothing


def _settled(descriptor: int) -> os.stat_result:
    """The status of a file, once whatever is written to it from now on gets another time than it shows."""
    status = os.fstat(descriptor)
    step = TICK if status.st_ctime_ns % 1_000_000_000 else COARSE
    left = max(status.st_mtime_ns, status.st_ctime_ns) + step - time.time_ns()
    if 0 < left <= step:
        time.sleep(left / 1e9)
        status = os.fstat(descriptor)
    return status


def _words(one: Stamp, other: Stamp) -> str:
    """What differs, of `one`."""
    if one.bytes != other.bytes:
        return f"{one.bytes:,} bytes"
    if (one.device, one.inode) != (other.device, other.inode):
        return f"inode {one.inode}"
    name = "mtime_ns" if one.mtime_ns != other.mtime_ns else "ctime_ns"
    return f"{name} {getattr(one, name)}"
