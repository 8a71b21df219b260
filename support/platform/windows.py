"""Windows: `linux` documents each function. It was run by Python for Windows in Wine (docs/platforms.md).

A file is opened so that others may rename and remove it while it is open, as everywhere else: `os.open` forbids that.
Locks lie on one byte far behind every end, because a lock of Windows keeps other processes from reading what it covers.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import ggferry.support.platform._jobs as jobs
import ggferry.support.platform._kernel32 as kernel
from ggferry.support.platform.windows_names import unusable_name

if TYPE_CHECKING:
    import subprocess

__all__ = [
    "CAPS", "CLOEXEC", "DIRECTORY", "ENVIRONMENT", "FAULTS", "HELD", "KERNEL_FILES", "KILL", "NAME", "NOCTTY",
    "NOFOLLOW", "NONBLOCK", "OVER_TIME", "PASSES_FILES", "RAY", "available_memory", "bytes_on_disk", "cap_files",
    "cap_memory", "cores", "data_in_use", "end_group", "end_with_parent", "exchange", "free_bytes", "group_options",
    "hold_group", "home_variables", "is_own", "is_readable", "lock", "lock_folder", "longest_name",
    "lowered_memory", "machine", "make_private", "memory_cap", "nameless_file", "open_file", "open_folder",
    "peak_memory", "place_of", "pread", "pread_into", "pwrite", "real_path", "rename_new", "scan_folder",
    "start_time", "stat_file", "sync_data", "sync_folder", "unlock_folder", "unusable_name", "user_name",
    "write_no_core",
]  # fmt: skip

NAME = "Windows"
CAPS = False
PASSES_FILES = False
RAY = False
KERNEL_FILES: tuple[str, ...] = ()
NONBLOCK = NOCTTY = CLOEXEC = DIRECTORY = 0  # files of Windows do not block, and Python passes none on
NOFOLLOW = 1 << 30
"""A mark of our own among the flags, which `open_file` takes out."""
HELD = (errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES)
KILL = 9
ENVIRONMENT: tuple[str, ...] = (
    *("SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "COMSPEC", "PATHEXT", "TEMP", "TMP"),
    *("NUMBER_OF_PROCESSORS", "PROCESSOR_ARCHITECTURE"),
)
OVER_TIME: tuple[int, ...] = ()
FAULTS = ("0xC0000005", "0xC000001D", "0xC0000094", "0xC0000409")
"""Exit statuses of a fault: access violation, illegal instruction, division by zero, an abort of the C library."""
_LONGEST = 255
_groups: WeakKeyDictionary[subprocess.Popen[bytes], tuple[int, weakref.finalize[Any, Any]]] = WeakKeyDictionary()
"""The job of each group of processes, by its first process, and what closes it once nobody knows that process."""
_seeking: dict[int, threading.Lock] = {}
_guard = threading.Lock()


def open_file(path: str, flags: int, mode: int = 0o777) -> int:
    """Open with every sharing allowed, and in binary."""
    follow = not flags & NOFOLLOW
    flags &= ~NOFOLLOW
    if not follow and os.path.islink(path):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    if reason := unusable_name(os.path.basename(path)):
        raise OSError(errno.EINVAL, reason, path)
    return kernel.open_shared(path, flags, mode)


def open_folder(path: str, *, follow: bool = True) -> int:
    """Open a handle that can be asked for the folder's place, and nothing else."""
    found = os.stat(path)  # its error says why, where `isdir` would say no
    if not stat.S_ISDIR(found.st_mode) or (not follow and os.path.islink(path)):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    return kernel.open_folder(path)


def scan_folder(fd: int) -> AbstractContextManager[Iterator[os.DirEntry[str]]]:
    """List the place of the handle: Python lists no handle here."""
    return os.scandir(place_of(fd))


def stat_file(path: str) -> os.stat_result:
    """Ask the opened file: `os.stat` gives the time of its creation as ctime, `os.fstat` that of its change.

    They differ since Python 3.12 (python/cpython#157671), and every file that was written after it was created would
    seem to have changed.
    """
    fd = open_file(path, os.O_RDONLY)
    try:
        return os.fstat(fd)
    finally:
        os.close(fd)


def lock(fd: int) -> None:
    """Use LockFileEx."""
    kernel.lock(fd)


def lock_folder(path: str) -> int:
    """Hold a mutex of the system that is named by the folder's number, which a rename does not change."""
    if not os.path.isdir(path) or os.path.islink(path):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    found = os.stat(path)
    return kernel.lock_name(f"ggferry-{found.st_dev}-{found.st_ino}")


def unlock_folder(held: int) -> None:
    """Close the mutex."""
    kernel.unlock_name(held)


@contextmanager
def _at(fd: int, offset: int) -> Iterator[None]:
    """Move the position of an open file, and put it back; one thread at a time, for a descriptor has one position."""
    with _guard:
        held = _seeking.setdefault(fd, threading.Lock())
    with held:
        before = os.lseek(fd, 0, os.SEEK_CUR)
        os.lseek(fd, offset, os.SEEK_SET)
        try:
            yield
        finally:
            os.lseek(fd, before, os.SEEK_SET)


def pread(fd: int, size: int, offset: int) -> bytes:
    """Seek and read."""
    with _at(fd, offset):
        return os.read(fd, size)


def pread_into(fd: int, buffer: memoryview, offset: int) -> int:
    """Seek and read, a few MiB at a time: Python reads into no buffer here before 3.14."""
    with _at(fd, offset):
        data = os.read(fd, min(len(buffer), 4 << 20))
    buffer[: len(data)] = data
    return len(data)


