"""Commands of ggferry as forks of one process that has imported it: starting Python took most of the time of a sweep.

`Launcher.popen` takes the place of `subprocess.Popen` for `python -m ggferry …`, and the workers of a command that was
started so are forks, too: each command has some in reserve from before its first thread, because a fork of a process
that has threads may find locks of others held for ever. What a command imports that no earlier one did is imported
here before the next. The samples of `make slow` start Python each time, as users do.
"""

from __future__ import annotations

import array
import ctypes
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from faults.interference import VARIABLE

WORKERS = 2  # in reserve of each command; a further one is started as users' are
PRELOADED = (
    *("ggferry", "numpy", "numba", "llvmlite", "blake3", "typer", "click", "sqlalchemy", "sqlite3", "alembic"),
    *("fastapi", "starlette", "uvicorn", "pydantic", "pydantic_core", "anyio", "h11", "jinja2", "multipart"),
)
"""Packages of which modules are imported here: they start no thread. Those of Python itself are, too."""
_MOST = 1 << 20  # bytes of a message
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of linux/prctl.h


class Forked:
    """What is used here of `subprocess.Popen`, of a process that `Launcher.popen` started."""

    def __init__(self, answers: socket.socket) -> None:
        self._answers = answers
        self.pid: int = json.loads(answers.recv(_MOST))
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, as subprocess has it; raises TimeoutExpired."""
        if self.returncode is None:
            self._answers.settimeout(timeout)
            try:
                self.returncode = os.waitstatus_to_exitcode(json.loads(self._answers.recv(_MOST)))
            except TimeoutError:
                raise subprocess.TimeoutExpired("ggferry", timeout or 0) from None
            self._answers.close()
        return self.returncode

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(1e-6)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Launcher:
    """The process, until `close`; `library` is that of shim.c."""

    def __init__(self, library: Path, folder: Path) -> None:
        self.modules = folder / "modules"
        self.modules.mkdir()
        self._here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        threads = dict.fromkeys(("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        environment = {
            **os.environ,
            **threads,
            "LD_PRELOAD": str(library),
            "PYTHONPATH": str(Path(__file__).parents[1]),
        }
        environment.pop(VARIABLE, None)
        command = [sys.executable, "-m", "faults.launcher", str(there.fileno()), str(library), str(self.modules)]
        self._process = subprocess.Popen(command, env=environment, pass_fds=(there.fileno(),))
        there.close()

    def popen(self, command: Sequence[str], *, stdout: Any, stderr: Any, env: Mapping[str, str], **_: Any) -> Forked:
        """Start `python -m ggferry WORDS…`, the first of a session of its own; stderr goes where stdout goes."""
        assert command[:3] == [sys.executable, "-m", "ggferry"] and stderr in (stdout, subprocess.STDOUT)
        answers, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        order = {"words": command[3:], "environment": dict(env)}
        rights = array.array("i", [far.fileno(), stdout.fileno()])
        self._here.sendmsg([json.dumps(order).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        far.close()
        return Forked(answers)

    def close(self) -> None:
        self._here.close()
        self._process.wait(60)


# --- the process ---------------------------------------------------------------------------------------------------


def serve(orders: socket.socket, library: ctypes.CDLL, modules: Path) -> list[str] | None:
    """Start what is asked for and say how it ended. Returns in each child: its words; None at the end."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1)  # of workers whose command was killed
    running: dict[int, socket.socket] = {}
    waiting = selectors.DefaultSelector()
    waiting.register(orders, selectors.EVENT_READ)
    wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)[::-1]
    waiting.register(woken, selectors.EVENT_READ)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        for key, _ in waiting.select():
            if key.fd == woken:
                os.read(woken, 1 << 16)
                reap(running)
                continue
            content, files, *_ = socket.recv_fds(orders, _MOST, 2)
            if not content:
                return None
            preload(modules)
            order, answers = json.loads(content), socket.socket(fileno=files[0])
            child = os.fork()
            if child == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for each in (*running.values(), orders, answers, waiting):
                    each.close()
                os.close(wake)
                os.close(woken)
                become(order["environment"], files[1], library)
                return list(order["words"])
            os.close(files[1])
            answers.send(json.dumps(child).encode())
            running[child] = answers


