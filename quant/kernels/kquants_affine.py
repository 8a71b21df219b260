"""Encoders of Q2_K, Q4_K, Q5_K: level · scale + minimum, both in the precision of a few bits. See `superblocks`."""

from __future__ import annotations

from ggferry.quant.kernels.common import (
    LANES,
    F,
    I,
    all_finite,
    give,
    half_bits,
    half_value,
    inline,
    kernel,
    load,
    load16,
    nearest,
    put_half,
    scratch,
    shared,
    spread,
    spread16,
    take,
)
from ggferry.quant.kernels.fits import fit_levels, fit_line
from ggferry.quant.kernels.lanes import absolute, float_room, int_room, sqrt, stand_alone, store, to_floats, to_ints
from ggferry.quant.kernels.superblocks import BLOCK, capped, encoder, rounded, spread_squares, tile_weights, weigh


@inline
def larger(a, b):
    """Return the larger of two as `if (b > a) a = b` does."""
    return b if b > a else a


@inline
def fit_lines(x, w, level, count, top, first, step, steps, by_distance, at, scale, minimum, ratio, origin):
    """`fit_line` into `[at:]` of four arrays, with `minimum` = −low as ggml has it; returns Σ w."""
    found = fit_line(x, w, level, count, top, first, step, steps, by_distance)
    store(scale, at, found[0])
    store(minimum, at, found[1] * F(-1))
    store(ratio, at, found[2])
    store(origin, at, found[3])
    return found[4]


@shared
def fit_codes(of_sub_blocks, sum_w, sub_blocks, top, x, w, level, codes, d):
    """Apply `fit_levels` to what the sub-blocks of `LANES` blocks have.

    Block scales go into `d`, uint8 codes as floats into `codes` `[block][16]`. Where there are only eight sub-blocks,
    the eight that follow are read and written along.
    """
    stand_alone()
    take(of_sub_blocks, 0, x, 16, sub_blocks)
    take(sum_w, 0, w, 16, sub_blocks)
    store(d, 0, fit_levels(x, w, level, sub_blocks, top))
    give(level, codes, 0)


@inline
def extremes(scale, minimum, s, sub_blocks):
    """The largest of a block's scales and of its minima, or 0."""
    max_scale, max_min = F(0), F(0)
    for j in range(s, s + sub_blocks):
        max_scale, max_min = larger(max_scale, scale[j]), larger(max_min, minimum[j])
    return max_scale, max_min


# ------------------------------------------------------------------ Q2_K: 4-bit scales and minima, 16 elements each


