"""Digest tensors by the bytes that are written, in whatever order threads write them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

ReadBack = Callable[[str, int, memoryview], None]
"""`read_back(name, offset, buffer)` fills a buffer with what was written of a tensor, from byte `offset` of it."""
PIECE = 4 << 20


def fresh_digest(threads: int = 1) -> Any:
    """Return a BLAKE3 state that uses so many threads."""
    from blake3 import blake3

    return blake3(max_threads=threads)


def digest_of_set(sums: Iterable[str]) -> str:
    """Return the digest of a model's tensors: BLAKE3 of the BLAKE3 digests of their data, in hex, a line each."""
    state = fresh_digest()
    for each in sums:
        state.update(f"{each}\n".encode())
    return str(state.hexdigest())


class TensorDigests:
    """The BLAKE3 digests of tensors that are being written; `add` may be called from any number of threads at once.

    BLAKE3 takes the data of a tensor from its first byte to its last. A piece that comes before its turn is read back
    from the file, where the page cache still has it, so that memory does not grow with the distance.
    """

    def __init__(self, read_back: ReadBack) -> None:
        self._read_back = read_back
        self._tensors: dict[str, _Tensor] = {}
        self._lock = threading.Lock()

    def add(self, name: str, offset: int, data: memoryview) -> None:
        """Take bytes that have been written at byte `offset` of a tensor, as the file holds them."""
        with self._lock:
            tensor = self._tensors.setdefault(name, _Tensor())
        with tensor.lock:
            if offset != tensor.end:
                tensor.ahead[offset] = len(data)
                return
            tensor.update(data)
            while count := tensor.ahead.pop(tensor.end, 0):
                self._take_back(name, tensor, count)

    def hexdigest(self, name: str) -> str:
        """Return the digest of a tensor once all of it is written."""
        return str(self._tensors.get(name, _Tensor()).state.hexdigest())

    def _take_back(self, name: str, tensor: _Tensor, count: int) -> None:
        stop = tensor.end + count
        while tensor.end < stop:
            buffer = memoryview(bytearray(min(PIECE, stop - tensor.end)))
            self._read_back(name, tensor.end, buffer)
            tensor.update(buffer)


class _Tensor:
    """The digest of the first `end` bytes of a tensor, and the pieces behind them that are written: offset → bytes."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.state = fresh_digest()
        self.end = 0
        self.ahead: dict[int, int] = {}

    def update(self, data: memoryview) -> None:
        self.state.update(data)
        self.end += len(data)
