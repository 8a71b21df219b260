"""Worker processes that look at models for people who wait: what reads a hostile header is never the server itself."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from ggferry.formats.errors import BusyError, GgferryError, OutOfMemoryError
from ggferry.service.storage.broker import revive
from ggferry.service.workers.supervisor import (
    OUT_OF_MEMORY,
    Limits,
    Supervisor,
    WorkerDied,
    WorkerFailed,
    WorkerTimeout,
)

TIMEOUT = 120.0  # seconds to answer a question
WAITING = 64  # questions that may wait for a worker


class Lookers:
    """Threads with a worker each, which begins when it is first needed."""

    def __init__(self, count: int, limits: Limits, timeout: float = TIMEOUT) -> None:
        self._work: queue.Queue[tuple[Mapping[str, Any], Future[Any]] | None] = queue.Queue(WAITING)
        self._timeout, self._count = timeout, count
        self._supervisors = [Supervisor(limits) for _ in range(count)]
        for supervisor in self._supervisors:
            threading.Thread(target=self._serve, args=(supervisor,), daemon=True).start()

    def ask(self, command: Mapping[str, Any]) -> Any:
        """Return the result of a worker's command. Raises what it raised, and BusyError when too many wait."""
        answer: Future[Any] = Future()
        try:
            self._work.put_nowait((command, answer))
        except queue.Full:
            raise BusyError("too many questions at once", hint="ask again in a moment") from None
        return answer.result(self._timeout * (WAITING + 1))

    def close(self) -> None:
        """End the workers."""
        for _ in range(self._count):
            self._work.put(None)
        for supervisor in self._supervisors:
            supervisor.kill()

    def _serve(self, supervisor: Supervisor) -> None:
        with supervisor:
            while (item := self._work.get()) is not None:
                command, answer = item
                try:
                    answer.set_result(supervisor.run(command, timeout=self._timeout).result)
                except BaseException as error:
                    answer.set_exception(_ours(error, self._timeout))


def _ours(error: BaseException, limit: float) -> BaseException:
    if isinstance(error, WorkerFailed):
        if error.error.get("class") == OUT_OF_MEMORY:
            return OutOfMemoryError("looking at it takes more memory than a worker may have", hint="--memory SIZE")
        return revive(error.error)
    if isinstance(error, WorkerTimeout):
        return GgferryError(f"no answer within {limit:g} s")
    return GgferryError(error.reason) if isinstance(error, WorkerDied) else error
