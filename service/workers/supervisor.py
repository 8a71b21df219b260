"""Supervise a worker process: memory cap, clean environment, time limit. Whatever it does, the caller survives.

A `Supervisor` belongs to one thread, which must outlive it (the worker dies with the thread that started it).
"""

from __future__ import annotations

import json
import os
import signal
import site
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ggferry
from ggferry.formats.packed.scratch import Scratch
from ggferry.service.workers.messages import Event, Question, Reply
from ggferry.support.platform import here

KEPT = (
    "PATH",
    "LANG",
    "LANGUAGE",
    "TZ",
    "VIRTUAL_ENV",
    "LD_LIBRARY_PATH",
    "KMP_AFFINITY",  # how torch binds its threads
    "NUMBA_CPU_NAME",
    "NUMBA_CPU_FEATURES",
    "COVERAGE_PROCESS_START",
    *here.ENVIRONMENT,
)
"""The whole environment of a worker, besides LC_*, PLACES and the place of our own package.

It contains nothing that could be a token, and a home without any.
"""
PLAIN = {"NO_COLOR": "1", "TOKENIZERS_PARALLELISM": "false"}
PLACES = ("TMPDIR", "NUMBA_CACHE_DIR", "GGFERRY_TRACE")  # kept as absolute paths: a worker stands elsewhere
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
JOBS_A_WORKER = 200  # then a fresh one: what hostile files may have left in memory goes with the old
OUT_OF_MEMORY = "OutOfMemory"
STDERR_SHOWN = 400
GRACE = 2.0  # seconds a worker has to remove what it began; then it is killed
LINE_CAP = 1 << 30  # bytes of one event; a receipt of 10^5 tensors has 60 MB


class WorkerDied(Exception):
    """The process ended without an answer. `signal`: what killed it, or None; `reason`: in words."""

    def __init__(self, reason: str, number: int | None = None) -> None:
        super().__init__(reason)
        self.reason, self.signal = reason, number


class WorkerTimeout(Exception):
    """The time limit passed; the process was killed."""


class WorkerFailed(Exception):
    """The job ended with an error. `error`: as plain data, with 'class'; `peak`: bytes."""

    def __init__(self, error: Mapping[str, Any], peak: int) -> None:
        super().__init__(error.get("message", ""))
        self.error, self.peak = error, peak


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a command, and the most memory its process had so far, in bytes."""

    result: Any
    peak: int


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one worker: bytes of memory (0: no cap), threads, bytes of a file it writes (0: no cap)."""

    memory: int = 4 << 30
    threads: int = 1
    file_size: int = 0


