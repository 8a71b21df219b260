"""Keep a process that reads model files by their own libraries (`programs/library_reader.py`), and ask it.

Files that libraries read may end or stall them, and torch takes a second to import: so they run in another process,
with little memory and time, which stays for the next question of this one and ends with it.
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
KEPT = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")  # of the environment
MAX_FILES = 253
SECONDS = 600.0  # to wait for an answer; a busy machine gives little time to a process that is nice
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

_lock = threading.Lock()
_idle: list[_Process] = []


class _Process:
    """A process that answers one question after another."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.socket, other = socket.socketpair()
        with other:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", PROGRAM],
                stdin=other.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**{n: os.environ[n] for n in KEPT if n in os.environ}, **ONE_THREAD},
            )

    def ask(self, question: bytes, fds: Sequence[int]) -> None:
        """Send a question. Raises OSError where the process is gone."""
        socket.send_fds(self.socket, [struct.pack("<Q", len(question))], list(fds))
        self.socket.sendall(question)

    def answer(self) -> Any:
        """Wait for the answer. Raises OSError or EOFError where there will be none."""
        self.socket.settimeout(SECONDS)
        (size,) = struct.unpack("<Q", self._exactly(8))
        return json.loads(self._exactly(size))

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            more = self.socket.recv(min(size - len(data), 1 << 20))
            if not more:
                raise EOFError
            data += more
        return bytes(data)

    def end(self) -> str:
        """End the process; return its last words."""
        self.socket.close()
        if os.getpid() != self.owner:
            return ""
        self.process.kill()
        words = self.process.communicate()[1]
        return bytes(words or b"").decode("utf-8", "replace").strip().rpartition("\n")[2]


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
    """Ask about the files behind these descriptors; None where no process can be had, or none can be given open files.

    Args:
        question: What `library_reader` answers; `path` is added.
        fds: One for each of its `files`.
    """
    if not here.PASSES_FILES:
        return None
    paths = [os.path.abspath(place) for place in sys.path if place]
    data = json.dumps({**question, "path": paths}).encode()
    for _ in range(2):  # the one that is kept may have ended
        process = None
        try:
            process = _taken() or _Process()
            process.ask(data, fds)
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
