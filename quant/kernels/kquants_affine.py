"""Encoders of Q2_K, Q4_K, Q5_K: level · scale + minimum, both in the precision of a few bits. See `superblocks`."""

from __future__ import annotations

from ggferry.quant.kernels.common import (
    LANES,
    F,
    I,
    all_finite,
    half_bits,
    half_value,
    inline,
    kernel,
    load,
    nearest_int,
    numbers,
    put_half,
    scratch,
    spread,
    spread16,
    take,
)
from ggferry.quant.kernels.fits import fit_levels, fit_line
from ggferry.quant.kernels.lanes import absolute, sqrt, store
from ggferry.quant.kernels.superblocks import BLOCK, by_block, encoder, rounded, spread_squares, tile_weights, weigh


@inline
def larger(a, b):
    """`if (b > a) a = b`"""
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


@inline
def codes_by_weight(of_sub_blocks, sum_w, sub_blocks, top, x, w, level, codes, d):
    """`fit_levels` of what `LANES` blocks' sub-blocks have: uint8 codes as `[block][sub-block]`, block scales."""
    by_block(of_sub_blocks, sub_blocks, x)
    by_block(sum_w, sub_blocks, w)
    store(d, 0, fit_levels(x, w, level, sub_blocks, top))
    for k in range(LANES):
        for j in range(sub_blocks):
            codes[k * sub_blocks + j] = int(level[j * LANES + k])


# ------------------------------------------------------------------ Q2_K: 4-bit scales and minima, 16 elements each


