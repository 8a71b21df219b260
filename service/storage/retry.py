"""Repeat what passing trouble prevented, with growing delays, for as long as `urls.Access.patience` says."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from ggferry.formats.errors import PassingError
from ggferry.service.storage.urls import granted

T = TypeVar("T")
FIRST, LONGEST = 0.25, 10.0  # seconds between two attempts
stopping = threading.Event()
"""Set when the run ends: whoever waits gives up at once."""


def patiently(call: Callable[[], T]) -> T:
    """Return what `call` returns once it no longer raises PassingError.

    Raises the last one when patience has run out.
    """
    deadline, delay = time.monotonic() + granted().patience, FIRST
    while True:
        try:
            return call()
        except PassingError:
            pause = delay * random.uniform(0.5, 1)  # workers that failed together do not come back together
            if time.monotonic() + pause > deadline or stopping.wait(pause):
                raise
            delay = min(2 * delay, LONGEST)
