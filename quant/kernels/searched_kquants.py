"""Encoders of Q2_K and Q4_K that go on where llama.cpp's search ends: `--rounding search`.

The search of ggml-quants.c fits every sub-block by itself, makes codes of their scales, and stops. Here codes and block
scales are then improved together, under the same weights: each sub-block tries the codes beside its own, each block the
float16 scales that fit all its levels best by least squares, and whatever lowers Σ w · error² stands. So no block is
ever further from its values than llama.cpp's. Lanes are blocks.
"""

from __future__ import annotations

from ggferry.quant.kernels.common import (
    LANES,
    MAGIC,
    F,
    all_finite,
    give,
    half_bits,
    half_value,
    inline,
    kernel,
    load,
    load16,
    scratch,
    shared,
    spread,
    take,
)
from ggferry.quant.kernels.kquants_affine import fit_codes, fit_lines, pack_q2, pack_q4_q5
from ggferry.quant.kernels.lanes import rolled, stand_alone, store, to_ints, where
from ggferry.quant.kernels.superblocks import BLOCK, encoder, spread_squares, tile_weights, weigh

ROUNDS = 4
"""Always so many: a block must not depend on the others of its batch."""


@inline
def nearest_level(v, bottom, top):
    v = where(v < F(bottom), F(bottom), v)
    v = where(v > F(top), F(top), v)
    return (v + MAGIC) - MAGIC


@inline
def error_of(x, w, at, count, scale, low, bottom, top):
    """Σ w · error² of `LANES` sub-blocks whose levels are the nearest to (x + low) / scale."""
    inverse = where(scale != F(0), F(1) / scale, F(0))
    total = spread(F(0))
    for e in range(at, at + count * LANES, LANES):
        v = load(x, e)
        off = scale * nearest_level((v + low) * inverse, bottom, top) - low - v
        total += load(w, e) * off * off
    return total


@inline
def as_halves(v, room):
    """The float32 of the float16 nearest to each lane; `room` is scratch for one."""
    store(room, 0, v)
    for k in range(LANES):
        room[k] = half_value(half_bits(room[k]))
    return load(room, 0)


@inline
def try_codes(x, w, scales, minima, d, dmin, errors, count, sub_blocks, levels, most_code):
    """Let each sub-block's codes move by one where that lowers its error; returns the sum."""
    total = spread(F(0))
    for j in range(0, sub_blocks * LANES, LANES):
        rolled()
        scale, low, least = load(scales, j), load(minima, j), load(errors, j)
        first_scale, first_low = scale, low
        for up in range(-1, 2):
            rolled()
            for over in range(-1, 2):
                rolled()
                new_scale, new_low = first_scale + F(up), first_low + F(over)
                inside = (new_scale >= F(0)) & (new_scale <= F(most_code))
                inside = inside & (new_low >= F(0)) & (new_low <= F(most_code))
                error = error_of(x, w, j * count, count, d * new_scale, dmin * new_low, levels[0], levels[1])
                better = inside & (error < least)
                scale, low = where(better, new_scale, scale), where(better, new_low, low)
                least = where(better, error, least)
        store(scales, j, scale)
        store(minima, j, low)
        store(errors, j, least)
        total += least
    return total


@inline
def fit_block(x, w, scales, minima, d, dmin, count, sub_blocks, levels):
    """The block scales that fit the levels of all sub-blocks best."""
    aa, ab, bb, ax, bx = spread(F(0)), spread(F(0)), spread(F(0)), spread(F(0)), spread(F(0))
    for j in range(0, sub_blocks * LANES, LANES):
        rolled()
        code, low_code = load(scales, j), load(minima, j)
        scale, low = d * code, dmin * low_code
        inverse = where(scale != F(0), F(1) / scale, F(0))
        sum_w, sum_q, sum_qq = spread(F(0)), spread(F(0)), spread(F(0))
        sum_x, sum_qx = spread(F(0)), spread(F(0))
        for e in range(j * count, (j + LANES) * count, LANES):
            v, weight = load(x, e), load(w, e)
            q = nearest_level((v + low) * inverse, levels[0], levels[1])
            sum_qq += weight * q * q
            sum_qx += weight * q * v
            sum_w += weight
            sum_q += weight * q
            sum_x += weight * v
        aa += code * code * sum_qq
        ax += code * sum_qx
        ab += code * low_code * sum_q
        bb += low_code * low_code * sum_w
        bx += low_code * sum_x
    alone = where(aa > F(0), ax / aa, d)
    det = aa * bb - ab * ab
    new_d, new_dmin = (ax * bb - bx * ab) / det, (ax * ab - bx * aa) / det
    usable = (det > F(0)) & (new_dmin > F(0)) & (new_d > F(0))
    return where(usable, new_d, alone), where(usable, new_dmin, where(bb > F(0), F(0), dmin))


