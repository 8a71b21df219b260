"""Results kept by the content they were made of: an archive holds one vocabulary in twenty files."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


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
            found = self._kept.get(key)
            if found is None:
                return None
            self._kept.move_to_end(key)
            return found[0]

    def put(self, key: Hashable, value: V, nbytes: int) -> None:
        """Keep `value` until newer ones need its room; not at all where it needs more than there is."""
        with self._lock:
            self._held -= self._kept.pop(key, (value, 0))[1]
            if nbytes > self.most:
                return
            self._kept[key] = value, nbytes
            self._held += nbytes
            while self._held > self.most:
                self._held -= self._kept.popitem(last=False)[1][1]
