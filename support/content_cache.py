"""Keep results by the content they were made of, while a whole archive is examined.

In an archive, about twenty files share one vocabulary. Elsewhere nothing is kept: a conversion makes and checks
everything itself.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

V = TypeVar("V")
ITEM_BYTES = 80  # of memory that a string, and its place in a tuple, take besides the characters
_keeping = False


def held(texts: Sequence[str] | Sequence[bytes]) -> int:
    """Return roughly how many bytes of memory `texts` take."""
    return sum(map(len, texts)) + ITEM_BYTES * len(texts)


@contextmanager
def keeping() -> Iterator[None]:
    """Let `Recent` keep and find results within the context; what is kept stays for the next time."""
    global _keeping
    before, _keeping = _keeping, True
    try:
        yield
    finally:
        _keeping = before


def keeps() -> bool:
    """Return whether results are kept and found at present."""
    return _keeping


class Recent(Generic[V]):
    """What was made most recently of which content, up to `most` bytes as the callers count them.

    The key must be the content itself or its digest, so that a result is the one that would be made again. Errors are
    never kept, because they name their file. Nobody may change what is kept. Thread-safe.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._kept: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()
        self._held = 0
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> V | None:
        """Return what was made of this content, or None."""
        with self._lock:
            found = self._kept.get(key) if _keeping else None
            if found is None:
                return None
            self._kept.move_to_end(key)
            return found[0]

    def takes(self, nbytes: int) -> bool:
        """Return whether `put` would keep something of that size."""
        return _keeping and nbytes <= self.most

    def put(self, key: Hashable, value: V, nbytes: int) -> None:
        """Keep `value` until newer values need its room."""
        if not self.takes(nbytes):
            return
        with self._lock:
            self._held += nbytes - self._kept.pop(key, (value, 0))[1]
            self._kept[key] = value, nbytes
            while self._held > self.most:
                self._held -= self._kept.popitem(last=False)[1][1]