@inline
def pack_q2(values, at, out, o, scale_codes, min_codes, d, dmin, ratio, origin, s):
    d_bits, dmin_bits = half_bits(d), half_bits(dmin)
    put_half(out, o + 80, d_bits)
    put_half(out, o + 82, dmin_bits)
    codes = scale_codes | min_codes << 4
    store(out, o, codes)
    scale, low = float_room(16), float_room(16)
    store(scale, 0, half_value(d_bits) * to_floats(codes & 15))
    store(low, 0, half_value(dmin_bits) * to_floats(codes >> 4 & 15))
    for run in range(4):  # 16 bytes of levels: elements 16 apart share a byte position, 32 apart a byte
        packed = spread16(I(0))
        for plane in range(4):
            j = 8 * (run // 2) + run % 2 + 2 * plane
            q = rounded(values, at + 16 * j, scale[j], low[j], ratio[s + j], origin[s + j], 0, 3)
            packed = packed | q << 2 * plane
        store(out, o + 16 + 16 * run, packed)


@kernel
def q2_k(values, out, first):
    x, w, level = scratch(16), scratch(16), scratch(16)
    scale, minimum, ratio, origin = scratch(16), scratch(16), scratch(16), scratch(16)
    for batch in range(0, values.size, LANES * BLOCK):
        if not all_finite(values, batch, batch + LANES * BLOCK):
            return False
        for s in range(0, 16 * LANES, LANES):
            take(values, batch + 16 * s, x, 16, 16)
            for e in range(0, 16 * LANES, LANES):
                store(w, e, absolute(load(x, e)))
            fit_lines(x, w, level, 16, 3, F(-0.5), F(0.1), 15, True, s, scale, minimum, ratio, origin)
        for k in range(LANES):
            s = 16 * k
            max_scale, max_min = extremes(scale, minimum, s, 16)
            scale_codes = nearest(load16(scale, s) * (F(15) / max_scale if max_scale > F(0) else F(0)))
            min_codes = nearest(load16(minimum, s) * (F(15) / max_min if max_min > F(0) else F(0)))
            at, o = batch + k * BLOCK, (batch // BLOCK + k) * 84
            d, dmin = max_scale / F(15), max_min / F(15)
            pack_q2(values, at, out, o, scale_codes, min_codes, d, dmin, ratio, origin, s)
    return True


@kernel
def q2_k_weighted(values, out, first, weights):
    x, w, level, tile = scratch(16), scratch(16), scratch(16), scratch(256)
    scale, minimum, ratio, origin = scratch(16), scratch(16), scratch(16), scratch(16)
    sigma2, sum_w, d, dmin = scratch(16), scratch(16), scratch(1), scratch(1)
    scale_codes, min_codes = scratch(16), scratch(16)
    for batch in range(0, values.size, LANES * BLOCK):
        if not all_finite(values, batch, batch + LANES * BLOCK):
            return False
        tile_weights(weights, first + batch // BLOCK, tile)
        spread_squares(values, batch, 1, 16, sigma2)
        for s in range(0, 16 * LANES, LANES):
            take(values, batch + 16 * s, x, 16, 16)
            weigh(x, tile, 16 * s, load(sigma2, s), w, 16)
            total = fit_lines(x, w, level, 16, 3, F(-0.9), F(0.05), 36, False, s, scale, minimum, ratio, origin)
            store(sum_w, s, total)
        fit_codes(scale, sum_w, 16, 15, x, w, level, scale_codes, d)
        fit_codes(minimum, sum_w, 16, 15, x, w, level, min_codes, dmin)
        for k in range(LANES):
            at, o = batch + k * BLOCK, (batch // BLOCK + k) * 84
            a, b = to_ints(load16(scale_codes, 16 * k)), to_ints(load16(min_codes, 16 * k))
            pack_q2(values, at, out, o, a, b, d[k], dmin[k], ratio, origin, 16 * k)
    return True


encode_q2_k = encoder("Q2_K", q2_k, q2_k_weighted)


# ------------------------------------------------------------------ Q4_K, Q5_K: 6-bit scales and minima, 32 elements


@inline
def pack_q4_q5(values, at, out, o, top, scale_codes, min_codes, d, dmin, ratio, origin, s):
    """The first eight lanes of the codes count. Q5_K has the fifth bits in 32 bytes before the nibbles."""
    d_bits, dmin_bits = half_bits(d), half_bits(dmin)
    put_half(out, o, d_bits)
    put_half(out, o + 2, dmin_bits)
    d, dmin = half_value(d_bits), half_value(dmin_bits)
    a, b = int_room(16), int_room(16)
    store(a, 0, scale_codes)
    store(b, 0, min_codes)
    for j in range(4):  # see `get_scale_min_k4`
        out[o + 4 + j] = a[j] | a[j + 4] >> 4 << 6
        out[o + 8 + j] = b[j] | b[j + 4] >> 4 << 6
        out[o + 12 + j] = a[j + 4] & 15 | (b[j + 4] & 15) << 4
    nibbles = o + 16 if top == 15 else o + 48
    for half in range(2):
        high = spread16(I(0))
        for pair in range(4):
            low_level, level = spread16(I(0)), spread16(I(0))
            for odd in range(2):
                j = 2 * pair + odd
                scale, low = packed_codes(out, o + 4, j)
                level = rounded(
                    values, at + 32 * j + 16 * half, d * scale, dmin * low, ratio[s + j], origin[s + j], 0, top
                )
                if odd == 0:
                    low_level = level
            store(out, nibbles + 32 * pair + 16 * half, low_level & 15 | (level & 15) << 4)
            high = high | low_level >> 4 << 2 * pair | level >> 4 << 2 * pair + 1
        if top == 31:
            store(out, o + 16 + 16 * half, high)


@inline
def packed_codes(out, at, j):
    """Scale and minimum of sub-block j as a reader finds them: `get_scale_min_k4`."""
    if j < 4:
        return F(out[at + j] & 63), F(out[at + j + 4] & 63)
    both = out[at + j + 4]
    return F(both & 15 | out[at + j - 4] >> 6 << 4), F(both >> 4 | out[at + j] >> 6 << 4)


@inline
def plain_q4_q5(values, out, block_bytes, top, widest, steps):
    x, w, level = scratch(32), scratch(32), scratch(32)
    scale, minimum, ratio, origin = scratch(16), scratch(16), scratch(8), scratch(8)  # the second halves are not used
    for batch in range(0, values.size, LANES * BLOCK):
        if not all_finite(values, batch, batch + LANES * BLOCK):
            return False
        for s in range(0, 8 * LANES, LANES):
            take(values, batch + 32 * s, x, 32, 32)
            squares = spread(F(0))
            for e in range(0, 32 * LANES, LANES):
                squares += load(x, e) * load(x, e)
            mean = sqrt(squares / F(32))
            for e in range(0, 32 * LANES, LANES):
                store(w, e, mean + absolute(load(x, e)))
            fit_lines(x, w, level, 32, top, widest, F(0.1), steps, False, s, scale, minimum, ratio, origin)
        for k in range(LANES):
            s = 8 * k
            max_scale, max_min = extremes(scale, minimum, s, 8)
            a = nearest(load16(scale, s) * (F(63) / max_scale if max_scale > F(0) else F(0)))
            b = nearest(load16(minimum, s) * (F(63) / max_min if max_min > F(0) else F(0)))
            at, o = batch + k * BLOCK, (batch // BLOCK + k) * block_bytes
            d, dmin = max_scale / F(63), max_min / F(63)
            pack_q4_q5(values, at, out, o, top, capped(a), capped(b), d, dmin, ratio, origin, s)
    return True


@inline
def weighted_q4_q5(values, out, first, weights, block_bytes, top):
    x, w, level, tile = scratch(32), scratch(32), scratch(32), scratch(256)
    scale, minimum, ratio, origin = scratch(16), scratch(16), scratch(8), scratch(8)  # the second halves are not used
    sigma2, sum_w, d, dmin = scratch(8), scratch(16), scratch(1), scratch(1)
    scale_codes, min_codes = scratch(16), scratch(16)
    for batch in range(0, values.size, LANES * BLOCK):
        if not all_finite(values, batch, batch + LANES * BLOCK):
            return False
        tile_weights(weights, first + batch // BLOCK, tile)
        spread_squares(values, batch, 2, 8, sigma2)
        for s in range(0, 8 * LANES, LANES):
            take(values, batch + 32 * s, x, 32, 32)
            weigh(x, tile, 32 * s, load(sigma2, s), w, 32)
            total = fit_lines(x, w, level, 32, top, F(-0.9), F(0.05), 36, False, s, scale, minimum, ratio, origin)
            store(sum_w, s, total)
        fit_codes(scale, sum_w, 8, 63, x, w, level, scale_codes, d)
        fit_codes(minimum, sum_w, 8, 63, x, w, level, min_codes, dmin)
        for k in range(LANES):
            a, b = to_ints(load16(scale_codes, 16 * k)), to_ints(load16(min_codes, 16 * k))
            if top == 31:  # quantize_row_q5_K_impl caps the codes, quantize_row_q4_K_impl does not
                a, b = capped(a), capped(b)
            at, o = batch + k * BLOCK, (batch // BLOCK + k) * block_bytes
            pack_q4_q5(values, at, out, o, top, a, b, d[k], dmin[k], ratio, origin, 8 * k)
    return True


@kernel
def q4_k(values, out, first):
    return plain_q4_q5(values, out, 144, 15, F(-1), 20)


@kernel
def q4_k_weighted(values, out, first, weights):
    return weighted_q4_q5(values, out, first, weights, 144, 15)


@kernel
def q5_k(values, out, first):
    return plain_q4_q5(values, out, 176, 31, F(-0.5), 15)


@kernel
def q5_k_weighted(values, out, first, weights):
    return weighted_q4_q5(values, out, first, weights, 176, 31)


encode_q4_k = encoder("Q4_K", q4_k, q4_k_weighted)
encode_q5_k = encoder("Q5_K", q5_k, q5_k_weighted)
