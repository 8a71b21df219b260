"""Encoders of Q3_K and Q6_K: level · scale, both signed. See `superblocks`."""

from __future__ import annotations

import numpy as np

from ggferry.quant.kernels.common import (
    LANES,
    F,
    I,
    all_finite,
    give,
    give_at,
    half_bits,
    half_value,
    inline,
    kernel,
    levels,
    load,
    load16,
    nearest,
    nearest_int,
    numbers,
    put_half,
    scratch,
    shared,
    spread16,
    take,
    take_at,
)
from ggferry.quant.kernels.fits import TINY, descend, fit_scale, start_descent
from ggferry.quant.kernels.lanes import (
    as_ints,
    bits,
    float_room,
    highest,
    int_room,
    maximum,
    minimum,
    pointer,
    scalar_float,
    skip,
    stand_alone,
    store,
    to_floats,
    to_ints,
    where,
)
from ggferry.quant.kernels.superblocks import BLOCK, encoder, rounded, spread_squares, tile_weights, weigh

# ------------------------------------------------------------------ Q3_K: 6-bit signed scales, 16 elements each


@inline
def pack_q3(values, at, out, o, codes, d, level):
    """`codes` are the 16 scales as 0 … 63; `level` holds the own levels of the sub-blocks whose scale has become 0."""
    put_half(out, o + 108, half_bits(d))
    code, scale = int_room(16), float_room(16)
    store(code, 0, codes)
    store(scale, 0, scales_of(codes, d))
    for j in range(4):  # bytes 0–7: low nibbles of codes 0–7 and 8–15; bytes 8–11: their upper two bits, 4 apart
        out[o + 96 + j] = code[j] & 15 | (code[j + 8] & 15) << 4
        out[o + 100 + j] = code[j + 4] & 15 | (code[j + 12] & 15) << 4
        out[o + 104 + j] = code[j] >> 4 | code[j + 4] >> 4 << 2 | code[j + 8] >> 4 << 4 | code[j + 12] >> 4 << 6
    for half in range(2):
        high = spread16(I(0))
        for side in range(2):
            low = spread16(I(0))
            for plane in range(4):
                j = 8 * side + 2 * plane + half
                if scale[j] == F(0):
                    q = to_ints(load16(level, 16 * j)) + 4
                else:
                    q = levels(load16(values, at + 16 * j) / scale[j], -4, 3) + 4
                high = high | q >> 2 << 4 * side + plane
                low = low | (q & 3) << 2 * plane
            store(out, o + 32 + 32 * side + 16 * half, low)
        store(out, o + 16 * half, high)


@inline
def widest(scale, s):
    """The first of 16 scales from s on with the largest magnitude."""
    found = F(0)
    for j in range(s, s + 16):
        if abs(scale[j]) > abs(found):
            found = scale[j]
    return found


@inline
def scales_of(codes, d):
    """What a reader multiplies the levels with."""
    return half_value(half_bits(d)) * to_floats(codes - 32)


@inline
def fit_q3(x, level, rounds):
    """`make_q3_quants` up to round `rounds` of five: scales, and the lanes that the last round has changed."""
    qx, qq = start_descent(x, level, 16, 4)
    left = np.int64(0)
    for _ in range(rounds):
        qx, qq, changed = descend(x, level, qx, qq, 16, 4)
        left = np.int64(bits(changed))
        if left == 0:
            break
    return where(qq > F(0), qx / qq, F(0)), left


@shared
def fit_again(values, todo, count, rounds, scale):
    """Return how many of `count` sub-blocks of 16, at the offsets `todo`, are not finished after `rounds` rounds.

    Their scales are written, and those that are not finished are left in `todo`.
    """
    stand_alone()
    x, level, found, left = scratch(16), scratch(16), scratch(1), 0
    for k in range(count, count + -count % LANES):
        todo[k] = todo[count - 1]
    for run in range(0, count, LANES):
        take_at(values, skip(todo, run), x)
        fitted, going_on = fit_q3(x, level, rounds)
        store(found, 0, fitted)
        for k in range(min(LANES, count - run)):
            at = todo[run + k]
            scale[at >> 4] = found[k]
            todo[left] = at
            left += going_on >> k & 1
    return left