class Supervisor:
    """Starts a worker when there is work, again when it is gone, and a fresh one after `jobs` jobs.

    `on_event` and `on_ask` are described at `run`.
    """

    def __init__(self, limits: Limits, scratch: str | None = None, jobs: int = JOBS_A_WORKER) -> None:
        self.limits, self.jobs = limits, jobs
        self._scratch = Scratch(scratch)
        self._home = self._scratch.path
        self._process: subprocess.Popen[bytes] | None = None
        self._jobs, self._buffer = 0, b""
        self._stopped = False

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def run(
        self,
        command: Mapping[str, Any],
        on_event: Callable[[Event], None] = lambda event: None,
        on_ask: Callable[[Question], Reply] = lambda question: {"ok": True},
        timeout: float = 0,
    ) -> Answer:
        """Have a command done and return its answer.

        Args:
            command: Plain data (`service.workers.commands`).
            on_event: Called with stages and progress.
            on_ask: Answers the worker's questions.
            timeout: Seconds; 0 for none.

        Raises:
            WorkerFailed: The command raised an error.
            WorkerDied: The process ended without an answer.
            WorkerTimeout: The time was not enough.
        """
        if self._process is None or self._jobs >= self.jobs or self._process.poll() is not None:
            self._start()
        self._jobs += 1
        deadline = time.monotonic() + timeout if timeout else None
        try:
            self._send(command)
            while True:
                event = self._receive(deadline)
                kind = event["event"]
                if kind == "done":
                    return Answer(event["result"], event["peak"])
                if kind == "error":
                    raise WorkerFailed(event["error"], event["peak"])
                if kind == "ask":
                    self._send(on_ask(event))
                else:
                    on_event(event)
        except WorkerFailed as failure:
            if failure.error.get("class") == OUT_OF_MEMORY:
                self.stop()  # it is ending itself: a heap that was full is not worth keeping
            raise
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the worker: it removes the output that it was writing, or is killed after GRACE seconds."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for pipe in (process.stdin, process.stdout, self._errors):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()

    def kill(self) -> None:
        """Do what `stop` does, from another thread: the thread in `run` sees its worker die, and no new one starts."""
        self._stopped = True
        process = self._process
        if process is not None:
            process.terminate()
            later = threading.Timer(GRACE, process.kill)
            later.daemon = True
            later.start()

    def close(self) -> None:
        self.stop()
        self._scratch.close()

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        self.stop()
        if self._stopped:
            raise WorkerDied("stopped")
        self._buffer, self._jobs = b"", 0
        self._errors = tempfile.TemporaryFile(dir=self._home)  # noqa: SIM115 — closed by stop
        # -P, and a folder of our own: by itself -m puts the current folder, which may be a model's, before the library.
        command = [sys.executable, "-P", "-m", "ggferry.service.workers.process"]
        command += [str(self.limits.memory), str(self.limits.file_size)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=self._environment(),
            cwd=self._home,
            **here.group_options(),
        )
        here.hold_group(self._process)
        assert self._process.stdout is not None
        if self._stopped:  # meanwhile
            self.stop()
            raise WorkerDied("stopped")

    def _environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if k in KEPT or k.startswith("LC_")}
        kept |= {k: os.path.abspath(os.environ[k]) for k in PLACES if os.environ.get(k)}
        kept |= dict.fromkeys(THREADS, str(self.limits.threads))
        return {**kept, **import_path(), **here.home_variables(self._home), **PLAIN}

    def _send(self, value: Mapping[str, Any]) -> None:
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(value).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._death() from None

    def _receive(self, deadline: float | None) -> Any:
        """Return the next event. A worker that is alive and silent is waited for until the deadline."""
        assert self._process is not None and self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        pieces, size = [self._buffer], 0
        while b"\n" not in pieces[-1]:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and (left <= 0 or not here.is_readable(pipe, left)):
                raise WorkerTimeout("the time limit passed")
            data = os.read(pipe, 1 << 20)
            if not data:
                raise self._death()
            pieces.append(data)
            size += len(data)
            if size > LINE_CAP:
                raise WorkerDied("an event without end")
        line, _, self._buffer = b"".join(pieces).partition(b"\n")
        event = json.loads(line)
        assert isinstance(event, dict)
        return event

    def _death(self) -> WorkerDied:
        assert self._process is not None
        status = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read()[-STDERR_SHOWN:].decode("utf-8", "backslashreplace").strip().splitlines()
        more = f": {lines[-1]}" if lines else ""
        if status >= 0:
            return WorkerDied(f"the worker ended with status {status}{more}")
        name = signal.Signals(-status).name if -status in set(signal.Signals) else str(-status)
        if -status == here.KILL:
            more = ": by somebody, or by the system for want of memory" + more
        return WorkerDied(f"the worker was ended by {name}{more}", -status)


def import_path() -> dict[str, str]:
    """Return what a worker needs of PYTHONPATH and the user's site to find our own package.

    That is the one folder it was imported from, where PYTHONPATH names that, and the user's base, where Python looks
    there. It contains no other folder.
    """
    found = {}
    home = os.path.dirname(os.path.dirname(os.path.abspath(ggferry.__file__)))
    if any(os.path.isabs(entry) and os.path.normpath(entry) == home for entry in _entries("PYTHONPATH")):
        found["PYTHONPATH"] = home
    if site.ENABLE_USER_SITE:
        found["PYTHONUSERBASE"] = os.path.abspath(site.getuserbase())
    return found


def _entries(variable: str) -> list[str]:
    return os.environ.get(variable, "").split(os.pathsep)
