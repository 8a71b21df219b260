"""Encoders of Q4_0, Q4_1, Q5_0, Q5_1, Q8_0: blocks of 32 with one scale.

Without an importance matrix a block is its two halves, 16 lanes each (`quantize_row_*_ref` of ggml-quants.c); with one,
`LANES` blocks are searched at once (`quantize_row_*_impl`) and then packed one by one. Nibbles are split: byte j holds
element j low and element j + 16 high; bit e of the 32 after the scales is the fifth bit of element e.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ggferry.quant.blocks import check_values
from ggferry.quant.codecs.simple import TYPES
from ggferry.quant.kernels.common import (
    LANES,
    F,
    I,
    all_finite,
    encode_rows,
    half_bits,
    inline,
    kernel,
    levels,
    load,
    load16,
    put_half,
    scratch,
    spread,
    take,
)
from ggferry.quant.kernels.fits import fit_line, fit_scale
from ggferry.quant.kernels.lanes import (
    as_floats,
    as_ints,
    bits,
    highest,
    lowest,
    maximum,
    minimum,
    scalar_bits,
    scalar_float,
    sqrt,
    store,
    to_ints,
)

if TYPE_CHECKING:
    from ggferry.quant.types import Bytes, Floats

INFINITY = 0x7F800000
"""The bits of float32 infinity; a NaN's are above."""


# ------------------------------------------------------------------ packing


@inline
def put_levels(out, at, a, b, five):
    """32 levels: 16 bytes of nibbles, after 4 bytes of fifth bits where there are `five` bits a level."""
    if five:
        high = np.int64(bits(a > 15)) | np.int64(bits(b > 15)) << 16
        for i in range(4):
            out[at + i] = high >> 8 * i & 255
        at += 4
    store(out, at, a & 15 | (b & 15) << 4)


@inline
def reciprocal(d):
    """Return 1 / d; 0 for 0 and for a d so small that 1 / d overflows.

    The C code's levels are 0 there, as a conversion of infinity or NaN to int8 is on x86.
    """
    inverse = F(1) / d if d != F(0) else F(0)
    return inverse, inverse > F(3.4028235e38)


# ------------------------------------------------------------------ without an importance matrix


