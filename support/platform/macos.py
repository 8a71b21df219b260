"""macOS: `linux` documents each function. Nothing here was run on a Mac (docs/platforms.md).

Memory is not capped: the kernel of macOS accepts RLIMIT_DATA and does not apply it to what is mapped.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

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
    make_private,
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

NAME = "macOS"
CAPS = False
PASSES_FILES = True
RAY = True
KERNEL_FILES: tuple[str, ...] = ()
_SWAP, _EXCLUSIVE = 2, 4  # RENAME_SWAP and RENAME_EXCL of sys/stdio.h
_GET_PATH, _PATH_MAX = 50, 1024  # F_GETPATH of sys/fcntl.h


def sync_data(fd: int) -> None:
    """Flush a file; macOS has no fdatasync(2) that Python offers."""
    os.fsync(fd)


def rename_new(path: str, target: str) -> bool:
    """Use renamex_np(2), which APFS has and other file systems refuse."""
    number = _renamex(path, target, _EXCLUSIVE)
    if number in (0, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return number == 0
    raise OSError(number, os.strerror(number), target)


def exchange(path: str, other: str) -> bool:
    """Use renamex_np(2)."""
    return _renamex(path, other, _SWAP) == 0


def _renamex(path: str, other: str, flags: int) -> int:
    import ctypes

    call = getattr(ctypes.CDLL(None, use_errno=True), "renamex_np", None)
    if call is None:
        return errno.ENOSYS
    return 0 if call(os.fsencode(path), os.fsencode(other), flags) == 0 else ctypes.get_errno()


def nameless_file(folder: str) -> int:
    """Remove the name as soon as the file is open."""
    fd, path = tempfile.mkstemp(prefix="ggferry-nameless-", dir=folder)
    os.unlink(path)
    return fd


def place_of(fd: int) -> str:
    """Ask fcntl(2) for the path."""
    try:
        return os.fsdecode(fcntl.fcntl(fd, _GET_PATH, bytes(_PATH_MAX)).rstrip(b"\0"))
    except OverflowError as error:
        raise OSError(errno.ENAMETOOLONG, str(error)) from None


def real_path(path: str) -> str:
    """Resolve the links of the path: macOS opens nothing without the right to read it."""
    os.stat(path)
    return os.path.realpath(path, strict=True)


def cores() -> int:
    """Return all cores: a process of macOS is bound to none."""
    return os.cpu_count() or 1


def peak_memory() -> int:
    """Return what getrusage(2) says, which counts bytes here."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def data_in_use() -> int:
    """Return 0: nothing is capped."""
    return 0


def cap_memory(nbytes: int, reserved: int) -> None:
    """Do nothing: `CAPS` says so."""


def memory_cap() -> int | None:
    """Return None: there is no limit."""
    return None


@contextmanager
def lowered_memory(nbytes: int) -> Iterator[None]:
    """Do nothing: `CAPS` says so."""
    yield


def available_memory() -> int:
    """Return what vm_stat(1) counts as free, inactive or speculative; half of all memory where it says nothing."""
    try:
        output = subprocess.run(["vm_stat"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return vm_free(output)


def vm_free(output: str) -> int:
    """Return the bytes that a text of vm_stat(1) says a process can have."""
    head, *lines = output.splitlines()
    page = int(head.partition("page size of ")[2].split()[0])
    counts = {
        name: int(count.strip().rstrip(".")) for name, _, count in (line.partition(":") for line in lines) if count
    }
    return page * sum(counts.get(f"Pages {kind}", 0) for kind in ("free", "inactive", "speculative"))


def end_with_parent() -> None:
    """Do nothing: the closed pipe ends the process."""


def machine() -> tuple[str, int]:
    """Return when the machine was started, as sysctl(8) says it."""
    try:
        output = subprocess.run(["sysctl", "-n", "kern.boottime"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return "", 0
    return output.partition("sec = ")[2].partition(",")[0], 0


def start_time(pid: int) -> str | None:
    """Ask ps(1): macOS has no files about processes."""
    command = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
    output = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"}
    ).stdout.split()
    return None if not output or output[0].startswith("Z") else "-".join(output[1:]).replace(":", ".")
