"""A cap on memory for as long as what a stranger wrote is being understood.

Readers refuse by count before they build; this is the fence behind them, so that a header nobody thought of ends in an
error and not in the kernel's out-of-memory killer. Proofs and conversions need what they need: afterwards the cap is
gone.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ggferry.formats.errors import OutOfRangeError

HEADERS = 4 << 30
"""Bytes for headers and the plan made of them: what a worker has in all (`service.workers.supervisor.Limits`)."""
_asked = 0


def ration(nbytes: int) -> None:
    """From now on `limited` allows so many bytes more than are in use; 0: as many as there are. The limit is the
    whole process's: for a program that does one thing at a time, the command line (a worker has its own cap)."""
    global _asked
    _asked = nbytes


@contextmanager
def limited(path: str) -> Iterator[None]:
    """For what reads the headers at `path`. Raises OutOfRangeError where that runs out of the memory it was given."""
    if not _asked:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, (_lower(before[0], _in_use() + _asked), before[1]))
    try:
        yield
    except MemoryError:
        limit = f"≤ {_asked >> 20} MiB"
        raise OutOfRangeError(
            "reading its headers takes more memory than any model's", path=path, expected=limit
        ) from None
    finally:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_DATA, before)


def _lower(limit: int, other: int) -> int:
    return other if limit == resource.RLIM_INFINITY else min(limit, other)


def _in_use() -> int:
    """Bytes that count against RLIMIT_DATA (proc(5), statm: data and stack)."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[5]) * resource.getpagesize()
