"""Keep what was unpacked from one opening of a file to the next, within `holding`.

It imports next to nothing, because every command enters it.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Protocol

from ggferry.support.progress import Stage, silent


class Closable(Protocol):
    """What is kept."""

    def close(self) -> None: ...


USUAL: list[Stage] = [silent]
"""How unpacking is shown where no context says otherwise."""
_HELD: dict[Hashable, Closable] = {}
_HOLDERS = [0]
_LOCK = threading.Lock()


@contextmanager
def holding() -> Iterator[None]:
    """Unpack each file once within the context, however often it is opened."""
    with _LOCK:
        _HOLDERS[0] += 1
    try:
        yield
    finally:
        with _LOCK:
            _HOLDERS[0] -= 1
            left = [] if _HOLDERS[0] else [*_HELD.values()]
            if left:
                _HELD.clear()
        for each in left:
            each.close()


def show_unpacking(stage: Stage) -> None:
    """Show unpacking in this way from now on in this process, unless a context says otherwise."""
    USUAL[0] = stage


def hold(key: Hashable, made: Closable) -> None:
    """Keep something until the context ends; outside of one, do not."""
    with _LOCK:
        if _HOLDERS[0]:
            _HELD[key] = made


def held(key: Hashable) -> Closable | None:
    """Return what is kept by this key; None for nothing."""
    with _LOCK:
        return _HELD.get(key)


def is_held(made: Closable) -> bool:
    """Return whether something is kept."""
    with _LOCK:
        return any(one is made for one in _HELD.values())
