"""Results kept by the content they were made of, where a whole archive is looked at: it holds one vocabulary in twenty
files. Elsewhere nothing is kept: a conversion makes and checks everything itself."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

V = TypeVar("V")
ITEM_BYTES = 80  # of memory that a string, and its place in a tuple, take beside the characters
_keeping = False


def held(texts: Sequence[str] | Sequence[bytes]) -> int:
    """Bytes of memory that `texts` take, roughly."""
    return sum(map(len, texts)) + ITEM_BYTES * len(texts)


@contextmanager
def keeping() -> Iterator[None]:
    """For as long, `Recent` keeps and finds; what is kept outlasts it, for the next time."""
    global _keeping
    before, _keeping = _keeping, True
    try:
        yield
    finally:
        _keeping = before


class Recent(Generic[V]):
    """What was last made of which content, `most` bytes together by their makers' reckoning.

    The key must be the content itself or its digest, so that a result is the one that would be made again; errors are
    never kept, since they name their file. Nobody may change what is kept. Safe in threads.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._kept: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()
        self._held = 0
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> V | None:
        with self._lock:
            found = self._kept.get(key) if _keeping else None
            if found is None:
                return None
            self._kept.move_to_end(key)
            return found[0]

    def takes(self, nbytes: int) -> bool:
        """Whether `put` would keep something of that size."""
        return _keeping and nbytes <= self.most

    def put(self, key: Hashable, value: V, nbytes: int) -> None:
        """Keep `value` until newer ones need its room."""
        if not self.takes(nbytes):
            return
        with self._lock:
            self._held += nbytes - self._kept.pop(key, (value, 0))[1]
            self._kept[key] = value, nbytes
            while self._held > self.most:
                self._held -= self._kept.popitem(last=False)[1][1]
