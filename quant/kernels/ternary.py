"""Encoders of TQ1_0 and TQ2_0: `quantize_row_tq1_0_ref`, `quantize_row_tq2_0_ref` of ggml-quants.c."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ggferry.quant.codecs.ternary import TYPES
from ggferry.quant.kernels.common import F, I, encode_rows, half_bits, inline, kernel, put_half
from ggferry.quant.kernels.lanes import (
    WIDTH,
    absolute,
    as_ints,
    highest,
    int_room,
    lane_numbers,
    load,
    maximum,
    pointer,
    rolled,
    scalar_float,
    skip,
    spread,
    store,
    where,
)

if TYPE_CHECKING:
    from ggferry.quant.types import Bytes, Floats

BLOCK = 256


@inline
def greatest(x):
    """The greatest magnitude of a block; for a NaN or an infinity, one that is not finite."""
    most = spread(I(0))
    for i in range(0, BLOCK, WIDTH):
        rolled()
        most = maximum(most, as_ints(absolute(load(x, i))))
    return scalar_float(highest(most))


@inline
def reciprocal(d):
    """Return 1 / d; 0 where d is 0 or so small that 1 / d overflows.

    `lroundf` then makes LONG_MIN of infinities and NaNs, whose low half is 0, as for 0 itself.
    """
    inverse = F(1) / d if d > 0 else F(0)
    return inverse if inverse <= F(3.4028235e38) else F(0)


@inline
def trits(x, at, inverse):
    """x / d rounded half away from zero, plus one: 0, 1 or 2, since |x / d| is hardly above 1."""
    v = load(x, at) * inverse
    return where(v >= F(0.5), spread(I(2)), where(v <= F(-0.5), spread(I(0)), spread(I(1))))


@inline
def ceil_of_256_243rds(q):
    """⌈256·q / 243⌉ for q < 243, so that the trits come back from the top by multiplying with 3."""
    return (q * 256 + 242) * 69043 >> 24


@kernel
def _tq1_0(values, out):
    """−1, or the number of the first block that is not finite."""
    last = int_room(WIDTH)
    for block in range(len(values) // BLOCK):
        x, y = skip(pointer(values), BLOCK * block), skip(pointer(out), 54 * block)
        d = greatest(x)
        if not d <= F(3.4028235e38):
            return block
        inverse = reciprocal(d)
        for m in range(0, 48, WIDTH):
            rolled()
            first, step = (m, 32) if m < 32 else (128 + m, 16)
            q = trits(x, first, inverse)
            for n in range(1, 5):
                q = q * 3 + trits(x, first + n * step, inverse)
            store(y, m, ceil_of_256_243rds(q))
        odd = lane_numbers() >= 4
        q = trits(x, 240, inverse) * where(odd, spread(I(27)), spread(I(81)))
        store(last, 0, q + trits(x, 248, inverse) * where(odd, spread(I(3)), spread(I(9))))
        for m in range(4):
            y[48 + m] = ceil_of_256_243rds(last[m] + last[m + 4])
        put_half(y, 52, half_bits(d))
    return -1


@kernel
def _tq2_0(values, out):
    """−1, or the number of the first block that is not finite."""
    for block in range(len(values) // BLOCK):
        x, y = skip(pointer(values), BLOCK * block), skip(pointer(out), 66 * block)
        d = greatest(x)
        if not d <= F(3.4028235e38):
            return block
        inverse = reciprocal(d)
        for m in range(0, 64, WIDTH):
            rolled()
            first = m if m < 32 else 96 + m
            q = trits(x, first, inverse)
            for n in range(1, 4):
                q |= trits(x, first + 32 * n, inverse) << 2 * n
            store(y, m, q)
        put_half(y, 64, half_bits(d))
    return -1


def encode_tq1_0(values: Floats, weights: Floats | None = None) -> Bytes:
    return encode_rows(TYPES["TQ1_0"], lambda x, out, first: _tq1_0(x, out) < 0, values)


def encode_tq2_0(values: Floats, weights: Floats | None = None) -> Bytes:
    return encode_rows(TYPES["TQ2_0"], lambda x, out, first: _tq2_0(x, out) < 0, values)
