"""Migrations run in this process, so that a table of faults can be gone through in minutes.

The commands are the real ones and so are the workers; but one worker serves all runs, and waits are short.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import s3fs

from ggferry.service.apply import job
from ggferry.service.apply import local_engine as engine
from ggferry.service.cli import app as cli
from ggferry.service.records import ledger_database
from ggferry.service.storage import publish, retry
from ggferry.service.storage.backends import s3
from ggferry.service.workers.supervisor import Limits, Supervisor


class _Kept(Supervisor):
    """Survives the runs that use it. (A worker dies with the thread that started it: these start in one that stays.)"""

    starter = ThreadPoolExecutor(1)

    def _start(self) -> None:
        self.starter.submit(super()._start).result()

    def close(self) -> None: ...

    def end(self) -> None:
        super().close()


class Workers:
    """What an engine takes for the Supervisor: the one there is, or another once that was ended."""

    def __init__(self) -> None:
        self._now: _Kept | None = None

    def __call__(self, limits: Limits) -> Supervisor:
        if self._now is None or self._now._stopped:
            self.end()
            self._now = _Kept(limits)
        return self._now

    def end(self) -> None:
        if self._now is not None:
            self._now.end()
            self._now = None


@contextmanager
def hurried(workers: Workers) -> Iterator[pytest.MonkeyPatch]:
    """Waits are short, repetition is the product's own alone, and it is known that the store has conditions."""
    before = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "Supervisor", workers)
        patch.setattr(engine, "IDLE", 0.02)
        patch.setattr(job, "RETRY_AFTER", 0.02)
        patch.setattr(retry, "FIRST", 0.01)
        patch.setattr(retry, "LONGEST", 0.1)
        patch.setattr(ledger_database, "FIRST_WAIT", 0.05)
        patch.setattr(s3fs.S3FileSystem, "retries", 1)
        patch.setitem(s3._conditional, "new", True)
        publish._reported.clear()
        yield patch
    signal.signal(signal.SIGTERM, before)


def ggferry(*words: object) -> int:
    """A command's exit code."""
    return cli._run([str(word) for word in words])
