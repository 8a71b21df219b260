"""A cap on memory while the headers of an untrusted file are being read.

Readers check counts before they build anything. This cap is the defense behind those checks: a header that nobody
thought of ends in an error instead of in the kernel's out-of-memory killer. It is lifted afterwards, because proofs and
conversions need more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ggferry.formats.errors import OutOfRangeError
from ggferry.support.platform import here

HEADERS = 4 << 30
"""Bytes for headers and the plan made of them; also all that a worker has (`service.workers.supervisor.Limits`)."""
_limit = 0


def ration(nbytes: int) -> None:
    """Set how many bytes more than are in use `limited` allows from now on; 0: no limit.

    The limit applies to the whole process, so it is for a program that does one thing at a time: the command line.
    Workers have a cap of their own.
    """
    global _limit
    _limit = nbytes


@contextmanager
def limited(path: str) -> Iterator[None]:
    """Apply the cap while the headers at `path` are read.

    Raises OutOfRangeError when they need more memory than that, and when something in them is nested deeper than a
    reader goes.
    """
    try:
        with _capped(path):
            yield
    except RecursionError:
        raise OutOfRangeError("nested too deeply", path=path) from None


@contextmanager
def _capped(path: str) -> Iterator[None]:
    if not _limit:
        yield
        return
    try:
        with here.lowered_memory(here.data_in_use() + _limit):
            yield
    except MemoryError:
        limit = f"≤ {_limit >> 20} MiB"
        raise OutOfRangeError(
            "reading its headers takes more memory than any model's", path=path, expected=limit
        ) from None
