"""Settings of the C library's allocator, for programs that hold a process to themselves."""

from __future__ import annotations

import os
from contextlib import suppress

_ARENA_MAX = -8
"""M_ARENA_MAX of glibc's malloc.h."""


def few_arenas() -> None:
    """Let all threads allocate from one arena, where the C library has this setting.

    By default each thread gets its own, and what one has freed is of no use to the others: 50 MiB more at the peak of a
    conversion with forward passes. Arrays are large and few, so that nobody waits. Nor does torch's MKL keep buffers of
    its own for every thread that ever multiplied (30 MiB; the time is the same). Only a command does this, never the
    library: it holds for the whole process.
    """
    import ctypes

    os.environ.setdefault("MKL_DISABLE_FAST_MM", "1")  # read when torch is imported

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)


def give_back() -> None:
    """Return freed memory to the system, where the C library can; what comes next needs other sizes."""
    import ctypes

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
