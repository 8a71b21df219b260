"""Encoders of IQ1_S and IQ1_M: `quantize_row_iq1_s_impl`, `quantize_row_iq1_m_impl` of ggml-quants.c.

A sub-block's values in ascending order are cut at i1 and i2 into three levels, −1, 0 and 1, all moved by a delta of
⅛ up or down: `iquants1_cuts` finds where. A group of eight that is no lattice point then becomes the nearest one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ggferry.quant.codecs.iquants import TYPES
from ggferry.quant.kernels.common import F, I, half_bits, inline, kernel, nearest_int, put_half
from ggferry.quant.kernels.grids import entry_of, lattice, pointers
from ggferry.quant.kernels.iquants1_cuts import DOWN, SUB_BLOCKS, UP, cut_iq1_m, cut_iq1_s, rank_all
from ggferry.quant.kernels.iquants_run import encode
from ggferry.quant.kernels.iquants_weights import mean_square
from ggferry.quant.kernels.lanes import (
    WIDTH,
    absolute,
    as_ints,
    bits,
    float_room,
    highest,
    int_room,
    lane_numbers,
    load,
    load_ints,
    lowest,
    maximum,
    pointer,
    rolled,
    scalar_float,
    skip,
    spread,
    sqrt,
    store,
    to_floats,
    where,
)
from ggferry.quant.kernels.lanes_across import look_up
from ggferry.quant.kernels.onebit import apart

if TYPE_CHECKING:
    from ggferry.quant.types import Bytes, Floats

BLOCK = 256
FLT_MAX = F(np.finfo(np.float32).max)
NOBODY = 512
"""More than the number of a neighbor."""


@inline
def weigh(x, importance, weighted, sigma2, n, w, wx):
    """Weights of n values, importance · √(σ² + x²) or x², and w · x; the values' greatest magnitude."""
    most = spread(I(0))
    for i in range(0, n, WIDTH):
        rolled()
        v = load(x, i)
        weight = v * v
        if weighted:
            weight = load(importance, i) * sqrt(weight + sigma2)
        store(w, i, weight)
        store(wx, i, weight * v)
        most = maximum(most, as_ints(absolute(v)))
    return scalar_float(highest(most))


@inline
def copy(source, n, target):
    for i in range(0, n, WIDTH):
        store(target, i, load(source, i))


@inline
def closest(near_code, count, errors):
    """The code of the neighbor with the least error, the first of several; −1 if none is below FLT_MAX.

    An error is summed from those of the eight elements, in order. `errors`: of each element, those of its levels 0, 1
    and 2 in lanes 0, 1 and 2, and again in lanes 4, 5 and 6, as `look_up` heeds a bit more than a level has.
    """
    e0, e1, e2, e3, e4, e5, e6, e7 = errors
    least, first, number = spread(FLT_MAX), spread(I(NOBODY)), lane_numbers()
    for b in range(0, count, WIDTH):
        rolled()
        code = load_ints(near_code, b)
        error = look_up(e0, code) + look_up(e1, code >> 2) + look_up(e2, code >> 4) + look_up(e3, code >> 6)
        error = error + look_up(e4, code >> 8) + look_up(e5, code >> 10) + look_up(e6, code >> 12)
        error = error + look_up(e7, code >> 14)
        less = error < least
        first = where(less, number, first)
        least = where(less, error, least)
        number += WIDTH
    order = as_ints(least)
    found = lowest(where(order == lowest(order), first, NOBODY))
    return np.int64(near_code[found]) if found < NOBODY else -1


