"""The engine of `apply`, kept going: it does what is submitted, and ends when the server does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ggferry.formats.errors import GgferryError
from ggferry.service.apply.job import Outcome, Settings
from ggferry.service.apply.local_engine import Run
from ggferry.service.apply.migration import carry_out
from ggferry.service.records.ledger import Job, Ledger
from ggferry.service.storage import retry
from ggferry.service.workers.messages import Event

AGAIN = 5.0  # seconds after which an engine that ended is started again
Log = Callable[..., None]


class Runner:
    """An engine in a thread, with a connection to the ledger of its own.

    `plans` is a query for the runs whose jobs it does; `see` is called with each event, `done` with each finished job;
    `engine` carries them out, on the Ray cluster at `address` if it is 'ray'.
    """

    def __init__(
        self,
        open_ledger: Callable[[], Ledger],
        plans: Any,
        jobs: int,
        settings: Settings,
        see: Callable[[Event], None],
        done: Callable[[Job, Outcome], None],
        log: Log,
        engine: str = "local",
        address: str | None = None,
    ) -> None:
        self._engine, self._address = engine, address
        self._open, self._plans, self._jobs, self._settings = open_ledger, plans, jobs, settings
        self._see, self._done, self._log = see, done, log
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True, name="ggferry-engine")
        self._run: Run | None = None
        self.connected: Callable[[], None] = lambda: None  # as `Run.connected`, in the engine's thread

    def start(self) -> None:
        """Begin to do jobs, unless this server leaves them to others."""
        if self._jobs:
            self._thread.start()

    def wake(self) -> None:
        """Look for a job now."""
        if self._run is not None:
            self._run.woken.set()

    def drop(self, job: str) -> None:
        """Stop working on a job that somebody ended."""
        if self._run is not None:
            self._run.lost.update(key for key in list(self._run.held) if key[0] == job)

    @property
    def busy(self) -> int:
        """How many jobs are at work here."""
        return 0 if self._run is None else len(self._run.held)

    def drain(self, seconds: float) -> None:
        """Begin nothing more, give jobs at work so many seconds, then end them; what did not end is queued again."""
        self._over.set()
        until = time.monotonic() + seconds
        if self._run is not None:
            self._run.drained.set()
            self._run.woken.set()
            while self._thread.is_alive() and time.monotonic() < until:
                self._thread.join(0.05)
            self._run.stop()
        if self._thread.ident is not None:
            self._thread.join(60)

    def _serve(self) -> None:
        while not self._over.is_set():
            retry.stopping.clear()
            try:
                ledger = self._open()
                ledger.reclaim()
                self._run = Run(
                    ledger,
                    self._plans,
                    self._jobs,
                    self._settings,
                    self._emit,
                    done=self._done,
                    connected=lambda: self.connected(),
                    lasting=True,
                )
                carry_out(self._run, self._engine, self._address)
            except Exception as error:
                self._log("engine", "error", message=str(error))
                self._over.wait(AGAIN)
            finally:
                if self._run is not None:
                    with suppress(GgferryError):
                        self._run.ledger.close()

    def _emit(self, event: Event) -> None:
        self._note(event)
        self._see(event)

    def _note(self, event: Event) -> None:
        if event["event"] == "job":
            error = event.get("error") or {}
            level = "warning" if event["state"] in ("failed", "quarantined") else "info"
            code = error.get("code") or error.get("class")
            self._log("job", level, job=event["id"], state=event["state"], error=code, attempt=event.get("attempt"))
        elif event["event"] == "warning":
            self._log("warning", "warning", job=event.get("id"), message=event.get("message"))
