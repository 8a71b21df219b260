"""Settings of the C library's allocator, for programs that hold a process to themselves."""

from __future__ import annotations

import os
from contextlib import suppress

# Numbers of glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_KEPT = 128 << 20
_MMAP_MOST = 32 << 20  # the largest that glibc takes (HEAP_MAX_SIZE / 2)


def settle() -> None:
    """Let all threads allocate from one arena that keeps what is freed, where the C library has these settings.

    By default each thread gets its own, and what one has freed is of no use to the others: 50 MiB more at the peak of a
    conversion with forward passes. Arrays are large and few, so that nobody waits. Nor does torch's MKL keep buffers of
    its own for every thread that ever multiplied (30 MiB; the time is the same). Only a command does this, never the
    library: it holds for the whole process.

    By default arrays of some MiB are pages of their own, or the end of the heap, and go back to the system when they
    are freed: 430,000 page faults in a conversion of 2.2 GB (0.5 s of the kernel's time, 0.25 s of ours) where 65,000
    do.
    """
    import ctypes

    os.environ.setdefault("MKL_DISABLE_FAST_MM", "1")  # read when torch is imported

    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_ARENA_MAX, 1)
        library.mallopt(_MMAP_THRESHOLD, _MMAP_MOST)
        library.mallopt(_TRIM_THRESHOLD, _KEPT)


def give_back() -> None:
    """Return freed memory to the system, where the C library can; what comes next needs other sizes."""
    import ctypes

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
