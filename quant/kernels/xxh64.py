"""XXH64 with seed 0, which llama-gguf-hash prints and Python's library lacks.

Algorithm and constants: the xxHash specification (XXH64), https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np

P1, P2, P3, P4, P5 = (
    np.uint64(0x9E3779B185EBCA87),
    np.uint64(0xC2B2AE3D27D4EB4F),
    np.uint64(0x165667B19E3779F9),
    np.uint64(0x85EBCA77C2B2AE63),
    np.uint64(0x27D4EB2F165667C5),
)
STRIPE = 32
_MASK = (1 << 64) - 1


def _stripes(words: Any, lanes: Any) -> None:
    for at in range(0, words.size, 4):
        for lane in range(4):
            value = lanes[lane] + words[at + lane] * P2
            lanes[lane] = ((value << np.uint64(31)) | (value >> np.uint64(33))) * P1


_run = nb.njit(nb.void(nb.types.Array(nb.uint64, 1, "C", readonly=True), nb.uint64[::1]), nogil=True)(_stripes)


class XXH64:
    """A digest that is fed in pieces, as those of hashlib are."""

    def __init__(self) -> None:
        one, two = int(P1), int(P2)
        self._lanes = np.array([(one + two) & _MASK, two, 0, -one & _MASK], np.uint64)
        self._rest, self._size = b"", 0

    def update(self, data: Any) -> None:
        """Feed bytes."""
        view = memoryview(data).cast("B")
        self._size += len(view)
        if self._rest or len(view) < STRIPE:
            missing = STRIPE - len(self._rest)
            self._rest += bytes(view[:missing])
            view = view[missing:]
            if len(self._rest) < STRIPE:
                return
            _run(np.frombuffer(self._rest, "<u8"), self._lanes)
        whole = len(view) - len(view) % STRIPE
        if whole:
            _run(np.frombuffer(view[:whole], "<u8"), self._lanes)
        self._rest = bytes(view[whole:])

    def hexdigest(self) -> str:
        """Return the digest of what was fed so far, 16 hex digits."""
        value = self._merged() if self._size >= STRIPE else int(P5)
        value = (value + self._size) & _MASK
        rest = self._rest
        while len(rest) >= 8:
            value = _rotated(value ^ _round(0, int.from_bytes(rest[:8], "little")), 27) * int(P1) + int(P4) & _MASK
            rest = rest[8:]
        if len(rest) >= 4:
            value = (
                _rotated(value ^ (int.from_bytes(rest[:4], "little") * int(P1) & _MASK), 23) * int(P2) + int(P3) & _MASK
            )
            rest = rest[4:]
        for byte in rest:
            value = _rotated(value ^ (byte * int(P5) & _MASK), 11) * int(P1) & _MASK
        value = (value ^ value >> 33) * int(P2) & _MASK
        value = (value ^ value >> 29) * int(P3) & _MASK
        return f"{value ^ value >> 32:016x}"

    def _merged(self) -> int:
        lanes = [int(lane) for lane in self._lanes]
        value = sum(_rotated(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & _MASK
        for lane in lanes:
            value = ((value ^ _round(0, lane)) * int(P1) + int(P4)) & _MASK
        return value


def _round(lane: int, word: int) -> int:
    return _rotated((lane + word * int(P2)) & _MASK, 31) * int(P1) & _MASK


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & _MASK
