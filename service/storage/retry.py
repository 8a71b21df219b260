"""Repeat what passing trouble prevented, with growing delays, for as long as `urls.Access.patience` says."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from ggferry.formats.errors import TransientError
from ggferry.service.storage.urls import granted

T = TypeVar("T")
FIRST, LONGEST = 0.25, 10.0  # seconds between two attempts
stopping = threading.Event()
"""Set when the run ends: whoever waits gives up at once."""


def retry(call: Callable[[], T]) -> T:
    """Return what `call` returns once it no longer raises TransientError.

    Raises the last one when patience has run out.
    """
    deadline, delay = time.monotonic() + granted().retry_timeout, FIRST
    while True:
        try:
            return call()
        except TransientError:
            pause = delay * random.uniform(0.5, 1)  # workers that failed together do not come back together
            if time.monotonic() + pause > deadline or stopping.wait(pause):
                raise
            delay = min(2 * delay, LONGEST)