@inline
def pack_q2(values, at, out, o, codes, d, dmin, ratio, origin, s):
    d_bits, dmin_bits = half_bits(d), half_bits(dmin)
    put_half(out, o + 80, d_bits)
    put_half(out, o + 82, dmin_bits)
    d, dmin = half_value(d_bits), half_value(dmin_bits)
    for j in range(16):
        out[o + j] = codes[j]
    for part in range(4):  # 16 bytes of levels: elements 16 apart share a byte position, 32 apart a byte
        packed = spread16(I(0))
        first = 8 * (part // 2) + part % 2
        for plane in range(4):
            j = first + 2 * plane
            q = rounded(
                values, at + 16 * j, d * F(codes[j] & 15), dmin * F(codes[j] >> 4), ratio[s + j], origin[s + j], 0, 3
            )
            packed = packed | q << 2 * plane
        store(out, o + 16 + 16 * part, packed)


@kernel
def q2_k(values, out, first):
    x, w, level = scratch(16), scratch(16), scratch(16)
    scale, minimum, ratio, origin = scratch(16), scratch(16), scratch(16), scratch(16)
    codes = numbers(1)
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
            max_scale, max_min = F(0), F(0)
            for j in range(s, s + 16):
                max_scale, max_min = larger(max_scale, scale[j]), larger(max_min, minimum[j])
            to_scale = F(15) / max_scale if max_scale > F(0) else F(0)
            to_min = F(15) / max_min if max_min > F(0) else F(0)
            for j in range(16):
                codes[j] = (nearest_int(to_scale * scale[s + j]) | nearest_int(to_min * minimum[s + j]) << 4) & 255
            at, o = batch + k * BLOCK, (batch // BLOCK + k) * 84
            pack_q2(values, at, out, o, codes, max_scale / F(15), max_min / F(15), ratio, origin, s)
    return True


@kernel
def q2_k_weighted(values, out, first, weights):
    x, w, level, tile = scratch(16), scratch(16), scratch(16), scratch(256)
    scale, minimum, ratio, origin = scratch(16), scratch(16), scratch(16), scratch(16)
    sigma2, sum_w, d, dmin = scratch(16), scratch(16), scratch(1), scratch(1)
    scale_codes, min_codes = numbers(16), numbers(16)
    codes = numbers(1)
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
        codes_by_weight(scale, sum_w, 16, 15, x, w, level, scale_codes, d)
        codes_by_weight(minimum, sum_w, 16, 15, x, w, level, min_codes, dmin)
        for k in range(LANES):
            for j in range(16):
                codes[j] = (scale_codes[16 * k + j] | min_codes[16 * k + j] << 4) & 255
            at, o = batch + k * BLOCK, (batch // BLOCK + k) * 84
            pack_q2(values, at, out, o, codes, d[k], dmin[k], ratio, origin, 16 * k)
    return True


encode_q2_k = encoder("Q2_K", q2_k, q2_k_weighted)


# ------------------------------------------------------------------ Q4_K, Q5_K: 6-bit scales and minima, 32 elements


@inline
def pack_q4_q5(values, at, out, o, top, scale_codes, min_codes, c, d, dmin, ratio, origin, s):
    """Codes are uint8 from number c on. Q5_K has the fifth bits in 32 bytes before the nibbles, Q4_K has none."""
    d_bits, dmin_bits = half_bits(d), half_bits(dmin)
    put_half(out, o, d_bits)
    put_half(out, o + 2, dmin_bits)
    d, dmin = half_value(d_bits), half_value(dmin_bits)
    for j in range(4):  # see `get_scale_min_k4`
        scale, low, scale4, low4 = scale_codes[c + j], min_codes[c + j], scale_codes[c + j + 4], min_codes[c + j + 4]
        out[o + 4 + j] = scale | scale4 >> 4 << 6
        out[o + 8 + j] = low | low4 >> 4 << 6
        out[o + 12 + j] = scale4 & 15 | (low4 & 15) << 4
    nibbles = o + 16 if top == 15 else o + 48
    for half in range(2):
        high = spread16(I(0))
        for pair in range(4):
            a, b = spread16(I(0)), spread16(I(0))
            for odd in range(2):
                j = 2 * pair + odd
                scale, low = packed_codes(out, o + 4, j)
                b = rounded(values, at + 32 * j + 16 * half, d * scale, dmin * low, ratio[s + j], origin[s + j], 0, top)
                if odd == 0:
                    a = b
            store(out, nibbles + 32 * pair + 16 * half, a & 15 | (b & 15) << 4)
            high = high | a >> 4 << 2 * pair | b >> 4 << 2 * pair + 1
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
    scale, minimum, ratio, origin = scratch(8), scratch(8), scratch(8), scratch(8)
    scale_codes, min_codes = numbers(1), numbers(1)
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
            max_scale, max_min = F(0), F(0)
            for j in range(s, s + 8):
                max_scale, max_min = larger(max_scale, scale[j]), larger(max_min, minimum[j])
            to_scale = F(63) / max_scale if max_scale > F(0) else F(0)
            to_min = F(63) / max_min if max_min > F(0) else F(0)
            for j in range(8):
                scale_codes[j] = min(nearest_int(to_scale * scale[s + j]) & 255, 63)
                min_codes[j] = min(nearest_int(to_min * minimum[s + j]) & 255, 63)
            at, o = batch + k * BLOCK, (batch // BLOCK + k) * block_bytes
            d, dmin = max_scale / F(63), max_min / F(63)
            pack_q4_q5(values, at, out, o, top, scale_codes, min_codes, 0, d, dmin, ratio, origin, s)
    return True


@inline
def weighted_q4_q5(values, out, first, weights, block_bytes, top):
    x, w, level, tile = scratch(32), scratch(32), scratch(32), scratch(256)
    scale, minimum, ratio, origin = scratch(8), scratch(8), scratch(8), scratch(8)
    sigma2, sum_w, d, dmin = scratch(8), scratch(8), scratch(1), scratch(1)
    scale_codes, min_codes = numbers(8), numbers(8)
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
        codes_by_weight(scale, sum_w, 8, 63, x, w, level, scale_codes, d)
        codes_by_weight(minimum, sum_w, 8, 63, x, w, level, min_codes, dmin)
        for k in range(LANES):
            if top == 31:  # quantize_row_q5_K_impl caps the codes, quantize_row_q4_K_impl does not
                for j in range(8 * k, 8 * k + 8):
                    scale_codes[j], min_codes[j] = min(scale_codes[j], 63), min(min_codes[j], 63)
            at, o = batch + k * BLOCK, (batch // BLOCK + k) * block_bytes
            pack_q4_q5(values, at, out, o, top, scale_codes, min_codes, 8 * k, d[k], dmin[k], ratio, origin, 8 * k)
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
