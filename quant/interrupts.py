"""Ctrl-C kept away from the few steps that cannot be left half-done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """An interrupt of the main thread takes effect at the end of the block."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    told: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: told.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if told:
            before(*told[0])
