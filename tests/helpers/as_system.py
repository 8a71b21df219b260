"""Let ggferry's own code see what Windows or macOS would show it: `GGFERRY_AS=windows pytest …`.

Modules and attributes that the system lacks cannot be imported or found by files of ggferry, in this process and in the
Python processes that it starts; libraries keep them, as their own builds for that system have their own ways. The
platform room takes that system's module. What that one asks of Windows's kernel32 is answered by Linux
(`_STAND_INS`): its locks, its paths of open files. So this shows that nothing of Linux is needed by name, and how the
portable ways work; it does not show what a real Windows or macOS does.

As a program: `as_system.py SYSTEM (-c CODE | -m MODULE | SCRIPT) ARGUMENT…`.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

try:
    import fcntl
    import resource
except ImportError:  # on Windows itself, where nothing stands in for anything
    pass

VARIABLE = "GGFERRY_AS"
ROOT = Path(__file__).resolve().parents[2]
OURS = tuple(f"{ROOT}/{room}/" for room in ("support", "quant", "formats", "converters", "service"))
PLATFORMS = {"windows": "win32", "macos": "darwin"}
_LINUX_OS = """O_TMPFILE O_PATH O_DIRECT O_LARGEFILE O_NOATIME O_RSYNC fdatasync sched_getaffinity sched_setaffinity
    posix_fadvise posix_fallocate memfd_create copy_file_range pidfd_open getrandom splice eventfd getxattr setxattr
    listxattr removexattr setresuid setresgid getresuid getresgid unshare setns"""
_UNIX_OS = """O_NOFOLLOW O_DIRECTORY O_NONBLOCK O_CLOEXEC O_NOCTTY O_SYNC O_DSYNC O_ASYNC O_NDELAY O_ACCMODE pread
    preadv pwrite pwritev fchmod fchown chown lchown chroot getuid geteuid getgid getegid getgroups
    setuid setgid statvfs fstatvfs killpg setsid setpgid getpgid getpgrp fork forkpty wait wait3 wait4
    waitid nice pathconf fpathconf mkfifo mknod posix_spawn posix_spawnp sysconf confstr getloadavg
    uname sync sendfile fchdir lockf WNOHANG WIFEXITED ctermid openpty ttyname readv writev"""
GONE: dict[str, dict[str, set[str]]] = {
    "macos": {"os": {*_LINUX_OS.split()}, "signal": {"SIGPWR", "SIGSTKFLT", "SIGPOLL", "SIGRTMIN", "SIGRTMAX"}},
    "windows": {
        "os": {*_LINUX_OS.split(), *_UNIX_OS.split()},
        "signal": {each.name for each in signal.Signals}
        - {*["SIGABRT", "SIGFPE", "SIGILL", "SIGINT", "SIGSEGV", "SIGTERM"]},
        "select": {"poll", "epoll"},
        "socket": {"AF_UNIX", "send_fds", "recv_fds"},
    },
}
MISSING = {"macos": {"msvcrt"}, "windows": {*["fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog"]}}


class View(ModuleType):
    """A module without some of its attributes, and with others in the place of some."""

    def __init__(self, real: ModuleType, gone: set[str], other: Mapping[str, Any]) -> None:
        self.__dict__.update(__name__=real.__name__, _real=real, _gone=gone, _other=other, _before={})

    def __getattr__(self, name: str) -> Any:
        if name in self._gone:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r} on this system")
        return self._other[name] if name in self._other else getattr(self._real, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._before.setdefault(name, getattr(self._real, name))
        setattr(self._real, name, value)

    def __delattr__(self, name: str) -> None:
        """Undo the first change: pytest's monkeypatch does not find the attribute in the view itself."""
        setattr(self._real, name, self._before.pop(name))


def _rename(path: Any, target: Any) -> None:
    """Replace nothing, as Windows does."""
    if os.path.lexists(target):
        raise FileExistsError(17, os.strerror(17), path, None, target)
    os.rename(path, target)


class _CDLL(ctypes.CDLL):
    """A library, which has a name: nothing is found by the process itself."""

    def __init__(self, name: Any, *rest: Any, **named: Any) -> None:
        if name is None:
            raise TypeError("argument of type 'NoneType' is not iterable")
        super().__init__(name, *rest, **named)


