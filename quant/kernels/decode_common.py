"""What all decoders share: how they are compiled, scales read from blocks, and the way values are put.

A decoder is `run(packed, out, columns)`: uint8 blocks to as many float32, in the operations and the order of the numpy
codec, so that every bit is equal. It returns False when a scale is infinite or NaN, and then the caller asks the numpy
codec, because which of two NaNs survives an operation is the compiler's choice. `columns` serves planar rows only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba as nb
import numpy as np

from ggferry.quant.kernels.common import F, I, inline, kernel
from ggferry.quant.kernels.lanes import scalar_float, store, to_floats

_BYTES = nb.types.Array(nb.uint8, 1, "C", readonly=True)
DECODE = (_BYTES, nb.float32[::1], nb.int64)
_SINGLES = nb.types.Array(nb.float32, 1, "C", readonly=True)
NARROW = (_SINGLES, nb.uint8[::1], nb.int64)
UNPACK = (nb.types.Array(nb.uint8, 2, "C", readonly=True), nb.uint8[:, ::1], nb.int64)
APART = (_SINGLES, _SINGLES, _SINGLES, nb.int64, nb.float32, nb.float32, nb.int64, nb.float64[:, ::1])
_ROWS = nb.types.Array(nb.float32, 2, "C", readonly=True)
PRODUCTS = (_ROWS, _ROWS, nb.float32[:, ::1], nb.int64)
ALIKE = (_SINGLES, _SINGLES, nb.int64, nb.int64, nb.float64, nb.float64, nb.float64)
"""The arguments of decoders, of roundings (`decode_plain`), of packed integers, of `products`, of comparisons."""


def decoder(function: Callable[..., Any]) -> Any:
    """Return a kernel for any bytes, read-only or not; it is compiled when `load` is called, and not before."""
    return kernel(function)


@inline
def half(p, at):
    """The two bytes of a float16 as an integer."""
    return np.int64(p[at]) | np.int64(p[at + 1]) << 8


@inline
def word(p, at):
    """Four bytes as an integer."""
    return half(p, at) | half(p, at + 2) << 16


@inline
def endless_half(h):
    """Whether a float16 is infinite or NaN."""
    return h & 0x7C00 == 0x7C00


@inline
def finite_half(h):
    """The float32 of a finite float16; a shift, and a product that is exact for subnormals, too."""
    v = scalar_float(I((h & 0x7FFF) << 13)) * F(2.0**112)
    return -v if h & 0x8000 else v


@inline
def endless_single(w):
    return w & 0x7F800000 == 0x7F800000


@inline
def single(w):
    """The float32 of its bits as an integer."""
    return scalar_float(np.int32(np.uint32(w)))


@inline
def scaled(out, at, levels, d):
    store(out, at, to_floats(levels) * d)


@inline
def shifted(out, at, levels, d, m):
    store(out, at, to_floats(levels) * d + m)
