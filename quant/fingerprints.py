"""Marks of encoded rows: taken when they are made, and compared when they are read again.

A search for the best scales costs many times what decoding costs. Marks tell that a file holds exactly the bytes that
the
encoder gave, so that a proof need not search for all of them again.
"""

from __future__ import annotations

import threading
from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ggferry.quant.types import Bytes

SAMPLE = 8
"""Of so many pieces of a tensor one is encoded again, the first one always."""
_BYTES = 8


class Fingerprints:
    """A mark of every piece of the tensors that were encoded, 8 bytes each; safe to use from any thread.

    A piece is a number of consecutive rows, the same for all pieces of a tensor but the last.
    """

    def __init__(self) -> None:
        self._marks: dict[str, array[int]] = {}
        self.unrepeatable: set[str] = set()
        """Names of tensors that encoding their rows alone does not give again (`quant.rounding.feedback`)."""
        self._lock = threading.Lock()

    def put(self, name: str, rows: int, piece: int, start: int, blocks: Bytes) -> None:
        """Take marks of encoded rows.

        Args:
            name: The tensor.
            rows: Its rows.
            piece: Rows of a piece.
            start: The first of these rows, the beginning of a piece.
            blocks: uint8 `(n, row bytes)`; of whole pieces, but for the last of the tensor.
        """
        with self._lock:
            marks = self._marks.setdefault(name, array("Q", bytes(_BYTES * -(-rows // piece))))
        for first in range(0, len(blocks), piece):
            marks[(start + first) // piece] = _mark(blocks[first : first + piece])

    def hold(self, name: str, piece: int, start: int, blocks: Bytes) -> bool:
        """Return whether the piece that begins with row `start` is what was marked."""
        marks = self._marks.get(name)
        return marks is not None and marks[start // piece] == _mark(blocks)

    def sampled(self, name: str, piece: int, start: int) -> bool:
        """Return whether the piece is to be encoded again: one of a sample, or one without a mark."""
        return name not in self._marks or (start // piece % SAMPLE == 0 and name not in self.unrepeatable)


def _mark(blocks: Bytes) -> int:
    from blake3 import blake3

    return int.from_bytes(blake3(blocks.data).digest(length=_BYTES), "little")
