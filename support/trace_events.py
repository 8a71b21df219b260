"""What a process did and when, in the trace event format that chrome://tracing and Perfetto read (docs/traces.md).

Nothing of it is imported unless a trace is asked for. Then functions are replaced, in their modules, by ones that note
when they began and ended: a module that is being imported gets them before any other can take them from it.

The file is a JSON array, one event a line. Every process appends whole lines, and the first one, which ends last,
closes the array; the format allows for one that was not closed.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial, wraps
from importlib.machinery import ModuleSpec
from typing import Any, NamedTuple

from ggferry.support.platform import here

Facts = Callable[..., Mapping[str, Any]]
"""Called with the arguments of a function: what to note beside its name."""

WAIT, IMPORT, GARBAGE = "wait", "import", "garbage"
SHORTEST = {WAIT: 100_000, IMPORT: 1_000_000, GARBAGE: 100_000}
"""Nanoseconds below which these are left out: there are too many."""
EVERY = 0.25
"""Seconds after which what was noted is written to the file: a kill loses no more."""


class Point(NamedTuple):
    """A function whose calls are noted.

    Attributes:
        module: The full name of its module.
        attribute: Its name there: 'function' or 'Class.method'.
        name: What its spans are called.
        facts: What is noted of a call.
    """

    module: str
    attribute: str
    name: str
    facts: Facts | None = None


class Trace:
    """Takes the events of this process and appends them to a file."""

    def __init__(self, path: str, *, first: bool) -> None:
        """Open the file; `first`: begin it anew, and close the array when this process ends."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_TRUNC if first else 0)
        self._fd = os.open(path, flags, 0o600)
        self._first, self._pid = first, os.getpid()
        self._lines: list[str] = []
        self._threads: set[int] = set()
        self._lock = threading.RLock()
        self._start = time.monotonic_ns()
        if os.fstat(self._fd).st_size == 0:
            os.write(self._fd, b"[\n")
        self._ended, self._closed = threading.Event(), False
        self._writer = threading.Thread(target=self._write_often, name="trace", daemon=True)
        self._writer.start()

    def _write_often(self) -> None:
        while not self._ended.wait(EVERY):
            self.write()

    def add(
        self, kind: str, name: str, start: int, cpu: int | None = None, facts: Mapping[str, Any] | None = None
    ) -> None:
        """Note what began at `start` and ends now, in this thread.

        Args:
            kind: Its category.
            name: Its name.
            start: `time.monotonic_ns` of then.
            cpu: `time.thread_time_ns` of then, if known.
            facts: What else to state.
        """
        end = time.monotonic_ns()
        if end - start < SHORTEST.get(kind, 0) or self._closed or self._pid != os.getpid():  # a fork is not its parent
            return
        thread = threading.get_ident() % (1 << 31)
        event = {"name": name, "cat": kind, "ph": "X", "pid": self._pid, "tid": thread}
        event |= {"ts": start / 1000, "dur": (end - start) / 1000}
        if cpu is not None:
            event["tdur"] = (time.thread_time_ns() - cpu) / 1000
        if facts:
            event["args"] = facts
        with self._lock:
            if thread not in self._threads:
                self._threads.add(thread)
                self._note("thread_name", thread, {"name": threading.current_thread().name})
            self._lines.append(json.dumps(event))

    def _note(self, name: str, thread: int, facts: Mapping[str, Any]) -> None:
        event = {"name": name, "ph": "M", "pid": self._pid, "tid": thread, "args": facts}
        self._lines.append(json.dumps(event))

    def write(self) -> None:
        """Append what was noted, whole lines."""
        with self._lock, suppress(OSError):  # a full disk costs the trace, not the work
            text, self._lines = "".join(line + ",\n" for line in self._lines).encode(), []
            while text:
                text = text[os.write(self._fd, text) :]

    def close(self, words: str) -> None:
        """Note the process as a whole, called `words`, and close the array if it was begun here; once."""
        if self._pid != os.getpid() or self._ended.is_set():
            return
        self._ended.set()
        self._writer.join()  # the interpreter's end would stop it wherever it is, with the lock in its hand
        with self._lock:
            self.add("process", words, self._start, facts=_resources())
            self._closed = True
            self._note("process_name", 0, {"name": words})
            self.write()
            if self._first:
                with suppress(OSError):
                    os.write(self._fd, b'{"name":"end","ph":"M","pid":%d,"tid":0,"args":{}}]\n' % self._pid)


