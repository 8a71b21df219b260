"""Keep a process that reads model files by their own libraries (`programs/library_reader.py`), and ask it.

Files that libraries read may end or stall them, and torch takes a second to import: so they run in another process,
with little memory and time, which stays for the next question of this one and ends with it. It gets the open files
themselves; on Windows, which passes none on, their places, and it says which files it found there.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ggferry.support.platform import here

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "programs", "library_reader.py")
KEPT = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", *here.ENVIRONMENT)  # of the environment
MAX_FILES = 253
SECONDS = 600.0  # to wait for an answer; a busy machine gives little time to a process that is nice
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

_lock = threading.Lock()
_idle: list[_Process] = []


class _Process:
    """A process that answers one question after another."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        other = None
        self.socket: socket.socket | None = None
        if here.PASSES_FILES:
            self.socket, other = socket.socketpair()
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", PROGRAM, *([] if other else ["--places"])],
                stdin=other.fileno() if other else subprocess.PIPE,
                stdout=subprocess.DEVNULL if other else subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**{n: os.environ[n] for n in KEPT if n in os.environ}, **ONE_THREAD},
            )
        finally:
            if other:
                other.close()
        self.questions = self.socket.makefile("wb") if self.socket else self.process.stdin
        self.answers = self.socket.makefile("rb") if self.socket else self.process.stdout

    def ask(self, question: Mapping[str, Any], fds: Sequence[int]) -> None:
        """Send a question. Raises OSError where the process is gone, or a file has no place."""
        places = [] if self.socket else places_of(fds)
        data = json.dumps({**question, "places": places}).encode()
        head = struct.pack("<Q", len(data))
        assert self.questions is not None
        if self.socket:
            socket.send_fds(self.socket, [head], list(fds))
        else:
            self.questions.write(head)
        self.questions.write(data)
        self.questions.flush()
        self.identities = [] if self.socket else [identity(fd) for fd in fds]

    def answer(self) -> Any:
        """Wait for the answer. Raises OSError, EOFError or ValueError where there will be none."""
        late = threading.Timer(SECONDS, self.process.kill)
        late.daemon = True
        late.start()
        try:
            (size,) = struct.unpack("<Q", self._exactly(8))
            found = json.loads(self._exactly(size))
        finally:
            late.cancel()
        for own, answer in zip(self.identities, found["files"] if self.identities else (), strict=True):
            if "error" not in answer and answer["identity"] != own:
                answer["error"] = "another file lies there now"
        return found

    def _exactly(self, size: int) -> bytes:
        assert self.answers is not None
        data = self.answers.read(size)
        if len(data) < size:
            raise EOFError
        return data

    def end(self) -> str:
        """End the process; return its last words."""
        for end in (self.questions, self.answers, self.socket):
            with suppress(OSError):  # what was not sent yet
                if end is not None:
                    end.close()
        if os.getpid() != self.owner:
            return ""
        self.process.kill()
        assert self.process.stderr is not None
        with self.process.stderr as pipe:
            words = pipe.read()
        self.process.wait()
        return words.decode("utf-8", "replace").strip().rpartition("\n")[2]


def places_of(fds: Sequence[int]) -> list[str]:
    """Return where open files lie. Raises OSError where the system does not say."""
    return [here.place_of(fd) for fd in fds]


def identity(fd: int) -> list[int]:
    """Return what tells an open file from others, and from what it was before: as the program does."""
    found = os.fstat(fd)
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns]


class Pending:
    """A question that was asked."""

    def __init__(self, process: _Process) -> None:
        self._process: _Process | None = process

    def answer(self) -> Mapping[str, Any] | str:
        """Return the answer, or in a line why there is none."""
        process, self._process = self._process, None
        assert process is not None
        try:
            found: Mapping[str, Any] = process.answer()
        except (OSError, EOFError, ValueError):
            return process.end() or "the process that reads with other libraries ended"
        with _lock:
            if not _idle:
                _idle.append(process)
                return found
        process.end()
        return found

    def close(self) -> None:
        """Give up waiting."""
        process, self._process = self._process, None
        if process is not None:
            process.end()

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()


def ask(question: Mapping[str, Any], fds: Sequence[int]) -> Pending | None:
    """Ask about the files behind these descriptors; None where no process can be had.

    Args:
        question: What `library_reader` answers; `path` is added.
        fds: One for each of its `files`.
    """
    whole = {**question, "path": [os.path.abspath(place) for place in sys.path if place]}
    for _ in range(2):  # the one that is kept may have ended
        process = None
        try:
            process = _taken() or _Process()
            process.ask(whole, fds)
            return Pending(process)
        except OSError:
            if process is not None:
                process.end()
    return None


def _taken() -> _Process | None:
    with _lock:
        while _idle:
            process = _idle.pop()
            if process.owner == os.getpid() and process.process.poll() is None:
                return process
            process.end()
    return None


@atexit.register
def _end() -> None:
    with _lock:
        while _idle:
            _idle.pop().end()
