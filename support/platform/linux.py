"""Linux. What else is documented is in `_posix`."""

from __future__ import annotations

import errno
import os
import resource
import signal
from contextlib import suppress

from ggferry.support.platform._posix import (
    CLOEXEC,
    DIRECTORY,
    ENVIRONMENT,
    FAULTS,
    HELD,
    KILL,
    NOCTTY,
    NOFOLLOW,
    NONBLOCK,
    OVER_TIME,
    bytes_on_disk,
    cap_files,
    cap_memory,
    end_group,
    free_bytes,
    group_options,
    hold_group,
    home_variables,
    is_own,
    is_readable,
    lock,
    lock_folder,
    longest_name,
    lowered_memory,
    make_private,
    memory_cap,
    open_file,
    open_folder,
    pread,
    pread_into,
    pwrite,
    scan_folder,
    stat_file,
    sync_folder,
    unlock_folder,
    unusable_name,
    user_name,
    write_no_core,
)

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

NAME = "Linux"
CAPS = True
"""Whether the memory of a process can be capped."""
PASSES_FILES = True
"""Whether sockets are files that pass open files to another process."""
RAY = True
"""Whether Ray's engine is offered."""
KERNEL_FILES = ("/proc/", "/sys/")
"""Where files are of the kernel, and no model's."""
_AT_FDCWD, _NOREPLACE, _EXCHANGE = -100, 1, 2  # linux/fcntl.h, linux/fs.h
_PR_SET_PDEATHSIG = 1


def sync_data(fd: int) -> None:
    """Flush an open file's bytes to disk, not its times. Raises OSError."""
    os.fdatasync(fd)


def rename_new(path: str, target: str) -> bool:
    """Give a file or folder a name that must be free; False where the system cannot do that in one step.

    Raises FileExistsError or another OSError.
    """
    number = _renameat2(path, target, _NOREPLACE)
    if number in (0, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return number == 0
    raise OSError(number, os.strerror(number), target)


def exchange(path: str, other: str) -> bool:
    """Let two files or folders change names in one step; False where that was not done."""
    return _renameat2(path, other, _EXCHANGE) == 0


def _renameat2(path: str, other: str, flags: int) -> int:
    """Return 0 or the number of the error; ENOSYS where the C library has no such call."""
    import ctypes

    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return errno.ENOSYS
    if call(_AT_FDCWD, os.fsencode(path), _AT_FDCWD, os.fsencode(other), flags) == 0:
        return 0
    return ctypes.get_errno()


def nameless_file(folder: str) -> int:
    """Open a file of a folder that has no name and is gone when it is closed. Raises OSError."""
    return os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)


def place_of(fd: int) -> str:
    """Return where an open file lies. Raises OSError where the system does not say."""
    return os.readlink(f"/proc/self/fd/{fd}")


def real_path(path: str) -> str:
    """Return where a file or folder lies, links followed, without reading it. Raises OSError, ValueError."""
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        return place_of(fd)
    finally:
        os.close(fd)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def peak_memory() -> int:
    """Return the most resident memory this process had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def data_in_use() -> int:
    """Return the bytes that count against RLIMIT_DATA (proc(5), statm: data and stack)."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[5]) * resource.getpagesize()


def available_memory() -> int:
    """Return the bytes that a new process can have without swapping."""
    with open("/proc/meminfo", encoding="ascii") as file:
        facts = dict(line.split(":", 1) for line in file)
    return int(facts["MemAvailable"].split()[0]) << 10


def end_with_parent() -> None:
    """Let the system end this process when its parent ends, where it can; the closed pipe ends it elsewhere."""
    import ctypes

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def machine() -> tuple[str, int]:
    """Return marks of this boot of the machine and of its space of process numbers; empty where none are known."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()[:8]
        return boot, os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return "", 0


def start_time(pid: int) -> str | None:
    """Return a mark of when a process began; None for one that does not live."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]
    except OSError:
        return None
