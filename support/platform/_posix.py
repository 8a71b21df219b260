"""What Linux and macOS have in common."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import signal
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess

NOFOLLOW, NONBLOCK, NOCTTY, CLOEXEC = os.O_NOFOLLOW, os.O_NONBLOCK, os.O_NOCTTY, os.O_CLOEXEC
DIRECTORY = os.O_DIRECTORY
HELD = (errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES)
"""Error numbers of `lock` that say that another process has it; others say that there are no locks."""
KILL = int(signal.SIGKILL)
"""The signal by whose number a killed process says so."""
OVER_TIME: tuple[int, ...] = (int(signal.SIGXCPU), KILL)
"""Signals that end a process whose processor time is used up."""
ENVIRONMENT: tuple[str, ...] = ()
"""Variables without which a process does not start, or finds no place for temporary files."""
FAULTS = ("SIGABRT", "SIGSEGV", "SIGFPE", "SIGILL", "SIGBUS")


def open_file(path: str, flags: int, mode: int = 0o777) -> int:
    """Open a file and return its descriptor, whose bytes are never translated. Raises OSError."""
    return os.open(path, flags, mode)


def open_folder(path: str, *, follow: bool = True) -> int:
    """Open a folder and return its descriptor. Raises OSError."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))


def scan_folder(fd: int) -> AbstractContextManager[Iterator[os.DirEntry[str]]]:
    """Return what an open folder contains. Raises OSError."""
    return os.scandir(fd)


def stat_file(path: str) -> os.stat_result:
    """Return the status of a file, which compares with that of an open one. Raises OSError."""
    return os.stat(path)


def lock(fd: int) -> None:
    """Lock an open file until it is closed or the process ends. Raises OSError, of `HELD` where another has it."""
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def lock_folder(path: str) -> int:
    """Lock a folder that is no link until `unlock_folder` or the process's end. Raises OSError."""
    fd = open_folder(path, follow=False)
    try:
        lock(fd)
    except OSError:
        os.close(fd)
        raise
    return fd


def unlock_folder(held: int) -> None:
    """Let go of a folder's lock. Raises OSError."""
    os.close(held)


def pread(fd: int, size: int, offset: int) -> bytes:
    """Read at an offset; fewer bytes may come. Raises OSError."""
    return os.pread(fd, size, offset)


def pread_into(fd: int, buffer: memoryview, offset: int) -> int:
    """Read into a buffer at an offset and return how many bytes came. Raises OSError."""
    return os.preadv(fd, [buffer], offset)


def pwrite(fd: int, data: bytes | memoryview, offset: int) -> int:
    """Write at an offset and return how many bytes were taken. Raises OSError."""
    return os.pwrite(fd, data, offset)


def sync_folder(folder: str) -> None:
    """Flush the names in a folder to disk, where its file system can. Raises OSError for a folder that is not there."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # some file systems cannot sync a folder
            os.fsync(fd)
    finally:
        os.close(fd)


def make_private(fd: int) -> None:
    """Let only its owner read and write an open file. Raises OSError."""
    os.fchmod(fd, 0o600)


def free_bytes(folder: str) -> int:
    """Return the bytes that the file system of a folder has left for us. Raises OSError."""
    state = os.statvfs(folder)
    return state.f_bavail * state.f_frsize


def bytes_on_disk(fd: int) -> int:
    """Return the bytes that an open file takes on its disk: those of a sparse one are fewer than its size."""
    return os.fstat(fd).st_blocks * 512


def user_name() -> str:
    """Return the number of the user, for a process whose user has no name."""
    return str(os.getuid())


def is_own(status: os.stat_result) -> bool:
    """Return whether a file is of the user that this process runs as."""
    return status.st_uid == os.geteuid()


# --- limits of this process ----------------------------------------------------------------------------------------


def cap_files(nbytes: int) -> None:
    """Let no file that this process writes become larger; to write more of it is an error. Raises OSError."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a file that would be larger is an error of the write
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, nbytes))


def cap_memory(nbytes: int, reserved: int) -> None:
    """Cap the data of this process, and with `reserved` more its addresses. Raises OSError."""
    resource.setrlimit(resource.RLIMIT_DATA, (nbytes, nbytes))
    space = nbytes + reserved
    resource.setrlimit(resource.RLIMIT_AS, (space, space))


def write_no_core() -> None:
    """Let this process leave no image of its memory where it crashes."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def memory_cap() -> int | None:
    """Return the bytes of data that a process started by this one may have; None: no limit."""
    cap = resource.getrlimit(resource.RLIMIT_DATA)[1]
    return None if cap == resource.RLIM_INFINITY else cap


@contextmanager
def lowered_memory(nbytes: int) -> Iterator[None]:
    """Cap the data of this process for a while."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    lower = nbytes if before[0] == resource.RLIM_INFINITY else min(before[0], nbytes)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, (lower, before[1]))
    try:
        yield
    finally:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_DATA, before)


# --- other processes -----------------------------------------------------------------------------------------------


def group_options() -> Mapping[str, Any]:
    """Return the arguments of Popen that make a process the first of a group of its own."""
    return {"start_new_session": True}


def hold_group(process: subprocess.Popen[bytes]) -> None:
    """Make a process that was just started with `group_options` one whose group `end_group` ends."""


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End at once a process that was started with `group_options`, and all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def is_readable(fd: int, seconds: float | None) -> bool:
    """Wait, at most so long, until a pipe has something to read or its end."""
    import select

    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if seconds is None else seconds * 1000))


def home_variables(folder: str) -> dict[str, str]:
    """Return the variables by which a process takes a folder for its user's home."""
    return {"HOME": folder}


# --- names of a file system ----------------------------------------------------------------------------------------


def longest_name(folder: str) -> int:
    """Return how many bytes a name in a folder may have."""
    try:
        return os.pathconf(folder or os.curdir, "PC_NAME_MAX")
    except (OSError, ValueError):
        return 255


def unusable_name(name: str) -> str | None:
    """Return why no file can have this name here; None where one can."""
    return None
