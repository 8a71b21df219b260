"""The state of a whole run, from its events: bytes done, bytes a second, time left, jobs by state."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ggferry.service.apply.local_engine import Emit
from ggferry.service.cli.progress_bar import bar, has_terminal
from ggferry.service.cli.terminal import ERROR, print_json, say
from ggferry.service.records.plan_file import Entry
from ggferry.service.workers.messages import Event
from ggferry.support.progress import Phase

WINDOW = 60.0  # seconds over which the rate is taken
COUNTED = (Phase.READING, Phase.WRITING, Phase.VERIFYING)
ENDED = ("done", "failed", "quarantined", "skipped")


class Tracker:
    """Bytes of work: a model is read once to identify it, written once, and read once more for the proof."""

    def __init__(self, left: Sequence[Entry]) -> None:
        self.total = sum(entry.bytes_in + 2 * entry.bytes_out for entry in left)
        self.jobs, self.states = len(left), Counter[str]()
        self._done, self._stages = 0, defaultdict[str, dict[str, int]](dict)
        self._marks = [(time.monotonic(), 0)]
        self._lock = threading.Lock()

    def see(self, event: Event) -> None:
        """Take an event into account."""
        with self._lock:
            job = str(event.get("id", ""))
            if event["event"] == "progress":
                seen = self._stages[job]
                done = int(event["done"])
                seen[event["title"]] = seen.get(event["title"], 0) + done if event.get("more") else done
            elif event["event"] == "job" and event["state"] != "running":
                self._stages.pop(job, None)
                if event["state"] in ENDED:
                    self.states[event["state"]] += 1
                    self._done += int(event["bytes_in"]) + 2 * int(event["bytes_out"])

    @property
    def done(self) -> int:
        """Bytes done so far."""
        with self._lock:
            stages = [sum(seen.get(phase, 0) for phase in COUNTED) for seen in self._stages.values()]
            return min(self.total, self._done + sum(stages))

    def rate(self) -> tuple[float, float | None]:
        """Return bytes a second over the last minute, and seconds left at that rate (None: unknown)."""
        now, done = time.monotonic(), self.done
        self._marks = [mark for mark in self._marks if now - mark[0] <= WINDOW][-600:] or self._marks[-1:]
        self._marks.append((now, done))
        seconds, before = now - self._marks[0][0], self._marks[0][1]
        speed = (done - before) / seconds if seconds > 0 else 0.0
        return speed, (self.total - done) / speed if speed > 0 else None


@contextmanager
def shown(tracker: Tracker, as_json: bool) -> Iterator[Emit]:
    """Yield a function for the events of a run.

    It prints JSON lines on stdout, or a bar and a line for each problem on stderr.
    """
    if as_json:
        lock = threading.Lock()

        def emit(event: Event) -> None:
            tracker.see(event)
            if event["event"] == "progress":
                speed, left = tracker.rate()
                event = {**event, "run": {"done": tracker.done, "total": tracker.total, "rate": speed, "eta": left}}
            with lock:
                print_json(event, default=str)

        yield emit
    elif has_terminal():
        with bar("", tracker.total) as drawn:

            def draw(event: Event) -> None:
                tracker.see(event)
                ended = sum(tracker.states.values())
                drawn.show(tracker.done, tracker.total, f"{ended}/{tracker.jobs} models")
                if line := words(event):
                    drawn.line(line)

            yield draw
    else:

        def emit(event: Event) -> None:
            tracker.see(event)
            if line := words(event):
                say(line, level=ERROR)

        yield emit


def words(event: Event) -> str | None:
    """Return what a person should read of an event; None for the rest."""
    if event["event"] == "job" and event["state"] in ("failed", "quarantined", "again"):
        error = event.get("error") or {}
        return f"{event['state']:<12} {event['source']}: {error.get('message', '')}"
    if event["event"] in ("warning", "stopped"):
        return f"{event['event']:<12} {event.get('source', '')} {event['message']}"
    return None