def become(system: str) -> None:
    """Let what is imported of ggferry from now on see that system; `ggferry` is not imported yet."""
    assert not any(name.startswith("ggferry.") for name in sys.modules), "ggferry was imported before"
    real = builtins.__import__
    changed: dict[str, dict[str, Any]] = {"os": {"rename": _rename}} if system == "windows" else {}
    if system == "windows":
        GONE[system]["ctypes"], changed["ctypes"] = {"PyDLL"}, {"CDLL": _CDLL}
    views = {name: View(real(name), gone, changed.get(name, {})) for name, gone in GONE[system].items()}

    def imported(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        if not globals or not str(globals.get("__file__", "")).startswith(OURS):
            return real(name, globals, locals, fromlist, level)
        if name in MISSING[system]:
            raise ModuleNotFoundError(f"No module named {name!r} (as {system})", name=name)
        if name == "sys" and globals["__name__"] == "ggferry.support.platform":
            return SimpleNamespace(platform=PLATFORMS[system])
        if name in views:
            return views[name]
        found = real(name, globals, locals, fromlist, level)
        if name in _STAND_INS:
            vars(sys.modules[name]).update(_STAND_INS[name])
        return found

    builtins.__import__ = imported
    _lead_children(system)


def _lead_children(system: str) -> None:
    """Start Python programs by this one, and give Linux no flags of Windows."""
    start = subprocess.Popen.__init__

    def started(self: Any, args: Any, *rest: Any, **named: Any) -> None:
        if named.pop("creationflags", 0):
            named["start_new_session"] = True
        if isinstance(args, list | tuple) and args:
            args = _led([os.fspath(each) for each in args], system)
        start(self, args, *rest, **named)
        self._handle = self.pid

    subprocess.Popen.__init__ = started  # type: ignore[method-assign]


def _led(command: list[str], system: str) -> list[str]:
    if os.path.basename(command[0]) == "ggferry":
        command = [sys.executable, *command]
    if os.path.basename(command[0]) != os.path.basename(sys.executable) or __file__ in command:
        return command
    at = 1
    while at < len(command) and command[at].startswith("-") and command[at] not in ("-c", "-m", "-"):
        at += 2 if command[at] in ("-X", "-W") else 1
    if at >= len(command) or command[at] == "-":
        return command
    return [*command[:at], __file__, system, *command[at:]]


def current() -> str:
    """Return the system that tests see."""
    return {"win32": "windows", "darwin": "macos"}.get(sys.platform) or os.environ.get(VARIABLE) or "linux"


def start() -> None:
    """Become the system that the environment names, if any."""
    if system := os.environ.get(VARIABLE):
        become(system)


# --- what answers for kernel32 ------------------------------------------------------------------------------------


def _lock(fd: int) -> None:
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _lock_name(name: str) -> int:
    fd = os.open(os.path.join(tempfile.gettempdir(), f"{name}.mutex"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _lock(fd)
    except OSError:
        os.close(fd)
        raise
    return fd


def _unlock_name(fd: int) -> None:
    with contextlib.suppress(OSError):
        os.unlink(os.readlink(f"/proc/self/fd/{fd}"))
    os.close(fd)


def _has_bytes(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def _available_memory() -> int:
    facts = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(facts["MemAvailable"].split()[0]) << 10


def _start_time(pid: int) -> str | None:
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]
    return None


_jobs: dict[int, list[int]] = {}


def _new_job(**_: Any) -> int:
    job = max(_jobs, default=0) + 1
    _jobs[job] = []
    return job


def _end_job(job: int) -> None:
    for pid in _jobs.pop(job):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


_KERNEL: dict[str, Any] = {
    "open_shared": lambda path, flags, mode: os.open(path, flags | os.O_CLOEXEC, mode),
    "open_folder": lambda path: os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC),
    "lock": _lock,
    "lock_name": _lock_name,
    "unlock_name": _unlock_name,
    "final_path": lambda fd: os.readlink(f"/proc/self/fd/{fd}"),
    "has_bytes": _has_bytes,
    "peak_memory": lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    "available_memory": _available_memory,
    "start_time": _start_time,
    "no_dialogs": lambda: None,
}
_JOBS: dict[str, Any] = {
    "new_job": _new_job,
    "add_process": lambda job, pid: _jobs[job].append(pid),
    "add_this_process": lambda job: None,
    "end": _end_job,
    "close": lambda job: _jobs.pop(job, None),
}
_STAND_INS = {"ggferry.support.platform._kernel32": _KERNEL, "ggferry.support.platform._jobs": _JOBS}


def stand_in(monkeypatch: Any) -> None:
    """Let Linux answer, within a test, what Windows's module asks of its kernel."""
    for name, calls in _STAND_INS.items():
        for call, stand in calls.items():
            monkeypatch.setattr(f"{name}.{call}", stand)


def main() -> None:
    """Run a program as that system would."""
    import runpy

    system, kind, *rest = sys.argv[1:]
    become(system)
    if not sys.flags.safe_path:
        sys.path[0] = "" if kind in ("-c", "-m") else os.path.dirname(os.path.abspath(kind))
    if kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), vars(sys.modules["__main__"]))
    elif kind == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [kind, *rest]
        runpy.run_path(kind, run_name="__main__")


if __name__ == "__main__":
    main()