def reap(running: dict[int, socket.socket]) -> None:
    """Answer for each child that has ended."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if (answers := running.pop(ended[0], None)) is not None:
                with suppress(OSError):  # nobody asks any more
                    answers.send(json.dumps(ended[1]).encode())
                answers.close()


def preload(modules: Path) -> None:
    """Import what commands wrote down at their ends."""
    for path in modules.iterdir():
        for name in path.read_text().split():
            if name not in sys.modules and name.partition(".")[0] in (*PRELOADED, *sys.stdlib_module_names):
                with suppress(ImportError):
                    importlib.import_module(name)
        path.unlink()


def note(modules: Path, known: set[str]) -> None:
    """Write down what was imported beside `known`."""
    if found := [name for name in sys.modules if name not in known and name != "__main__"]:
        with suppress(OSError), tempfile.NamedTemporaryFile("w", dir=modules, delete=False) as file:
            file.write("\n".join(found))


def become(environment: Mapping[str, str], out: int, library: ctypes.CDLL) -> None:
    """Make this fork a process with an environment and an output of its own."""
    os.setsid()
    for number in (1, 2):
        os.dup2(out, number)
    os.close(out)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    library.ggferry_take_orders(os.fsencode(environment[VARIABLE]))


# --- its workers ---------------------------------------------------------------------------------------------------


class Reserve:
    """Workers that wait to be started; `begin` returns in each of them: its arguments."""

    def __init__(self) -> None:
        self.sockets: list[socket.socket] = []
        self.pids: list[int] = []

    def begin(self) -> list[str] | None:
        for _ in range(WORKERS):
            here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            child = os.fork()
            if child == 0:
                for each in (*self.sockets, here):
                    each.close()
                return self._wait(there)
            there.close()
            self.sockets.append(here)
            self.pids.append(child)
        return None

    @staticmethod
    def _wait(orders: socket.socket) -> list[str]:
        content, files, *_ = socket.recv_fds(orders, _MOST, 3)
        if not content:  # it is not needed
            os._exit(0)
        order = json.loads(content)
        os.setsid()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        orders.close()
        os.environ.clear()
        os.environ.update(order["environment"])
        tempfile.tempdir = None
        os.chdir(order["folder"])
        return list(order["arguments"])

    def popen(self, command: Sequence[str], **options: Any) -> Any:
        """Take the place of subprocess.Popen in `service.workers.supervisor`."""
        try:
            orders, pid = self.sockets.pop(), self.pids.pop()
        except IndexError:
            return subprocess.Popen(command, **options)
        assert command[1:4] == ["-P", "-m", "ggferry.service.workers.process"] and options["start_new_session"]
        return Worker(orders, pid, command[4:], options["stderr"], options["env"], options["cwd"])


class Worker:
    """What `service.workers.supervisor` uses of subprocess.Popen."""

    def __init__(
        self, orders: socket.socket, pid: int, arguments: Sequence[str], errors: Any, env: Mapping[str, str], cwd: str
    ) -> None:
        self.pid, self.returncode, self._lock = pid, None, threading.Lock()
        theirs, ours = os.pipe2(os.O_CLOEXEC)
        mine, out = os.pipe2(os.O_CLOEXEC)
        self.stdin, self.stdout = open(ours, "wb"), open(mine, "rb", 0)  # noqa: SIM115 — closed by the supervisor
        order = json.dumps({"arguments": list(arguments), "environment": dict(env), "folder": cwd}).encode()
        socket.send_fds(orders, [order], [theirs, out, errors.fileno()])
        for each in (theirs, out):
            os.close(each)
        orders.close()

    returncode: int | None

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        until = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if until is not None and time.monotonic() > until:
                raise subprocess.TimeoutExpired("worker", timeout or 0)
            time.sleep(0.002)
        assert self.returncode is not None
        return self.returncode

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


class _Subprocess:
    """The module `subprocess` as a supervisor sees it."""

    TimeoutExpired, PIPE = subprocess.TimeoutExpired, subprocess.PIPE

    def __init__(self, reserve: Reserve) -> None:
        self.Popen = reserve.popen


def main() -> None:
    import ggferry.service.cli.app
    import ggferry.service.workers.commands
    import ggferry.service.workers.process
    import ggferry.service.workers.supervisor as supervisor
    from ggferry.service.cli.start import main as start

    orders = socket.socket(fileno=int(sys.argv[1]))
    library, modules = ctypes.CDLL(sys.argv[2]), Path(sys.argv[3])
    words = serve(orders, library, modules)
    if words is None:
        return
    known = set(sys.modules)
    reserve = Reserve()
    arguments = reserve.begin()
    try:
        if arguments is not None:
            sys.argv, leave = ["process", *arguments], os._exit
            os._exit = lambda code: (note(modules, known), leave(code))  # type: ignore[assignment, func-returns-value]
            ggferry.service.workers.process.main()
        else:
            supervisor.subprocess = _Subprocess(reserve)  # type: ignore[attr-defined]
            sys.argv = ["ggferry", *words]
            start()
    finally:
        note(modules, known)


if __name__ == "__main__":
    main()