@shared
def own_levels(values, codes, d, level):
    """The levels of `make_q3_quants` itself for those of a block's sub-blocks whose scale has become 0."""
    stand_alone()
    if bits(scales_of(codes, d) == F(0)) == 0:
        return
    x, fitted, scale, offsets, refit = scratch(16), scratch(16), float_room(16), numbers(1), False
    store(scale, 0, scales_of(codes, d))
    for j in range(16):
        store(level, 16 * j, spread16(F(-4)))  # which is what it leaves where there is nothing but zeros
        peak = scalar_float(highest(as_ints(load16(values, 16 * j)) & 0x7FFFFFFF))
        refit = refit or (scale[j] == F(0) and peak >= TINY)
    if not refit:
        return
    for k in range(LANES):
        offsets[k] = 16 * min(k, 15)
    take_at(values, offsets, x)
    fit_q3(x, fitted, 5)
    give_at(fitted, level, offsets)


@kernel
def q3_k(values, out, first):
    x, level, own, scale, todo = scratch(16), scratch(16), float_room(256), scratch(16), numbers(17)
    for batch in range(0, values.size, LANES * BLOCK):
        if not all_finite(values, batch, batch + LANES * BLOCK):
            return False
        data, count = skip(pointer(values), batch), np.int64(0)
        for s in range(0, 16 * LANES, LANES):
            take(data, 16 * s, x, 16, 16)
            fitted, going_on = fit_q3(x, level, 1)
            store(scale, s, fitted)
            for k in range(LANES):
                todo[count] = 16 * (s + k)
                count += going_on >> k & 1
        # Four in five sub-blocks are finished after one round, and four in five of the others after the second, so
        # those that are not are brought together from all over the batch.
        count = fit_again(data, todo, count, np.int64(2), scale)
        fit_again(data, todo, count, np.int64(5), scale)
        for k in range(LANES):
            top = widest(scale, 16 * k)
            ratio = F(-32) / top if top != F(0) else F(0)
            codes = nearest(ratio * load16(scale, 16 * k)) << 24 >> 24  # ggml keeps it in an int8 before it bounds it
            codes = maximum(minimum(codes, 31), -32) + 32 if top != F(0) else spread16(I(0))
            d = F(1) / ratio if top != F(0) else F(0)
            at, o = batch + k * BLOCK, (batch // BLOCK + k) * 110
            own_levels(skip(data, k * BLOCK), codes, d, own)
            pack_q3(values, at, out, o, codes, d, own)
    return True


@kernel
def q3_k_weighted(values, out, first, weights):
    x, w, wx, level, tile = scratch(16), scratch(16), scratch(16), scratch(256), scratch(256)
    sigma2, sum_w, d, scale = scratch(16), scratch(16), scratch(1), scratch(16)
    block_ratio, block_origin = scratch(1), scratch(1)
    for batch in range(0, values.size, LANES * BLOCK):
        if not all_finite(values, batch, batch + LANES * BLOCK):
            return False
        tile_weights(weights, first + batch // BLOCK, tile)
        spread_squares(values, batch, 2, 16, sigma2)
        for s in range(0, 16 * LANES, LANES):
            take(values, batch + 16 * s, x, 16, 16)
            store(sum_w, s, weigh(x, tile, 16 * s, load(sigma2, s), w, 16))
            fitted, ratio, origin = fit_scale(x, w, wx, 16, 4, True)
            store(scale, s, fitted)
            for e in range(0, 16 * LANES, LANES):
                store(x, e, to_floats(levels(ratio * (load(x, e) - origin), -4, 3)))
            give(x, level, 16 * s)
        take(scale, 0, x, 16, 16)
        take(sum_w, 0, w, 16, 16)
        fitted, ratio, origin = fit_scale(x, w, wx, 16, 32, False)
        store(d, 0, fitted)
        store(block_ratio, 0, ratio)
        store(block_origin, 0, origin)
        for k in range(LANES):
            codes = levels(block_ratio[k] * load16(scale, 16 * k), -32, 31) + 32
            if block_origin[k] != F(0):
                codes = spread16(I(0))
            at, o = batch + k * BLOCK, (batch // BLOCK + k) * 110
            pack_q3(values, at, out, o, codes, d[k], skip(level, k * BLOCK))
    return True


encode_q3_k = encoder("Q3_K", q3_k, q3_k_weighted)


# ------------------------------------------------------------------ Q6_K: 8-bit signed scales, 16 elements each


@inline
def pack_q6(values, at, out, o, scale, ratio, origin, s):
    top = widest(scale, s)
    if abs(top) < TINY:
        for i in range(o, o + 210):
            out[i] = 0
        return
    to_code = F(-128) / top
    d_bits = half_bits(F(1) / to_code)
    put_half(out, o + 208, d_bits)
    d = half_value(d_bits)
    for j in range(16):
        out[o + 192 + j] = min(127, nearest_int(to_code * scale[s + j])) & 255
    for part in range(4):  # 16 elements of each of the four quarters of 128
        high = spread16(I(0))
        first, half = 8 * (part // 2), part % 2
        for odd in range(2):
            j = first + half + 2 * odd
            low = rounded_q6(values, at, out, o, d, j, ratio, origin, s)
            upper = rounded_q6(values, at, out, o, d, j + 4, ratio, origin, s)
            store(out, o + 64 * (part // 2) + 32 * odd + 16 * half, low & 15 | (upper & 15) << 4)
            high = high | low >> 4 << 2 * odd | upper >> 4 << 2 * odd + 4
        store(out, o + 128 + 16 * part, high)


@inline
def rounded_q6(values, at, out, o, d, j, ratio, origin, s):
    code = (int(out[o + 192 + j]) + 128 & 255) - 128
    return rounded(values, at + 16 * j, d * F(code), F(0), ratio[s + j], origin[s + j], -32, 31) + 32


@kernel
def q6_k(values, out, first):
    x, w, wx, scale, ratio, origin = scratch(16), scratch(16), scratch(16), scratch(16), scratch(16), scratch(16)
    for batch in range(0, values.size, LANES * BLOCK):
        if not all_finite(values, batch, batch + LANES * BLOCK):
            return False
        for s in range(0, 16 * LANES, LANES):
            take(values, batch + 16 * s, x, 16, 16)
            for e in range(0, 16 * LANES, LANES):
                store(w, e, load(x, e) * load(x, e))
            found = fit_scale(x, w, wx, 16, 32, True)
            store(scale, s, found[0])
            store(ratio, s, found[1])
            store(origin, s, found[2])
        for k in range(LANES):
            pack_q6(values, batch + k * BLOCK, out, (batch // BLOCK + k) * 210, scale, ratio, origin, 16 * k)
    return True


@kernel
def q6_k_weighted(values, out, first, weights):
    x, w, wx, tile = scratch(16), scratch(16), scratch(16), scratch(256)
    scale, ratio, origin = scratch(16), scratch(16), scratch(16)
    for batch in range(0, values.size, LANES * BLOCK):
        if not all_finite(values, batch, batch + LANES * BLOCK):
            return False
        tile_weights(weights, first + batch // BLOCK, tile)
        for s in range(0, 16 * LANES, LANES):
            take(values, batch + 16 * s, x, 16, 16)
            take(tile, 16 * s, w, 16, 16)
            found = fit_scale(x, w, wx, 16, 32, True)
            store(scale, s, found[0])
            store(ratio, s, found[1])
            store(origin, s, found[2])
        for k in range(LANES):
            pack_q6(values, batch + k * BLOCK, out, (batch // BLOCK + k) * 210, scale, ratio, origin, 16 * k)
    return True


encode_q6_k = encoder("Q6_K", q6_k, q6_k_weighted)