@kernel
def q8_0(values, out, first):
    half = scalar_bits(F(0.49999997))  # trunc(v ± this) is C's roundf for every float32 below 2²³
    for block in range(values.size // 32):
        a, b = load16(values, 32 * block), load16(values, 32 * block + 16)
        most = highest(maximum(as_ints(a) & 0x7FFFFFFF, as_ints(b) & 0x7FFFFFFF))
        if most >= INFINITY:
            return False
        d = scalar_float(most) / F(127)
        inverse, endless = reciprocal(d)
        if endless:
            inverse = F(0)
        o = 34 * block
        put_half(out, o, half_bits(d))
        a, b = a * inverse, b * inverse
        store(out, o + 2, to_ints(a + as_floats(as_ints(a) & I(-0x80000000) | half)))
        store(out, o + 18, to_ints(b + as_floats(as_ints(b) & I(-0x80000000) | half)))
    return True


@inline
def plain_q4_0_q5_0(values, out, five):
    """The first of the values with the largest magnitude becomes the lowest level."""
    zero, top = (16, 31) if five else (8, 15)
    size = 22 if five else 18
    for block in range(values.size // 32):
        a, b = load16(values, 32 * block), load16(values, 32 * block + 16)
        most = highest(maximum(as_ints(a) & 0x7FFFFFFF, as_ints(b) & 0x7FFFFFFF))
        if most >= INFINITY:
            return False
        peak = scalar_float(most)
        above = np.int64(bits(a == peak)) | np.int64(bits(b == peak)) << 16
        below = np.int64(bits(a == -peak)) | np.int64(bits(b == -peak)) << 16
        if below != 0 and (above == 0 or below & -below < above & -above):
            peak = -peak
        d = peak / F(-zero)
        inverse, endless = reciprocal(d)
        o = size * block
        put_half(out, o, half_bits(d))
        shift = F(zero) + F(0.5)
        if endless:
            inverse, shift = F(0), F(0)
        p = minimum(to_ints(a * inverse + shift), top)
        q = minimum(to_ints(b * inverse + shift), top)
        put_levels(out, o + 2, p, q, five)
    return True


@inline
def plain_q4_1_q5_1(values, out, five):
    top, size = (31, 24) if five else (15, 20)
    for block in range(values.size // 32):
        a, b = load16(values, 32 * block), load16(values, 32 * block + 16)
        p, q = ordered(as_ints(a)), ordered(as_ints(b))
        low_bits, high_bits = lowest(minimum(p, q)), highest(maximum(p, q))
        if high_bits >= INFINITY or low_bits <= ~INFINITY:
            return False
        low = scalar_float(I(ordered(low_bits)))
        high = scalar_float(I(ordered(high_bits)))
        if low == F(0):  # of zeros of both signs the first counts
            at = 32 * block
            while values[at] != F(0):
                at += 1
            low = values[at]
            if high == F(0):
                high = low
        d = (high - low) / F(top)
        inverse, endless = reciprocal(d)
        o = size * block
        put_half(out, o, half_bits(d))
        put_half(out, o + 2, half_bits(low))
        if endless:
            inverse = F(0)
        p = minimum(to_ints((a - low) * inverse + F(0.5)), top)
        q = minimum(to_ints((b - low) * inverse + F(0.5)), top)
        put_levels(out, o + 4, p, q, five)
    return True


@inline
def ordered(b):
    """int32 in the order of the float32 whose bits they are; its own inverse."""
    return b ^ (b >> 31 & 0x7FFFFFFF)


@kernel
def q4_0(values, out, first):
    return plain_q4_0_q5_0(values, out, False)


@kernel
def q5_0(values, out, first):
    return plain_q4_0_q5_0(values, out, True)


@kernel
def q4_1(values, out, first):
    return plain_q4_1_q5_1(values, out, False)


@kernel
def q5_1(values, out, first):
    return plain_q4_1_q5_1(values, out, True)


# ------------------------------------------------------------------ with an importance matrix


@kernel
def row_mean_squares(values, columns, means):
    """Σ x² / columns of every row, summed in order; `LANES` rows at once where there are as many."""
    rows = means.size
    for row in range(0, rows - rows % LANES, LANES):
        total, x, sums = spread(F(0)), scratch(16), scratch(1)
        for column in range(0, columns, 16):
            take(values, row * columns + column, x, 16, columns)
            for e in range(0, 16 * LANES, LANES):
                total += load(x, e) * load(x, e)
        store(sums, 0, total)
        for k in range(LANES):
            means[row + k] = sums[k] / F(columns)
    for row in range(rows - rows % LANES, rows):
        squares = F(0)
        for e in range(row * columns, (row + 1) * columns):
            squares += values[e] * values[e]
        means[row] = squares / F(columns)


@inline
def take_weighted(values, batch, first, weights, sigma2, x, w):
    """`LANES` blocks as `[element][lane]`, and their weights: importance · √(mean square of the row + x²)."""
    per_row = weights.size // 32
    tile, means = scratch(32), scratch(1)
    for k in range(LANES):
        block = first + batch // 32 + k
        for e in range(0, 32, 16):
            store(tile, 32 * k + e, load16(weights, block % per_row * 32 + e))
        means[k] = sigma2[min(block // per_row, sigma2.size - 1)]
    take(values, batch, x, 32, 32)
    take(tile, 0, w, 32, 32)
    for e in range(0, 32 * LANES, LANES):
        v = load(x, e)
        store(w, e, load(w, e) * sqrt(load(means, 0) + v * v))


@inline
def weighted_q4_0_q5_0(values, out, first, weights, sigma2, five):
    zero, size = (16, 22) if five else (8, 18)
    x, w, wx = scratch(32), scratch(32), scratch(32)
    d, ratio, origin = scratch(1), scratch(1), scratch(1)
    for batch in range(0, values.size, 32 * LANES):
        if not all_finite(values, batch, batch + 32 * LANES):
            return False
        take_weighted(values, batch, first, weights, sigma2, x, w)
        found = fit_scale(x, w, wx, 32, zero, True)
        store(d, 0, found[0])
        store(ratio, 0, found[1])
        store(origin, 0, found[2])
        for k in range(LANES):
            at, o = batch + 32 * k, size * (batch // 32 + k)
            put_half(out, o, half_bits(d[k]))
            a = levels(ratio[k] * (load16(values, at) - origin[k]), -zero, zero - 1) + zero
            b = levels(ratio[k] * (load16(values, at + 16) - origin[k]), -zero, zero - 1) + zero
            put_levels(out, o + 2, a, b, five)
    return True


@inline
def weighted_q4_1_q5_1(values, out, first, weights, sigma2, five):
    top, size = (31, 24) if five else (15, 20)
    x, w, level = scratch(32), scratch(32), scratch(32)
    d, low = scratch(1), scratch(1)
    ratio, origin = scratch(1), scratch(1)
    for batch in range(0, values.size, 32 * LANES):
        if not all_finite(values, batch, batch + 32 * LANES):
            return False
        take_weighted(values, batch, first, weights, sigma2, x, w)
        found = fit_line(x, w, level, 32, top, F(-0.9), F(0.05), 36, False)
        store(d, 0, found[0])
        store(low, 0, found[1])
        store(ratio, 0, found[2])
        store(origin, 0, found[3])
        for k in range(LANES):
            at, o = batch + 32 * k, size * (batch // 32 + k)
            put_half(out, o, half_bits(d[k]))
            put_half(out, o + 2, half_bits(low[k]))
            a = levels(ratio[k] * (load16(values, at) - origin[k]), 0, top)
            b = levels(ratio[k] * (load16(values, at + 16) - origin[k]), 0, top)
            put_levels(out, o + 4, a, b, five)
    return True


@kernel
def q4_0_weighted(values, out, first, weights, sigma2):
    return weighted_q4_0_q5_0(values, out, first, weights, sigma2, False)


@kernel
def q5_0_weighted(values, out, first, weights, sigma2):
    return weighted_q4_0_q5_0(values, out, first, weights, sigma2, True)


@kernel
def q4_1_weighted(values, out, first, weights, sigma2):
    return weighted_q4_1_q5_1(values, out, first, weights, sigma2, False)


@kernel
def q5_1_weighted(values, out, first, weights, sigma2):
    return weighted_q4_1_q5_1(values, out, first, weights, sigma2, True)


def _encoder(name: str, plain: Any, weighted: Any) -> Callable[[Floats, Floats | None], Bytes]:
    def encode(values: Floats, weights: Floats | None = None) -> Bytes:
        if weights is None or weighted is None:
            return encode_rows(TYPES[name], plain, values)
        check_values(TYPES[name], values)
        values = np.require(values, requirements="CAW")
        means = np.empty(len(values), F)
        row_mean_squares(values.reshape(-1), values.shape[1], means)
        return encode_rows(TYPES[name], weighted, values, batch=LANES, weights=weights, sigma2=means)

    encode.__doc__ = f"{name} rows of float32 `(R, columns)`, by importance `(columns,)` if given; see `Codec.encode`."
    return encode


encode_q4_0 = _encoder("Q4_0", q4_0, q4_0_weighted)
encode_q4_1 = _encoder("Q4_1", q4_1, q4_1_weighted)
encode_q5_0 = _encoder("Q5_0", q5_0, q5_0_weighted)
encode_q5_1 = _encoder("Q5_1", q5_1, q5_1_weighted)
encode_q8_0 = _encoder("Q8_0", q8_0, None)
