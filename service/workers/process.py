"""The process that reads model files: no credentials, bounded memory, one job after another.

`service.workers.supervisor` starts it: commands come as JSON lines on stdin, events go as JSON lines to the descriptor
that stdout was. It ends when its parent does.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from ggferry.formats.errors import Fault, GgferryError, of_os
from ggferry.service.workers.messages import Reply
from ggferry.support.allocator import tune_malloc
from ggferry.support.interrupts import STOPS
from ggferry.support.platform import here
from ggferry.support.progress import Phase

PARENT_GONE = 75  # exit status; EX_TEMPFAIL of sysexits.h
STOPPED = 143  # as shells say it: 128 + SIGTERM
REPORT_EVERY = 0.2  # seconds between progress events
ADDRESS_SPACE_MARGIN = 16 << 30  # libraries reserve address space they never touch


class Channel:
    """The channel to the parent: events go out, commands and answers come in."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="backslashreplace")
        os.dup2(2, 1)  # nothing a library prints may look like an event
        # Libraries of Windows look at the standard input when they are loaded, and wait while a thread reads from it.
        self._in = os.fdopen(os.dup(0), encoding="utf-8")
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        self._lock = threading.Lock()
        self._lines: queue.Queue[Any] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, event: str, **facts: Any) -> None:
        with self._lock, suppress(BrokenPipeError):
            self._out.write(json.dumps({"event": event, **facts}) + "\n")
            self._out.flush()

    def receive(self) -> Any:
        return self._lines.get()

    def ask(self, question: str, **facts: Any) -> Reply:
        """Put a question to the parent and wait for its answer."""
        self.send("ask", question=question, **facts)
        reply: Reply = self.receive()
        return reply

    def _read(self) -> None:
        for line in self._in:
            self._lines.put(json.loads(line))
        os._exit(PARENT_GONE)

    @contextmanager
    def stage(self, phase: Phase, total: int) -> Iterator[Any]:
        """Report progress; this is the `Stage` of `converters.conversion.run`."""
        self.send("stage", title=phase, total=total)
        done, sent, lock = 0, 0.0, threading.Lock()

        def advance(count: int) -> None:
            nonlocal done, sent
            with lock:
                done += count
                if time.monotonic() - sent < REPORT_EVERY:
                    return
                sent = time.monotonic()
                now = done
            self.send("progress", title=phase, done=now)

        yield advance
        self.send("progress", title=phase, done=done)


def limit(memory: int, file_size: int = 0) -> None:
    """Cap this process's memory and files, write no core files, and end with the parent whatever happens."""
    if file_size:
        here.cap_files(file_size)
    if memory:
        here.cap_memory(memory, ADDRESS_SPACE_MARGIN)
    here.write_no_core()
    here.end_with_parent()


def main() -> None:
    """Serve commands until stdin ends."""
    for number in STOPS:
        signal.signal(number, _stop)
    limit(*map(int, sys.argv[1:3]))
    end_trace = _traced()
    tune_malloc()
    try:
        _serve(Channel())
    except KeyboardInterrupt:  # the parent's SIGTERM: what was begun is removed by now
        end_trace()
        os._exit(STOPPED)


def _traced() -> Callable[[], None]:
    if not os.environ.get("GGFERRY_TRACE"):
        return lambda: None
    from ggferry.service.trace_points import begin_as_environment_states

    return begin_as_environment_states(first=False)


def _stop(number: int, frame: FrameType | None) -> None:
    """Unwind, once: nothing may interrupt the removal of what was begun."""
    for each in STOPS:
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


def _serve(channel: Channel) -> None:
    channel.send("ready", pid=os.getpid())
    while True:
        command = channel.receive()
        try:
            from ggferry.service.workers.commands import run

            channel.send("done", result=run(command, channel), peak=peak())
        except GgferryError as error:
            channel.send("error", error=_record(error), peak=peak())
        except OSError as error:
            channel.send("error", error=_record(of_os(error)), peak=peak())
        except MemoryError:
            channel.send("error", error=_error("OutOfMemory", "the memory cap of a worker was reached"), peak=peak())
            os._exit(1)  # a heap that was full is not worth keeping
        except Exception as error:
            channel.send("error", error=_error("InternalError", f"{type(error).__name__}: {error}"), peak=peak())


def _record(error: GgferryError) -> Mapping[str, Any]:
    return {**error.as_dict(), "class": type(error).__name__}


def _error(kind: str, message: str) -> Mapping[str, Any]:
    return {"class": kind, "code": kind, "fault": Fault.FILE.value, "message": message}


def peak() -> int:
    """Return the most resident memory this process had, in bytes."""
    return here.peak_memory()


if __name__ == "__main__":
    main()