@inline
def place_group(rank, i1, i2, flip, x, w, scale, lowest_level, lattice, codes, k):
    """Writes the code of group k's lattice point: 1 if the cuts lead to one, 0 if it was searched, −1 if in vain."""
    a = np.int64(bits(load(rank, 8 * k) >= F(i1)))
    b = np.int64(bits(load(rank, 8 * k) >= F(i2)))
    if flip:
        a, b = b ^ 255, a ^ 255
    code = apart(a & ~b) | apart(b) << 1
    entry = entry_of(code, lattice, 8)
    if entry >= 0:
        codes[k] = code
        return 1
    x, w = skip(x, 8 * k), skip(w, 8 * k)
    q = (to_floats(lane_numbers() & 3) + lowest_level) * scale
    g0, g1, g2, g3 = q - x[0], q - x[1], q - x[2], q - x[3]
    g4, g5, g6, g7 = q - x[4], q - x[5], q - x[6], q - x[7]
    e0, e1, e2, e3 = g0 * w[0] * g0, g1 * w[1] * g1, g2 * w[2] * g2, g3 * w[3] * g3
    e4, e5, e6, e7 = g4 * w[4] * g4, g5 * w[5] * g5, g6 * w[6] * g6, g7 * w[7] * g7
    near_code = skip(lattice[3], WIDTH * (-entry >> 9))
    codes[k] = closest(near_code, -entry & 511, (e0, e1, e2, e3, e4, e5, e6, e7))
    return 0 if codes[k] >= 0 else -1


@inline
def level_of(code, i):
    return F(code >> 2 * i & 3)


