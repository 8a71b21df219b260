"""What happened to jobs, for those who listen: read once from the database, told to every listener of this server.

The events are the ledger's: triggers note every change of a job's state, by whatever server or `ggferry apply` it was
made (`store.tables`). Their ids only grow, so a listener who comes back says what it saw last and misses nothing, be it
after a lost connection or at another server. Progress in bytes is not kept: it is sent without an id, and only what is
newest.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from itertools import takewhile
from typing import Any

from ggferry.formats.errors import GgferryError
from ggferry.service.server.store.database import Store
from ggferry.service.server.store.removal import shown_state
from ggferry.support.heavy import sa

EVERY = 0.5  # seconds between looks at the database
KEPT = 10_000  # events in memory; older ones are read again from the database
PAGE = 500
PULSE = 15.0  # seconds after which something is sent, so that a proxy or a dead peer is noticed


class Hub:
    """Reads events as they are noted, and wakes those who wait."""

    def __init__(self, store: Store, progress: Callable[[], Mapping[str, Any]] = dict) -> None:
        self.store, self.progress = store, progress
        self._recent: deque[tuple[int, str, bytes]] = deque(maxlen=KEPT)
        self._lock = threading.Lock()
        self._last, self._first = 0, 0
        self._state: bytes = b""
        self._turn = 0
        self._woken, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True, name="ggferry-events")
        self._waiting: dict[asyncio.AbstractEventLoop, asyncio.Event] = {}

    def start(self) -> None:
        """Begin with what is noted from now on."""
        self._last = self._first = self.newest()
        self._thread.start()

    def newest(self) -> int:
        """Return the id of the newest event; 0 before the first."""
        found = self.store.first(sa.select(sa.func.max(self.store.t.events.c.id).label("id")))
        return int((found or {}).get("id") or 0)

    def wake(self) -> None:
        """Look at the database now."""
        self._woken.set()

    def close(self) -> None:
        """End, and let every listener end."""
        self._over.set()
        self._woken.set()
        self._tell()

    @property
    def is_over(self) -> bool:
        """Whether the server is ending."""
        return self._over.is_set()

    def _serve(self) -> None:
        while not self._over.is_set():
            try:
                found = self.after(self._last)
                state = json.dumps(self.progress(), sort_keys=True).encode()
            except GgferryError:
                self._over.wait(EVERY)
                continue
            if found:
                with self._lock:
                    self._recent.extend(found)
                    self._last = found[-1][0]
            if found or state != self._state:
                self._state, self._turn = state, self._turn + 1
                self._tell()
            if len(found) < PAGE:
                self._woken.wait(EVERY)
                self._woken.clear()
                self._over.wait(0.05)  # what comes at once is told at once

    def _tell(self) -> None:
        for loop, event in list(self._waiting.items()):
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:  # a loop that has ended
                self._waiting.pop(loop, None)

    def after(self, last: int, job: str | None = None) -> list[tuple[int, str, bytes]]:
        """Return the next events after `last` as id, job, text of the stream."""
        table = self.store.t.events
        query = sa.select(table).where(table.c.id > last).order_by(table.c.id).limit(PAGE)
        query = query if job is None else query.where(table.c.job == job)
        return [(row["id"], row["job"], _text(row)) for row in self.store.all(query)]

    async def listen(self, last: int | None, job: str | None = None) -> AsyncIterator[bytes]:
        """Yield the text of a stream of events: those after `last` (None: from now on), then what comes."""
        at = self._last if last is None else last
        turn, quiet = -1, 0.0
        yield b"retry: 1000\n\n"
        while not self._over.is_set():
            changed = self._event()
            at, pieces = await self._missed(at, job)
            if turn != self._turn and (text := self._shown(job)):
                pieces.append(text)
            turn = self._turn
            if pieces:
                yield b"".join(pieces)
                continue
            try:
                await asyncio.wait_for(changed.wait(), PULSE - quiet)
            except TimeoutError:
                yield b": still here\n\n"
        yield b"event: bye\ndata: {}\n\n"

    def _event(self) -> asyncio.Event:
        """Return what is set at the next change, for the loop that runs."""
        loop = asyncio.get_running_loop()
        event = self._waiting.get(loop)
        if event is None or event.is_set():
            event = self._waiting[loop] = asyncio.Event()
        return event

    async def _missed(self, at: int, job: str | None) -> tuple[int, list[bytes]]:
        """Return the events after `at` and where they end: from memory, or from the database if they are older."""
        newest = self._last
        if at >= newest:
            return at, []
        with self._lock:  # from the newest back, so that a listener costs what is new to it, not what is kept
            oldest = self._recent[0][0] if self._recent else newest + 1
            forgotten = at < self._first or (at + 1 < oldest and self._first < oldest - 1)
            newer = [] if forgotten else list(takewhile(lambda each: each[0] > at, reversed(self._recent)))
        if forgotten:
            found = await asyncio.to_thread(self.after, at, job)
            whole = [newest] if len(found) < PAGE else []  # what is no longer than a page holds all until then
            return max([at, *whole, *(number for number, _, _ in found[-1:])]), [text for _, _, text in found]
        end = max([at, *(number for number, _, _ in newer[:1])])
        return end, [text for _, key, text in reversed(newer) if job is None or key == job]

    def _shown(self, job: str | None) -> bytes | None:
        if job is None:
            return b"event: progress\ndata: " + self._state + b"\n\n" if self._state else None
        own = json.loads(self._state or b"{}").get(job)
        return None if own is None else b"event: progress\ndata: " + json.dumps({job: own}).encode() + b"\n\n"


def _text(row: Mapping[str, Any]) -> bytes:
    shown = {name: row[name] for name in ("id", "job", "plan", "state", "attempt", "error", "at")}
    shown["state"] = shown_state(row["state"], row["error"])
    return f"id: {row['id']}\nevent: job\ndata: {json.dumps(shown, default=str)}\n\n".encode()
