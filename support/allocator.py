"""Settings of the C library's allocator, for programs that hold a process to themselves."""

from __future__ import annotations

import os
from contextlib import suppress

# Numbers of glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_DONT_NEED = 4  # MADV_DONTNEED of Linux's mman.h
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
    """Return memory to the system that what comes next does not need, where the C library can.

    That is what was freed, and the code of LLVM, 50 MiB, which has linked the kernels: these pages are as the file has
    them, and are read again if they are wanted after all.
    """
    import ctypes

    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.malloc_trim(0)
        for start, stop in _code_of("libllvmlite"):
            library.madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), _DONT_NEED)


def _code_of(library: str) -> list[tuple[int, int]]:
    """Return where the code of a library lies in memory: pages that nobody can have written to."""
    with open("/proc/self/maps") as maps:
        places = [line.split() for line in maps if library in line]
    return [
        (int(start, 16), int(stop, 16))
        for start, stop in (place[0].split("-") for place in places if place[1] == "r-xp")
    ]