@inline
def fit(rank, i1, i2, flip, x, w, scale, lows, groups, lattice, codes):
    """Write the codes of the groups' lattice points; `lows` is the lowest level of every group.

    Returns the scale, fitted anew if one was searched, or NaN where the reference aborts.
    """
    on_lattice = 1
    for k in range(groups):
        rolled()
        on = place_group(rank, i1, i2, flip, x, w, scale, lows[k], lattice, codes, k)
        if on < 0:
            return F(np.nan)
        on_lattice &= on
    if not on_lattice:
        qx, qq = F(0), F(0)
        for i in range(8 * groups):
            rolled()
            q = level_of(codes[i // 8], i % 8) + lows[i // 8]
            qx += w[i] * q * x[i]
            qq += w[i] * q * q
        if qx > 0 and qq > 0:
            scale = qx / qq
    return scale


@inline
def level_of_scale(scale, inverse):
    return min(max(np.int64(nearest_int(F(0.5) * (inverse * scale - F(1)))), 0), 7)


@kernel
def _iq1_s(values, importance, weighted, columns, grid, out):
    lattice = pointers(grid)
    x, w, wx, rank = float_room(512), float_room(512), float_room(512), float_room(512)
    tops, scales, taken = float_room(SUB_BLOCKS), float_room(SUB_BLOCKS), int_room(SUB_BLOCKS)
    lows, codes = float_room(4), int_room(4)
    blocks = len(values) // BLOCK
    for pair in range(0, blocks, 2):
        for k in range(SUB_BLOCKS):  # the last block has itself as its partner if it has no other
            block = min(pair + k // 8, blocks - 1)
            column = (BLOCK * block + 32 * (k % 8)) % columns
            from_x = skip(pointer(values), BLOCK * block)
            if k % 8 == 0:
                sigma2 = mean_square(from_x, F(2))
            row, part = 32 * k, skip(from_x, 32 * (k % 8))
            copy(part, 32, skip(x, row))
            tops[k] = weigh(part, skip(pointer(importance), column), True, sigma2, 32, skip(w, row), skip(wx, row))
        rank_all(x, np.int64(32), rank)
        cut_iq1_s(rank, w, wx, scales, taken)
        for block in range(pair, min(pair + 2, blocks)):
            y, first = skip(pointer(out), 50 * block), 8 * (block - pair)
            for i in range(50):
                y[i] = 0
            max_scale, downs = F(0), 0
            for ib in range(8):
                k, row = first + ib, 32 * (first + ib)
                scale, trial, scales[k] = scales[k], taken[k], 0
                if tops[k] < F(1e-12) or trial < 0:
                    continue
                down, flip = trial & 1, scale < 0
                if flip:
                    scale, down = -scale, down ^ 1
                for i in range(4):
                    lows[i] = DOWN if down else UP
                i1, i2 = trial >> 1 & 63, trial >> 7
                scale = fit(skip(rank, row), i1, i2, flip, skip(x, row), skip(w, row), scale, lows, 4, lattice, codes)
                if not scale >= 0:
                    return block
                high = 0
                for i in range(4):
                    point = entry_of(np.int64(codes[i]), lattice, 8)
                    y[2 + 4 * ib + i] = point & 255
                    high |= point >> 8 << 3 * i
                put_half(y, 34 + 2 * ib, high)
                scales[k] = scale
                max_scale = max(max_scale, scale)
                downs |= down << 4 * ib + 3
            if max_scale == 0:
                continue
            d = max_scale / F(15)
            inverse = F(1) / d
            put_half(y, 0, half_bits(d * F(1.125)))
            for ib in range(8):
                y[35 + 2 * ib] |= (level_of_scale(scales[first + ib], inverse) | downs >> 4 * ib & 8) << 4
    return -1


@kernel
def _iq1_m(values, importance, weighted, columns, grid, out):
    lattice = pointers(grid)
    w, wx, rank = float_room(256), float_room(256), float_room(256)
    tops, scales, taken = float_room(SUB_BLOCKS), float_room(SUB_BLOCKS), int_room(SUB_BLOCKS)
    lows, codes = float_room(32), int_room(32)
    for block in range(len(values) // BLOCK):
        from_x, y = skip(pointer(values), BLOCK * block), skip(pointer(out), 56 * block)
        sigma2 = mean_square(from_x, F(2))
        for i in range(56):
            y[i] = 0
        for ib in range(SUB_BLOCKS):
            row = 16 * ib
            important = skip(pointer(importance), (BLOCK * block + row) % columns if weighted else 0)
            tops[ib] = weigh(skip(from_x, row), important, weighted, sigma2, 16, skip(w, row), skip(wx, row))
        rank_all(from_x, np.int64(16), rank)
        cut_iq1_m(rank, w, wx, scales, taken)
        max_scale = F(0)
        for ib in range(SUB_BLOCKS):
            row, lows_b, codes_b = 16 * ib, skip(lows, 2 * ib), skip(codes, 2 * ib)
            scale, trial, scales[ib] = scales[ib], taken[ib], 0
            lows_b[0], lows_b[1] = UP, UP
            codes_b[0], codes_b[1] = 0, 0
            if tops[ib] < F(1e-7) or trial < 0:
                continue
            downs, flip = trial & 3, scale < 0
            if flip:
                scale, downs = -scale, 3 - downs
            lows_b[0], lows_b[1] = DOWN if downs & 2 else UP, DOWN if downs & 1 else UP
            i1, i2, x_b, w_b = trial >> 2 & 31, trial >> 7, skip(from_x, row), skip(w, row)
            scale = fit(skip(rank, row), i1, i2, flip, x_b, w_b, scale, lows_b, 2, lattice, codes_b)
            if not scale >= 0:
                return block
            y[32 + ib] = (downs & 1) << 7 | (downs & 2) << 2
            for k in range(2):
                point = entry_of(np.int64(codes_b[k]), lattice, 8)
                y[2 * ib + k] = point & 255
                y[32 + ib] |= point >> 8 << 4 * k
            scales[ib] = scale
            max_scale = max(max_scale, scale)
        if max_scale == 0:
            continue
        d = max_scale / F(15)
        inverse = F(1) / d
        qx, qq = F(0), F(0)
        for ib in range(SUB_BLOCKS):
            rolled()
            level = level_of_scale(scales[ib], inverse)
            word = level << 3 * (ib % 4)
            at = 48 + 2 * (ib // 4)
            y[at] |= word & 255
            y[at + 1] |= word >> 8
            for i in range(16 * ib, 16 * ib + 16):
                rolled()
                q = (level_of(codes[i // 8], i % 8) + lows[i // 8]) * F(2 * level + 1)
                qx += w[i] * q * from_x[i]
                qq += w[i] * q * q
        if qq > 0:
            d = qx / qq
        h = half_bits(d * F(1.1125))
        if h & 0x7C00 == 0x7C00:
            return block
        for i in range(4):
            y[49 + 2 * i] |= (h >> 4 * i & 15) << 4
    return -1


def encode_iq1_s(values: Floats, weights: Floats | None) -> Bytes:
    return encode(TYPES["IQ1_S"], _iq1_s, values, weights, lattice("IQ1_S"), needs_weights=True)


def encode_iq1_m(values: Floats, weights: Floats | None) -> Bytes:
    return encode(TYPES["IQ1_M"], _iq1_m, values, weights, lattice("IQ1_S"))
