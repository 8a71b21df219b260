"""The calls of Windows that Python does not offer. Each is looked up when it is needed: other systems have none."""

from __future__ import annotations

import errno
import importlib
import os
from typing import Any

NEW_GROUP = 0x200  # CREATE_NEW_PROCESS_GROUP
_READ, _WRITE, _SHARE_ALL = 0x80000000, 0x40000000, 7
_CREATE_NEW, _CREATE_ALWAYS, _OPEN_EXISTING, _OPEN_ALWAYS, _TRUNCATE_EXISTING = 1, 2, 3, 4, 5
_BACKUP_SEMANTICS, _NORMAL = 0x02000000, 0x80
_FAIL_AT_ONCE, _EXCLUSIVE = 1, 2
_FAR = (1 << 62) - 1
"""Offset of the byte that is locked: no file is so long, and Windows locks bytes that do not exist."""
_NO_DIALOGS = 0x8003  # SEM_FAILCRITICALERRORS, SEM_NOGPFAULTERRORBOX, SEM_NOOPENFILEERRORBOX
_QUERY_LIMITED, _STILL_ACTIVE = 0x1000, 259
_INVALID, _LOCKED, _SHARING, _EXISTS = (1 << 64) - 1, 33, 32, 183


def disposition(flags: int) -> int:
    """Return the argument of CreateFileW that does what flags of open(2) say."""
    create, new, cut = (bool(flags & each) for each in (os.O_CREAT, os.O_EXCL, os.O_TRUNC))
    if create and new:
        return _CREATE_NEW
    if create:
        return _CREATE_ALWAYS if cut else _OPEN_ALWAYS
    return _TRUNCATE_EXISTING if cut else _OPEN_EXISTING


def access(flags: int) -> int:
    """Return the access that flags of open(2) ask for; whoever writes may also rename and remove."""
    access = flags & (os.O_RDONLY | os.O_WRONLY | os.O_RDWR)
    return {os.O_RDONLY: _READ, os.O_WRONLY: _WRITE}.get(access, _READ | _WRITE)