@shared
def improve(x, w, scales, minima, d, dmin, count, sub_blocks, bottom, top, most_code):
    """Improve the codes `[sub-block][lane]` and the block scales of `LANES` blocks, `x` and `w` `[element][lane]`."""
    stand_alone()
    errors, trial, room = scratch(16), scratch(16), scratch(1)
    levels = (bottom, top)
    now_d, now_dmin = as_halves(load(d, 0), room), as_halves(load(dmin, 0), room)
    for j in range(0, sub_blocks * LANES, LANES):
        rolled()
        scale, low = now_d * load(scales, j), now_dmin * load(minima, j)
        store(errors, j, error_of(x, w, j * count, count, scale, low, bottom, top))
    for _ in range(ROUNDS):
        rolled()
        total = try_codes(x, w, scales, minima, now_d, now_dmin, errors, count, sub_blocks, levels, most_code)
        new_d, new_dmin = fit_block(x, w, scales, minima, now_d, now_dmin, count, sub_blocks, levels)
        new_d, new_dmin = as_halves(new_d, room), as_halves(new_dmin, room)
        new_total = spread(F(0))
        for j in range(0, sub_blocks * LANES, LANES):
            rolled()
            error = error_of(x, w, j * count, count, new_d * load(scales, j), new_dmin * load(minima, j), bottom, top)
            store(trial, j, error)
            new_total += error
        better = new_total < total
        now_d, now_dmin = where(better, new_d, now_d), where(better, new_dmin, now_dmin)
        for j in range(0, sub_blocks * LANES, LANES):
            rolled()
            store(errors, j, where(better, load(trial, j), load(errors, j)))
    store(d, 0, now_d)
    store(dmin, 0, now_dmin)


@inline
def weigh_blocks(values, batch, tile, factor, x, w):
    """`LANES` whole blocks as `[element][lane]`, and the weights of llama.cpp's search."""
    mean = scratch(1)
    take(values, batch, x, BLOCK, BLOCK)
    spread_squares(values, batch, factor, 1, mean)
    weigh(x, tile, 0, load(mean, 0), w, BLOCK)


@inline
def searched_affine(values, out, first, weights, count, top, most_code, factor, block_bytes):
    sub_blocks = BLOCK // count
    x, w, level, tile = scratch(256), scratch(256), scratch(32), scratch(256)
    part, part_w = scratch(32), scratch(32)
    scale, minimum, ratio, origin = scratch(16), scratch(16), scratch(16), scratch(16)
    sigma2, sum_w, d, dmin = scratch(16), scratch(16), scratch(1), scratch(1)
    scale_codes, min_codes, scales, minima = scratch(16), scratch(16), scratch(16), scratch(16)
    for batch in range(0, values.size, LANES * BLOCK):
        if not all_finite(values, batch, batch + LANES * BLOCK):
            return False
        tile_weights(weights, first + batch // BLOCK, tile)
        spread_squares(values, batch, factor, sub_blocks, sigma2)
        for s in range(0, sub_blocks * LANES, LANES):
            take(values, batch + count * s, part, count, count)
            weigh(part, tile, count * s, load(sigma2, s), part_w, count)
            total = fit_lines(
                part, part_w, level, count, top, F(-0.9), F(0.05), 36, False, s, scale, minimum, ratio, origin
            )
            store(sum_w, s, total)
        fit_codes(scale, sum_w, sub_blocks, most_code, part, part_w, level, scale_codes, d)
        fit_codes(minimum, sum_w, sub_blocks, most_code, part, part_w, level, min_codes, dmin)
        take(scale_codes, 0, scales, 16, 16)
        take(min_codes, 0, minima, 16, 16)
        weigh_blocks(values, batch, tile, factor, x, w)
        improve(x, w, scales, minima, d, dmin, count, sub_blocks, 0, top, most_code)
        give(scales, scale_codes, 0)
        give(minima, min_codes, 0)
        for k in range(LANES):
            a, b = to_ints(load16(scale_codes, 16 * k)), to_ints(load16(min_codes, 16 * k))
            at, o, s = batch + k * BLOCK, (batch // BLOCK + k) * block_bytes, sub_blocks * k
            if count == 16:
                pack_q2(values, at, out, o, a, b, d[k], dmin[k], ratio, origin, s)
            else:
                pack_q4_q5(values, at, out, o, top, a, b, d[k], dmin[k], ratio, origin, s)
    return True


@kernel
def q2_k_searched(values, out, first, weights):
    return searched_affine(values, out, first, weights, 16, 3, 15, 1, 84)


@kernel
def q4_k_searched(values, out, first, weights):
    return searched_affine(values, out, first, weights, 32, 15, 63, 2, 144)


encode_q2_k = encoder("Q2_K", None, q2_k_searched)
encode_q4_k = encoder("Q4_K", None, q4_k_searched)
