"""Encoders of Q1_0 and Q2_0: `quantize_row_q1_0_ref`, `quantize_row_q2_0_ref` of ggml-quants.c."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ggferry.quant.codecs.onebit import TYPES
from ggferry.quant.kernels.common import F, I, encode_rows, half_bits, inline, kernel, load16, put_half, spread16
from ggferry.quant.kernels.lanes import (
    WIDTH,
    absolute,
    as_ints,
    bits,
    float_room,
    highest,
    load,
    maximum,
    pointer,
    rolled,
    scalar_float,
    skip,
    spread,
    store,
    transpose,
)

if TYPE_CHECKING:
    from ggferry.quant.types import Bytes, Floats

BATCH = 16
"""Blocks of Q1_0 at once: each one's sum runs in order, and the sixteen of them side by side."""

_FINITE = F(3.4028235e38)


@kernel
def _q1_0(values, out):
    """False for values that are not finite."""
    means, tile = float_room(BATCH), float_room(256)
    for batch in range(len(values) // (128 * BATCH)):
        x = skip(pointer(values), 128 * BATCH * batch)
        total, worst = spread16(F(0)), as_ints(spread16(F(0)))
        for i in range(0, 128, 16):
            rolled()
            transpose(x, i, 128, tile, 0, 16)
            for k in range(0, 256, 16):
                v = absolute(load16(tile, k))
                worst = maximum(worst, as_ints(v))
                total += v
        if highest(worst) >= 0x7F800000:
            return False
        store(means, 0, total / F(128))
        for k in range(BATCH):
            rolled()
            y = skip(pointer(out), 18 * (BATCH * batch + k))
            put_half(y, 0, half_bits(means[k]))
            for i in range(16):
                y[2 + i] = bits(load(x, 128 * k + 8 * i) >= F(0))
    return True


@inline
def apart(b):
    """The eight bits of a byte, two bits apart."""
    b = (b | b << 4) & 0x0F0F
    b = (b | b << 2) & 0x3333
    return (b | b << 1) & 0x5555


@kernel
def _q2_0(values, out):
    """False for values that are not finite."""
    for block in range(len(values) // 64):
        x, y = skip(pointer(values), 64 * block), skip(pointer(out), 18 * block)
        most = spread(I(0))
        for i in range(0, 64, WIDTH):
            most = maximum(most, as_ints(absolute(load(x, i))))
        d = scalar_float(highest(most))
        if not d <= _FINITE:
            return False
        inverse = F(1) / d if d > 0 else F(0)
        # an inverse that overflows makes infinities and NaNs, these INT_MIN on x86, and that the lowest level
        above = F(-0.5) if inverse <= _FINITE else F(1)
        if not inverse <= _FINITE:
            inverse = F(0)
        for i in range(8):
            v = load(x, 8 * i) * inverse
            twos = np.int64(bits(v >= F(0.5)))
            put_half(y, 2 + 2 * i, apart(np.int64(bits(v > above)) & ~twos) | apart(twos) << 1)
        put_half(y, 0, half_bits(d))
    return True


def encode_q1_0(values: Floats, weights: Floats | None = None) -> Bytes:
    return encode_rows(TYPES["Q1_0"], lambda x, out, first: _q1_0(x, out), values, batch=BATCH)


def encode_q2_0(values: Floats, weights: Floats | None = None) -> Bytes:
    return encode_rows(TYPES["Q2_0"], lambda x, out, first: _q2_0(x, out), values)