def pwrite(fd: int, data: bytes | memoryview, offset: int) -> int:
    """Seek and write."""
    with _at(fd, offset):
        return os.write(fd, data)


def sync_data(fd: int) -> None:
    """Flush the whole file."""
    os.fsync(fd)


def sync_folder(folder: str) -> None:
    """Do nothing but look: NTFS writes names to its journal by itself."""
    os.stat(folder)


def rename_new(path: str, target: str) -> bool:
    """Use rename, which replaces nothing on Windows."""
    os.rename(path, target)
    return True


def exchange(path: str, other: str) -> bool:
    """Return False: two names change in two steps here."""
    return False


def nameless_file(folder: str) -> int:
    """Open a file that the system removes when it is closed."""
    fd, path = tempfile.mkstemp(prefix="ggferry-nameless-", dir=folder)
    os.close(fd)
    fd = open_file(path, os.O_RDWR)
    os.unlink(path)
    return fd


def make_private(fd: int) -> None:
    """Do nothing: who may read a file is inherited from its folder."""


def place_of(fd: int) -> str:
    """Ask for the final path, without the mark of long paths before it."""
    return plain_path(kernel.final_path(fd))


def plain_path(path: str) -> str:
    """Return a path without `\\\\?\\`."""
    if path.startswith("\\\\?\\UNC\\"):
        return "\\\\" + path[8:]
    return path.removeprefix("\\\\?\\")


def real_path(path: str) -> str:
    """Resolve the links of the path."""
    os.stat(path)
    return os.path.realpath(path, strict=True)


def free_bytes(folder: str) -> int:
    """Ask shutil, which asks the system."""
    import shutil

    return shutil.disk_usage(folder).free


def bytes_on_disk(fd: int) -> int:
    """Return the file's size: a file is sparse only where a program asks for it."""
    return os.fstat(fd).st_size


def user_name() -> str:
    """Return the name that Windows gives to every program."""
    return os.environ.get("USERNAME", "unknown")


def is_own(status: os.stat_result) -> bool:
    """Return False: modes say nothing of who may read."""
    return False


def cap_files(nbytes: int) -> None:
    """Do nothing: `CAPS` says so."""


def cap_memory(nbytes: int, reserved: int) -> None:
    """Cap what this process commits, by a job of its own: addresses that are only reserved do not count.

    `CAPS` does not promise it: no Windows has shown yet that it holds, and Wine takes the cap and does not apply it.
    """
    jobs.add_this_process(jobs.new_job(memory=nbytes))


def write_no_core() -> None:
    """Let a crash open no window: Windows writes no image by default."""
    kernel.no_dialogs()


def memory_cap() -> int | None:
    """Return None: there is no limit."""
    return None


def data_in_use() -> int:
    """Return 0: nothing is capped."""
    return 0


@contextmanager
def lowered_memory(nbytes: int) -> Iterator[None]:
    """Do nothing: `CAPS` says so."""
    yield


def cores() -> int:
    """Return the cores that this process may use where Python knows them (3.13), else all."""
    count: Any = getattr(os, "process_cpu_count", os.cpu_count)
    return count() or 1


def peak_memory() -> int:
    """Ask GetProcessMemoryInfo."""
    return kernel.peak_memory()


def available_memory() -> int:
    """Ask GlobalMemoryStatusEx."""
    return kernel.available_memory()


def end_with_parent() -> None:
    """Do nothing: the closed pipe ends the process."""


def machine() -> tuple[str, int]:
    """Return nothing but that this is Windows: times of processes begin with no boot."""
    return "windows", 0


def start_time(pid: int) -> str | None:
    """Ask GetProcessTimes."""
    return kernel.start_time(pid)


def group_options() -> Mapping[str, Any]:
    """Ask for a group of processes that Ctrl-C of the console does not reach."""
    return {"creationflags": kernel.NEW_GROUP}


def hold_group(process: subprocess.Popen[bytes]) -> None:
    """Put it into a job, which ends with this process, too. Where that is refused, `end_group` has another way."""
    handle: Any = process
    with suppress(OSError):
        job = jobs.new_job(kill_on_close=True)
        try:
            jobs.add_process(job, int(handle._handle))
        except OSError:  # it is in a job that allows no other
            jobs.close(job)
            raise
        _groups[process] = job, weakref.finalize(process, jobs.close, job)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End its job; without one use taskkill, or end the process itself where that is missing."""
    if (held := _groups.pop(process, None)) is not None:
        held[1].detach()
        jobs.end(held[0])
    elif process.poll() is None:
        import subprocess

        with suppress(OSError):
            subprocess.run(["taskkill", "/F", "/T", "/PID", str(process.pid)], capture_output=True, check=False)
        with suppress(OSError):
            process.kill()


def home_variables(folder: str) -> dict[str, str]:
    """Name the folder as programs of Windows and as those of Unix look for it."""
    return dict.fromkeys(("USERPROFILE", "HOME", "APPDATA", "LOCALAPPDATA"), folder)


def is_readable(fd: int, seconds: float | None) -> bool:
    """Look into the pipe again and again: Windows cannot wait for one."""
    import time

    end = None if seconds is None else time.monotonic() + seconds
    while not kernel.has_bytes(fd):
        if end is not None and time.monotonic() >= end:
            return False
        time.sleep(0.005)
    return True


def longest_name(folder: str) -> int:
    """Return what NTFS allows."""
    return _LONGEST
