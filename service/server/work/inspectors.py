"""Worker processes that look at models for people who wait: what reads a hostile header is never the server itself."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from ggferry.formats.errors import BusyError, GgferryError, OutOfMemoryError
from ggferry.service.storage.broker import revive
from ggferry.service.workers.supervisor import (
    OUT_OF_MEMORY,
    Answer,
    Limits,
    Supervisor,
    WorkerDied,
    WorkerFailed,
    WorkerTimeout,
)

TIMEOUT = 120.0  # seconds to answer a question
OFTEN = 0.5  # seconds between two looks at whether the server ends
WAITING = 64  # questions that may wait for a worker

T = TypeVar("T")
Item = tuple[Mapping[str, Any], float, "Future[Any]"]
_NOTHING: Item = ({}, 0.0, Future())


class InspectorPool:
    """Threads with a worker each, which begins when it is first needed."""

    def __init__(self, count: int, limits: Limits, timeout: float = TIMEOUT) -> None:
        self._work: queue.Queue[Item] = queue.Queue(WAITING)
        self._over = threading.Event()
        self._timeout, self._count = timeout, count
        self._supervisors = [Supervisor(limits) for _ in range(count)]
        for supervisor in self._supervisors:
            threading.Thread(target=self._serve, args=(supervisor,), daemon=True).start()

    def ask(self, command: Mapping[str, Any], *, seconds: float | None = None) -> Any:
        """Return the result of a worker's command. Raises what it raised, and BusyError when too many wait.

        `seconds`: how long it may take; None: as long as any question.
        """
        answer: Future[Any] = Future()
        try:
            self._work.put_nowait((command, seconds or self._timeout, answer))
        except queue.Full:
            raise BusyError("too many inspections at once", hint="ask again in a moment") from None
        try:
            return answer.result()
        except (WorkerFailed, WorkerTimeout, WorkerDied) as error:
            raise _ours(error, seconds or self._timeout) from None

    def run(self, command: Mapping[str, Any], *, timeout: float = 0) -> Answer:
        """Have a command done as a Supervisor does, when a worker is free; it raises as that.

        Raises WorkerDied when the server ends before, whoever still waits then.
        """
        answer: Future[Any] = Future()
        self._until_over(lambda: self._work.put((command, timeout or self._timeout, answer), timeout=OFTEN))
        return Answer(self._until_over(lambda: answer.result(OFTEN)), 0)

    def _until_over(self, work: Callable[[], T]) -> T:
        """Return what `work` returns, as often as it takes while the server does not end."""
        while True:
            try:
                return work()
            except (TimeoutError, queue.Full):
                if self.is_over:
                    raise WorkerDied("the server is ending") from None

    @property
    def is_over(self) -> bool:
        """Whether nothing is done any more."""
        return self._over.is_set()

    def close(self) -> None:
        """End the workers, and what waits for one."""
        self._over.set()
        for supervisor in self._supervisors:
            supervisor.kill()
        while True:
            try:
                item = self._work.get_nowait()
            except queue.Empty:
                break
            item[2].set_exception(WorkerDied("the server is ending"))
        for _ in range(self._count):
            self._work.put(_NOTHING)

    def _serve(self, supervisor: Supervisor) -> None:
        with supervisor:
            while not self._over.is_set():
                command, seconds, answer = self._work.get()
                if not command:
                    return
                try:
                    answer.set_result(supervisor.run(command, timeout=seconds).result)
                except BaseException as error:
                    answer.set_exception(error)


def _ours(error: WorkerFailed | WorkerTimeout | WorkerDied, limit: float) -> GgferryError:
    if isinstance(error, WorkerFailed):
        if error.error.get("class") == OUT_OF_MEMORY:
            return OutOfMemoryError("inspecting it takes more memory than a worker may have", hint="--memory SIZE")
        return revive(error.error)
    if isinstance(error, WorkerTimeout):
        return GgferryError(f"no answer within {limit:g} s")
    return GgferryError(error.reason)
