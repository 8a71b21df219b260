"""Decoders of numbers that stand alone, and the way back: float16, bfloat16, FP8.

Values are those of codecs/plain.py and codecs/checkpoint_types.py.
"""

from __future__ import annotations

import numpy as np

from ggferry.quant.kernels.common import F, I, half_bits, inline, load16, spread16
from ggferry.quant.kernels.decode_common import decoder, finite_half, half
from ggferry.quant.kernels.lanes import (
    absolute,
    as_floats,
    as_ints,
    highest,
    maximum,
    scalar_bits,
    scalar_float,
    store,
)
from ggferry.quant.kernels.lanes_bytes import octets, pairs, store_pairs


@inline
def widened(magnitude, sign, shift, factor):
    """The floats whose lower bits are `magnitude << shift`, times a power of two: exact, for subnormals, too."""
    return as_floats(as_ints(as_floats(magnitude << shift) * factor) | sign)


@decoder
def f16(p, out, columns):
    worst, whole = as_ints(spread16(F(0))), out.size - out.size % 16
    for i in range(0, whole, 16):
        h = pairs(p, 2 * i)
        size = h & 0x7FFF
        worst = maximum(worst, size)
        store(out, i, widened(size, (h & 0x8000) << 16, I(13), F(2.0**112)))
    if highest(worst) >= 0x7C00:
        return False
    for i in range(whole, out.size):
        h = half(p, 2 * i)
        if h & 0x7C00 == 0x7C00:
            return False
        out[i] = finite_half(h)
    return True


@decoder
def bf16(p, out, columns):
    whole = out.size - out.size % 16
    for i in range(0, whole, 16):
        store(out, i, as_floats(pairs(p, 2 * i) << 16))
    for i in range(whole, out.size):
        out[i] = scalar_float(np.int32(np.uint32(half(p, 2 * i) << 16)))
    return True


@inline
def byte_floats(p, out, shift, factor, endless):
    worst, whole = as_ints(spread16(F(0))), out.size - out.size % 16
    for i in range(0, whole, 16):
        x = octets(p, i)
        size = x & 0x7F
        worst = maximum(worst, size)
        store(out, i, widened(size, (x & 0x80) << 24, shift, factor))
    most = highest(worst)
    for i in range(whole, out.size):
        size = np.int64(p[i] & 0x7F)
        most = max(most, size)
        v = scalar_float(I(size << np.int64(shift))) * factor
        out[i] = -v if p[i] & 0x80 else v
    return most < endless


@decoder
def f8_e4m3(p, out, columns):
    return byte_floats(p, out, I(20), F(2.0**120), 0x7F)


@decoder
def f8_e5m2(p, out, columns):
    return byte_floats(p, out, I(21), F(2.0**112), 0x7C)


@inline
def rounded_f16(v):
    """The bits of the float16 nearest to lanes below 65520: the adder rounds to float16's step (codecs/plain.py)."""
    size = absolute(v)
    magic = maximum(as_ints(size) & 0x7F800000, 113 << 23) + (13 << 23)
    steps = as_ints(size + as_floats(magic)) - magic + ((magic >> 13) - (126 << 10))
    return steps | as_ints(v) >> 16 & 0x8000


@decoder
def narrow_f16(values, out, columns):
    """False where a value rounds to infinity, or is NaN."""
    worst, whole = as_ints(spread16(F(0))), values.size - values.size % 16
    for i in range(0, whole, 16):
        v = load16(values, i)
        worst = maximum(worst, as_ints(absolute(v)))
        store_pairs(out, 2 * i, rounded_f16(v))
    most = highest(worst)
    for i in range(whole, values.size):
        most = max(most, scalar_bits(values[i]) & 0x7FFFFFFF)
        h = half_bits(values[i])
        out[2 * i], out[2 * i + 1] = h & 255, h >> 8
    return most < scalar_bits(F(65520.0))


@decoder
def narrow_bf16(values, out, columns):
    """False where a value rounds to infinity, or is NaN."""
    worst, whole = as_ints(spread16(F(0))), values.size - values.size % 16
    for i in range(0, whole, 16):
        v = load16(values, i)
        w = as_ints(v)
        worst = maximum(worst, w & 0x7FFFFFFF)
        store_pairs(out, 2 * i, (w + ((w >> 16 & 1) + 0x7FFF)) >> 16)
    most = highest(worst)
    for i in range(whole, values.size):
        w = np.int64(np.uint32(scalar_bits(values[i])))
        most = max(most, w & 0x7FFFFFFF)
        h = w + (w >> 16 & 1) + 0x7FFF >> 16
        out[2 * i], out[2 * i + 1] = h & 255, h >> 8 & 255
    return most < 0x7F7F8000
