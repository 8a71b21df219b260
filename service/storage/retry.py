"""Repeat what passing trouble prevented, with growing delays, for as long as `urls.Access.patience` says."""

from __future__ import annotations

import math
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from ggferry.formats.errors import TransientError
from ggferry.service.storage.urls import granted

T = TypeVar("T")
FIRST, LONGEST = 0.25, 10.0  # seconds between two attempts
stopping = threading.Event()
"""Set when the run ends: whoever waits gives up at once."""
_longest: ContextVar[float] = ContextVar("seconds of repeating", default=math.inf)
_names: ContextVar[float | None] = ContextVar("seconds for a name", default=None)


@contextmanager
def names_within(seconds: float) -> Iterator[None]:
    """Give names of servers that do not resolve so long, for a person who waits; what else fails has its own time."""
    before = _names.set(seconds)
    try:
        yield
    finally:
        _names.reset(before)


@contextmanager
def retrying_within(seconds: float) -> Iterator[None]:
    """Repeat what fails for so long at most, for a person who waits and whose request holds a thread meanwhile."""
    before = _longest.set(seconds)
    try:
        yield
    finally:
        _longest.reset(before)


def name_timeout() -> float | None:
    """Return for how many seconds a name may be looked up; None: for as long as the system takes."""
    return _names.get()


def retry(call: Callable[[], T]) -> T:
    """Return what `call` returns once it no longer raises TransientError.

    Raises the last one when patience has run out.
    """
    began, delay = time.monotonic(), FIRST
    while True:
        try:
            return call()
        except TransientError as error:
            patience = min(granted().retry_timeout, _longest.get())
            if isinstance(error.__cause__, socket.gaierror) and (limit := name_timeout()) is not None:
                patience = min(patience, limit)
            pause = delay * random.uniform(0.5, 1)  # workers that failed together do not come back together
            if time.monotonic() + pause > began + patience or stopping.wait(pause):
                raise
            delay = min(2 * delay, LONGEST)
