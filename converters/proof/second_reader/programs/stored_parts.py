"""Parts of stored tensors: by rows and columns, as numbers, as bits of a stream, as codes of four bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

Array = Any
Settings = Mapping[str, Any]


class Named(Protocol):
    """Tensors by name, of which parts are read."""

    def __contains__(self, name: str) -> bool: ...
    def shape(self, name: str) -> tuple[int, ...]: ...
    def kind(self, name: str) -> str: ...
    def __call__(self, name: str, *places: slice) -> Array: ...


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def floats(read: Named, name: str, *places: slice) -> Array:
    return np.asarray(read(name, *places)).astype(np.float32)


def cover(numbers: Array) -> slice:
    return slice(int(numbers.min()), int(numbers.max()) + 1)


def block(read: Named, name: str, r: Array, c: Array) -> Array:
    """Return the elements of a matrix at rows `r` and columns `c`, as they are stored."""
    down, across = cover(r), cover(c)
    return np.asarray(read(name, down, across))[np.ix_(r - down.start, c - across.start)]


def bits_at(words: Array, at: Array, bits: int) -> Array:
    """Return the numbers of `bits` bits that begin at bits `at` of a stream of words along the last axis."""
    words = words.astype(np.int64) & 0xFFFFFFFF
    low = words[..., at // 32] >> at % 32
    beyond = np.minimum(at // 32 + 1, words.shape[-1] - 1)
    high = words[..., beyond] << (32 - at % 32)
    return (low | np.where(at % 32 + bits > 32, high, 0)) & ((1 << bits) - 1)


def powers(codes: Array) -> Array:
    """Return the E8M0 scales of microscaling: powers of two, and NaN for the last code."""
    exact = np.exp2(codes.astype(np.float64) - 127).astype(np.float32)
    return np.where(codes == 255, np.float32(np.nan), exact)


def nibbles(read: Named, name: str, r: Array, c: Array) -> Array:
    """Return four-bit codes of which two neighbors share a byte, the first in its lower half."""
    data = np.asarray(read(name, cover(r), cover(c // 2)))[np.ix_(r - r.min(), c // 2 - c.min() // 2)]
    return np.where(c % 2, data.view(np.uint8) >> 4, data.view(np.uint8) & 15)


def spread(read: Named, name: str, shape: tuple[int, ...], tall: int, wide: int, r: Array, c: Array) -> Array:
    """Return the scale of each element: one for all, one a row, or one a patch of `tall` by `wide`."""
    own = read.shape(name)
    if not own or max(own) == 1 == min(own):
        return floats(read, name).reshape(1, 1)
    if len(own) == 1 or own == (shape[0], 1):
        return floats(read, name, cover(r)).reshape(-1)[r - r.min()][:, None]
    tall = tall or 1
    wide = wide or shape[1] // own[1]
    return block(read, name, r // tall, np.minimum(c // wide, own[1] - 1)).astype(np.float32)
