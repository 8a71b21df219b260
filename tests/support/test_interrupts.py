"""An interrupt comes after what it must not cut in two, and is not lost."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from ggferry.support.interrupts import interrupts_wait


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """A shell's background jobs begin with interrupts ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_it_comes_at_the_end() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), interrupts_wait():
        signal.raise_signal(signal.SIGINT)
        done.append("the rest")
    assert done == ["the rest"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_it_comes_when_the_block_failed_too() -> None:
    with pytest.raises(KeyboardInterrupt) as caught, interrupts_wait():
        signal.raise_signal(signal.SIGINT)
        raise ValueError
    assert isinstance(caught.value.__context__, ValueError)


def test_who_ignores_it_goes_on_ignoring_it() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupts_wait():
            signal.raise_signal(signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_threads_have_no_interrupts_to_wait_for() -> None:
    seen = []

    def work() -> None:
        with interrupts_wait():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
