"""Keep Ctrl-C and SIGTERM away from the few steps that cannot be left half-done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOPS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Delay an interrupt of the main thread, and a SIGTERM that has a handler, until the end of the block."""
    before = {number: signal.getsignal(number) for number in STOPS}
    heeded = {number: handler for number, handler in before.items() if callable(handler)}
    if threading.current_thread() is not threading.main_thread() or not heeded:
        yield
        return
    received: list[tuple[int, FrameType | None]] = []
    for number in heeded:
        signal.signal(number, lambda number, frame: received.append((number, frame)))
    try:
        yield
    finally:
        for number, handler in heeded.items():
            signal.signal(number, handler)
        if received:
            heeded[signal.Signals(received[0][0])](*received[0])