def open_shared(path: str, flags: int, mode: int) -> int:
    handle = _create(path, access(flags), _SHARE_ALL, disposition(flags), _NORMAL)
    kept = flags & (os.O_APPEND | os.O_RDONLY | os.O_WRONLY | os.O_RDWR)
    return int(_msvcrt().open_osfhandle(handle, kept | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOINHERIT", 0)))


def open_folder(path: str) -> int:
    return int(_msvcrt().open_osfhandle(_create(path, _READ, _SHARE_ALL, _OPEN_EXISTING, _BACKUP_SEMANTICS), 0))


def lock_name(name: str) -> int:
    """Make a mutex of this name and return its handle. Raises BlockingIOError where another process has made it."""
    import ctypes

    kernel = kernel32()
    kernel.CreateMutexW.restype = ctypes.c_void_p
    handle = kernel.CreateMutexW(None, False, ctypes.c_wchar_p(name))
    if not handle:
        raise last_error(name)
    last: Any = ctypes
    if last.get_last_error() == _EXISTS:
        unlock_name(handle)
        raise BlockingIOError(errno.EAGAIN, "another process holds it", name)
    return int(handle)


def unlock_name(handle: int) -> None:
    import ctypes

    kernel32().CloseHandle(ctypes.c_void_p(handle))


def lock(fd: int) -> None:
    import ctypes

    class Overlapped(ctypes.Structure):
        _fields_ = (
            ("Internal", ctypes.c_void_p),
            ("InternalHigh", ctypes.c_void_p),
            ("Offset", ctypes.c_uint32),
            ("OffsetHigh", ctypes.c_uint32),
            ("hEvent", ctypes.c_void_p),
        )

    where = Overlapped(None, None, _FAR & 0xFFFFFFFF, _FAR >> 32, None)
    flags = _EXCLUSIVE | _FAIL_AT_ONCE
    if not kernel32().LockFileEx(_handle(fd), flags, 0, 1, 0, ctypes.byref(where)):
        raise last_error("a file that is to be locked")


def final_path(fd: int) -> str:
    import ctypes

    room = ctypes.create_unicode_buffer(32768)
    if not kernel32().GetFinalPathNameByHandleW(_handle(fd), room, len(room), 0):
        raise last_error("an open file")
    return room.value


def has_bytes(fd: int) -> bool:
    """Return whether a pipe has bytes to read or its end."""
    import ctypes

    waiting = ctypes.c_uint32()
    if kernel32().PeekNamedPipe(_handle(fd), None, 0, None, ctypes.byref(waiting), None):
        return waiting.value > 0
    return True


def peak_memory() -> int:
    import ctypes

    class Counters(ctypes.Structure):
        _fields_ = (
            ("cb", ctypes.c_uint32),
            ("PageFaultCount", ctypes.c_uint32),
            ("PeakWorkingSetSize", ctypes.c_size_t),
            ("rest", ctypes.c_size_t * 7),
        )

    found = Counters(ctypes.sizeof(Counters))
    kernel = kernel32()
    kernel.GetCurrentProcess.restype = ctypes.c_void_p
    own = ctypes.c_void_p(kernel.GetCurrentProcess())
    return found.PeakWorkingSetSize if kernel.K32GetProcessMemoryInfo(own, ctypes.byref(found), found.cb) else 0


def available_memory() -> int:
    import ctypes

    class Status(ctypes.Structure):
        _fields_ = (
            ("dwLength", ctypes.c_uint32),
            ("dwMemoryLoad", ctypes.c_uint32),
            ("ullTotalPhys", ctypes.c_uint64),
            ("ullAvailPhys", ctypes.c_uint64),
            ("rest", ctypes.c_uint64 * 5),
        )

    found = Status(ctypes.sizeof(Status))
    return found.ullAvailPhys if kernel32().GlobalMemoryStatusEx(ctypes.byref(found)) else 0


def start_time(pid: int) -> str | None:
    import ctypes

    kernel = kernel32()
    kernel.OpenProcess.restype = ctypes.c_void_p
    process = kernel.OpenProcess(_QUERY_LIMITED, False, pid)
    if not process:
        return None
    try:
        status, times = ctypes.c_uint32(), (ctypes.c_uint64 * 4)()
        places = [ctypes.byref(times, 8 * number) for number in range(4)]
        if not kernel.GetExitCodeProcess(ctypes.c_void_p(process), ctypes.byref(status)):
            return None
        if status.value != _STILL_ACTIVE or not kernel.GetProcessTimes(ctypes.c_void_p(process), *places):
            return None
        return str(times[0])
    finally:
        kernel.CloseHandle(ctypes.c_void_p(process))


def _create(path: str, access: int, shared: int, how: int, attributes: int) -> int:
    import ctypes

    call = kernel32().CreateFileW
    call.restype = ctypes.c_void_p
    call.argtypes = (
        *(ctypes.c_wchar_p, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p),
        *(ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p),
    )
    handle = call(path, access, shared, None, how, attributes, None)
    if handle in (None, _INVALID):
        raise last_error(path)
    return int(handle)


def _handle(fd: int) -> Any:
    import ctypes

    return ctypes.c_void_p(_msvcrt().get_osfhandle(fd))


def no_dialogs() -> None:
    """Let a process that crashes end, instead of waiting for somebody to close a window."""
    kernel32().SetErrorMode(_NO_DIALOGS)


def last_error(path: str) -> OSError:
    """Return the last error of a call; one of a lock or of sharing says that another process holds the file."""
    import ctypes

    last: Any = ctypes
    number = last.get_last_error()
    if number in (_LOCKED, _SHARING):
        return BlockingIOError(errno.EAGAIN, "another process holds it", path)
    made: Any = OSError
    error: OSError = made(0, last.FormatError(number), path, number)
    return error


def _msvcrt() -> Any:
    return importlib.import_module("msvcrt")


def kernel32() -> Any:
    """Return kernel32, whose errors are kept apart from those of other libraries."""
    import ctypes

    library: Any = ctypes
    return library.WinDLL("kernel32", use_last_error=True)
