"""Job objects of Windows: groups of processes that end together, and caps of their memory."""

from __future__ import annotations

from typing import Any

import ggferry.support.platform._kernel32 as kernel

_EXTENDED_LIMITS = 9  # JobObjectExtendedLimitInformation of winnt.h
_PROCESS_MEMORY, _KILL_ON_CLOSE = 0x100, 0x2000
_ENDED = 9
"""The exit status of processes that `end` ends: -9 is what Popen says of a killed one elsewhere."""


def new_job(*, memory: int = 0, kill_on_close: bool = False) -> int:
    """Make a job without processes and return its handle.

    Args:
        memory: Bytes that each of its processes may commit; 0: no cap.
        kill_on_close: Whether its processes end with the last handle, and so with the process that made it.
    """
    import ctypes

    class Limits(ctypes.Structure):  # JOBOBJECT_EXTENDED_LIMIT_INFORMATION
        _fields_ = (
            ("PerProcessUserTimeLimit", ctypes.c_int64),
            ("PerJobUserTimeLimit", ctypes.c_int64),
            ("LimitFlags", ctypes.c_uint32),
            ("MinimumWorkingSetSize", ctypes.c_size_t),
            ("MaximumWorkingSetSize", ctypes.c_size_t),
            ("ActiveProcessLimit", ctypes.c_uint32),
            ("Affinity", ctypes.c_size_t),
            ("PriorityClass", ctypes.c_uint32),
            ("SchedulingClass", ctypes.c_uint32),
            ("IoInfo", ctypes.c_uint64 * 6),
            ("ProcessMemoryLimit", ctypes.c_size_t),
            ("JobMemoryLimit", ctypes.c_size_t),
            ("PeakProcessMemoryUsed", ctypes.c_size_t),
            ("PeakJobMemoryUsed", ctypes.c_size_t),
        )

    library = kernel.kernel32()
    library.CreateJobObjectW.restype = ctypes.c_void_p
    job = library.CreateJobObjectW(None, None)
    if not job:
        raise kernel.last_error("a job object")
    limits = Limits()
    limits.LimitFlags = (_PROCESS_MEMORY if memory else 0) | (_KILL_ON_CLOSE if kill_on_close else 0)
    limits.ProcessMemoryLimit = memory
    size = ctypes.sizeof(limits)
    if not library.SetInformationJobObject(ctypes.c_void_p(job), _EXTENDED_LIMITS, ctypes.byref(limits), size):
        error = kernel.last_error("a job object")
        close(job)
        raise error
    return int(job)


def add_process(job: int, handle: int) -> None:
    """Put a process into a job; what it starts from now on is there, too. Raises OSError."""
    import ctypes

    if not kernel.kernel32().AssignProcessToJobObject(ctypes.c_void_p(job), ctypes.c_void_p(handle)):
        raise kernel.last_error("a job object")


def add_this_process(job: int) -> None:
    """Put this process into a job. Raises OSError."""
    import ctypes

    library: Any = kernel.kernel32()
    library.GetCurrentProcess.restype = ctypes.c_void_p
    add_process(job, library.GetCurrentProcess())


def end(job: int) -> None:
    """End every process of a job, and close it."""
    import ctypes

    kernel.kernel32().TerminateJobObject(ctypes.c_void_p(job), _ENDED)
    close(job)


def close(job: int) -> None:
    """Close a handle of a job."""
    import ctypes

    kernel.kernel32().CloseHandle(ctypes.c_void_p(job))