def _resources() -> dict[str, Any]:
    """Return what the process took: seconds, bytes."""
    used = os.times()
    return {"user seconds": used.user, "system seconds": used.system, "peak bytes": here.peak_memory()}


def begin(path: str, points: Iterable[Point], words: str, *, first: bool) -> Callable[[], None]:
    """Trace this process from now on, and return what ends that sooner than the process does.

    Args:
        path: The file. Raises OSError where it cannot be written.
        points: The functions to note.
        words: What the process is called.
        first: Whether this is the command itself, not one of its workers.
    """
    trace = Trace(path, first=first)
    expected: dict[str, list[Point]] = {}
    for point in points:
        expected.setdefault(point.module, []).append(point)
    for name, some in expected.items():
        if name in sys.modules:
            _replace(trace, sys.modules[name], some)
    sys.meta_path.insert(0, _Finder(trace, expected))
    for owner, attribute in ((threading.Condition, "wait"), (threading.Thread, "join")):
        setattr(owner, attribute, _traced(trace, getattr(owner, attribute), WAIT, WAIT, None))
    _watch_garbage(trace)
    end = partial(trace.close, words)
    atexit.register(end)
    return end


def _traced(
    trace: Trace, function: Callable[..., Any], kind: str, name: str, facts: Facts | None
) -> Callable[..., Any]:
    monotonic, thread_time, add = time.monotonic_ns, time.thread_time_ns, trace.add

    @wraps(function)
    def run(*args: Any, **given: Any) -> Any:
        start, cpu = monotonic(), thread_time()
        try:
            return function(*args, **given)
        finally:
            add(kind, name, start, cpu, facts(*args, **given) if facts else None)

    return run


def _replace(trace: Trace, module: Any, points: Iterable[Point]) -> None:
    for point in points:
        *owners, name = point.attribute.split(".")
        owner = module
        for each in owners:
            owner = getattr(owner, each)
        kind = point.module.removeprefix("ggferry.").split(".")[0]
        setattr(owner, name, _traced(trace, getattr(owner, name), kind, point.name, point.facts))


class _Finder:
    """Finds no module itself: has those that others find note their import, and replaces what is listed of them."""

    def __init__(self, trace: Trace, expected: Mapping[str, list[Point]]) -> None:
        self._trace, self._expected = trace, expected

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        for finder in sys.meta_path:
            if finder is self:
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                run = getattr(spec.loader, "exec_module", None)
                with suppress(AttributeError):  # built-in ones take a class for their loader
                    if run is not None and not isinstance(spec.loader, type):
                        spec.loader.exec_module = self._run(name, run)  # type: ignore[union-attr, method-assign]
                return spec
        return None

    def _run(self, name: str, execute: Callable[[Any], None]) -> Callable[[Any], None]:
        run = _traced(self._trace, execute, IMPORT, f"import {name}", None)

        def load(module: Any) -> None:
            run(module)
            _replace(self._trace, module, self._expected.get(name, ()))
            if name == "numba.core.event":
                _watch_compiler(self._trace, module)

        return load


def _watch_garbage(trace: Trace) -> None:
    began: list[tuple[int, int]] = []

    def note(phase: str, _: Mapping[str, int]) -> None:
        if phase == "start":
            began.append((time.monotonic_ns(), time.thread_time_ns()))
        elif began:
            trace.add(GARBAGE, "look for garbage", *began.pop())

    gc.callbacks.append(note)


def _watch_compiler(trace: Trace, event: Any) -> None:
    """Note what numba compiles: the kernel as a whole, nothing that is compiled within it."""
    began = threading.local()

    class Listener(event.Listener):  # type: ignore[misc]
        def on_start(self, event: Any) -> None:
            began.__dict__.setdefault("stack", []).append((time.monotonic_ns(), time.thread_time_ns()))

        def on_end(self, event: Any) -> None:
            start = began.stack.pop()
            if not began.stack:
                trace.add("compile", f"compile {event.data['dispatcher'].py_func.__name__}", *start)

    event.register("numba:compile", Listener())
