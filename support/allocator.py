"""Settings of the C library's allocator, for programs that hold a process to themselves."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

# Numbers of glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -3, -4, -8
_DONT_NEED, _DONT_DUMP = 4, 16  # MADV_DONTNEED and MADV_DONTDUMP of Linux's mman.h
_CUT, _LARGE_CODE = 512 << 10, 8 << 20
_LIBRARIES = (b"/libtorch", b"/libllvmlite", b"openblas")  # those that we load: others are a program's that uses us
_KEPT = 128 << 20
_MMAP_MOST = 32 << 20  # the largest that glibc takes (HEAP_MAX_SIZE / 2)


def tune_malloc(large: bool = False) -> None:
    """Let all threads allocate from one arena that keeps what is freed, where the C library has these settings.

    By default each thread gets its own, and what one has freed is of no use to the others: 50 MiB more at the peak of a
    conversion with forward passes. Arrays are large and few, so that nobody waits. Nor does torch's MKL keep buffers of
    its own for every thread that ever multiplied (30 MiB; the time is the same). Only a command does this, never the
    library: it holds for the whole process.

    By default arrays of some MiB are pages of their own, or the end of the heap, and go back to the system when they
    are freed: 430,000 page faults in a conversion of 2.2 GB (0.5 s of the kernel's time, 0.25 s of ours) where 65,000
    do.

    `large`: the same for arrays of any size, of which up to 1 GiB is kept. Activations of thousands of tokens are
    larger than what glibc otherwise takes from its heap: 2.1 million page faults in an importance matrix where 0.4
    million do.
    """
    os.environ.setdefault("MKL_DISABLE_FAST_MM", "1")  # read when torch is imported
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # when numpy is, whose further threads spin for 0.1 s

    with suppress(OSError, AttributeError):
        library = _c_library()
        library.mallopt(_ARENA_MAX, 1)
        library.mallopt(_MMAP_THRESHOLD, _MMAP_MOST)
        library.mallopt(_TRIM_THRESHOLD, _KEPT)
        if large:
            library.mallopt(_MMAP_MAX, 0)
            library.mallopt(_TRIM_THRESHOLD, 8 * _KEPT)


TRIMMED_FROM = 64 << 20
"""Bytes of outputs from which memory is given back: it takes 3 ms, as long as to write a tiny model."""


def trim_heap() -> None:
    """Return memory to the system that what comes next does not need: what was freed, and code."""
    with suppress(OSError, AttributeError):
        _c_library().malloc_trim(0)
    forget_code()


def forget_code() -> None:
    """Let the code of torch's, LLVM's and numpy's libraries be mapped anew where it is wanted, a few pages at a time.

    LLVM's are 50 MiB, which are not run after it has linked the kernels. And where Linux has a file in large pages, as
    it has a library that was just installed, one fault maps up to 2 MiB (6.18, also with MADV_NOHUGEPAGE): 120 MiB more
    of torch's and LLVM's code than is run. It maps nothing beyond a mapping, so they are cut into short ones.
    """
    import ctypes

    with suppress(OSError, AttributeError):
        advise = _c_library().madvise
        for start, stop in _code():
            for at in range(start, stop, 2 * _CUT):  # being dumped is a difference that matters in a crash alone
                advise(ctypes.c_void_p(at), ctypes.c_size_t(min(_CUT, stop - at)), _DONT_DUMP)
            advise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), _DONT_NEED)


def _c_library() -> Any:
    """Return the C library of this process. Raises OSError where it is not found by the process, as on Windows."""
    import ctypes

    try:
        return ctypes.CDLL(None)
    except TypeError as error:  # Windows's has no name None
        raise OSError(str(error)) from None


def _code() -> list[tuple[int, int]]:
    """Return where the code of these libraries lies in memory: pages that nobody writes to."""
    found: list[tuple[bytes, int, int]] = []
    with open("/proc/self/maps", "rb") as maps:  # a name in it may be no text
        for line in maps:
            place, mode, _, _, _, *name = line.split(maxsplit=5)
            if mode != b"r-xp" or not name or not any(each in name[0] for each in _LIBRARIES):
                continue
            start, stop = (int(end, 16) for end in place.split(b"-"))
            if found and found[-1][0] == name[0] and found[-1][2] == start:  # cut before
                start = found.pop()[1]
            found.append((name[0], start, stop))
    return [(start, stop) for _, start, stop in found if stop - start >= _LARGE_CODE]
