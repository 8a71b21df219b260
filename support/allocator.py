"""Settings of the C library's allocator, for programs that hold a process to themselves."""

from __future__ import annotations

from contextlib import suppress

_ARENA_MAX = -8
"""M_ARENA_MAX of glibc's malloc.h."""


def few_arenas() -> None:
    """Let all threads allocate from one arena, where the C library has this setting.

    By default each thread gets its own, and what one has freed is of no use to the others: 50 MiB more at the peak of a
    conversion with forward passes. Arrays are large and few, so that nobody waits. Only a command does this, never the
    library: it holds for the whole process.
    """
    import ctypes

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)
