"""Encoders of IQ1_S and IQ1_M: `quantize_row_iq1_s_impl`, `quantize_row_iq1_m_impl` of ggml-quants.c.

A sub-block's values in ascending order are cut at i1 and i2 into three levels, −1, 0 and 1, all moved by a delta of
⅛ up or down. The reference tries every pair of cuts with every sign of the delta in turn and takes a trial whose
correlation beats the best before it. Here eight values of i2 are lanes; only where one of them would be taken are
they gone through one by one, so that the order and the rounding of the comparisons stay the reference's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba.cpython.unsafe.numbers import trailing_zeros

from ggferry.quant.codecs.iquants import TYPES
from ggferry.quant.kernels.common import F, I, half_bits, inline, kernel, nearest_int, put_half
from ggferry.quant.kernels.grids import entry_of, lattice, pointers
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
    look_up,
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
from ggferry.quant.kernels.onebit import apart

if TYPE_CHECKING:
    from ggferry.quant.codec import Bytes, Floats

BLOCK = 256
FLT_MAX = F(np.finfo(np.float32).max)
NOBODY = 512
"""More than the number of a neighbour."""
_UP, _DOWN = F(-0.875), F(-1.125)
"""The lowest level, moved by the delta: `x_p[0]`, `x_m[0]`. The others are 1 and 2 more."""


@inline
def clear(sums, n):
    """Zeros: denormals in lanes beyond the last cut would cost a hundred cycles each."""
    for i in range(n):
        sums[i] = 0


@inline
def weigh(x, importance, weighted, sigma2, n, w):
    """Weights of n values, importance · √(σ² + x²) or x²; their greatest magnitude."""
    most = spread(I(0))
    for i in range(0, n, WIDTH):
        rolled()
        v = load(x, i)
        weight = v * v
        if weighted:
            weight = load(importance, i) * sqrt(weight + sigma2)
        store(w, i, weight)
        most = maximum(most, as_ints(absolute(v)))
    return scalar_float(highest(most))


@inline
def sort(x, n, rank, order):
    """Ranks of n values, equal ones in their order as glibc's merging `qsort` leaves them; and who has each rank."""
    for j in range(0, n, WIDTH):
        rolled()
        mine, number, before = load(x, j), lane_numbers() + I(j), spread(I(0))
        for i in range(n):
            rolled()
            other = x[i]
            before += where((mine > other) | ((mine == other) & (number > i)), spread(I(1)), spread(I(0)))
        store(rank, j, before)
    for j in range(n):
        rolled()
        order[rank[j]] = j


@inline
def closest(near_code, count, errors):
    """The code of the neighbour with the least error, the first of several; −1 if none is below FLT_MAX.

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
    a = np.int64(bits(load_ints(rank, 8 * k) >= i1))
    b = np.int64(bits(load_ints(rank, 8 * k) >= i2))
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
def cut_iq1_s(x, w, order, sums):
    """The best cuts of 32 sorted values: scale, i1, i2 (−1 if no trial was taken), whether the delta is up."""
    # by i2: Σ to i2 of w·x and of w; the part of the sums that is above i2, with the delta up and down
    sum_x, sum_w, x_up, x_down = sums, skip(sums, 40), skip(sums, 80), skip(sums, 120)
    w_up, w_down = skip(sums, 160), skip(sums, 200)
    total_x, total_w = F(0), F(0)
    sum_x[0], sum_w[0] = total_x, total_w
    for j in range(32):
        rolled()
        i = order[j]
        total_x += w[i] * x[i]
        total_w += w[i]
        sum_x[j + 1], sum_w[j + 1] = total_x, total_w
    for j in range(0, 40, WIDTH):
        rolled()
        above_x, above_w = total_x - load(sum_x, j), total_w - load(sum_w, j)
        store(x_up, j, above_x * F(1.125))
        store(x_down, j, above_x * F(0.875))
        store(w_up, j, above_w * F(1.125) * F(1.125))
        store(w_down, j, above_w * F(0.875) * F(0.875))
    best, scale = F(-3.4028234663852886e38), F(np.nan)
    best_1, best_2, up = 0, -1, True
    qx_up, qx_down, qq_up, qq_down = float_room(WIDTH), float_room(WIDTH), float_room(WIDTH), float_room(WIDTH)
    for i1 in range(33):
        rolled()
        below_x, below_w = sum_x[i1], sum_w[i1]
        below_x_up, below_x_down = below_x * _UP, below_x * _DOWN
        below_w_up, below_w_down = below_w * _UP * _UP, below_w * _DOWN * _DOWN
        for i2 in range(i1, 33, WIDTH):
            rolled()
            between_x = (load(sum_x, i2) - below_x) * F(0.125)
            between_w = (load(sum_w, i2) - below_w) * F(0.125) * F(0.125)
            x_a, x_b = between_x + below_x_up + load(x_up, i2), below_x_down - between_x + load(x_down, i2)
            w_a, w_b = between_w + below_w_up + load(w_up, i2), between_w + below_w_down + load(w_down, i2)
            taken_a = (w_a > 0) & (x_a * x_a > w_a * best)
            taken_b = (w_b > 0) & (x_b * x_b > w_b * best)
            lanes = np.int64(bits(taken_a | taken_b))
            if i2 > 25:
                lanes &= (1 << (33 - i2)) - 1
            if lanes == 0:
                continue
            store(qx_up, 0, x_a)
            store(qx_down, 0, x_b)
            store(qq_up, 0, w_a)
            store(qq_down, 0, w_b)
            for k in range(np.int64(trailing_zeros(lanes)), min(WIDTH, 33 - i2)):
                rolled()
                if qq_up[k] > 0 and qx_up[k] * qx_up[k] > best * qq_up[k]:
                    scale = qx_up[k] / qq_up[k]
                    best = scale * qx_up[k]
                    best_1, best_2, up = i1, i2 + k, True
                if qq_down[k] > 0 and qx_down[k] * qx_down[k] > best * qq_down[k]:
                    scale = qx_down[k] / qq_down[k]
                    best = scale * qx_down[k]
                    best_1, best_2, up = i1, i2 + k, False
    return scale, best_1, best_2, up


@kernel
def _iq1_s(values, importance, weighted, columns, grid, out):
    lattice = pointers(grid)
    w, sums, scales, codes = float_room(32), float_room(248), float_room(8), int_room(4)
    rank, order = int_room(32), int_room(32)
    clear(sums, 248)
    for block in range(len(values) // BLOCK):
        from_x, y = skip(pointer(values), BLOCK * block), skip(pointer(out), 50 * block)
        sigma2 = mean_square(from_x, F(2))
        for i in range(50):
            y[i] = 0
        max_scale, downs = F(0), 0
        for ib in range(8):
            x = skip(from_x, 32 * ib)
            column = (BLOCK * block + 32 * ib) % columns
            scales[ib] = 0
            if weigh(x, skip(pointer(importance), column), True, sigma2, 32, w) < F(1e-12):
                continue
            sort(x, 32, rank, order)
            scale, i1, i2, up = cut_iq1_s(x, w, order, sums)
            if i2 < 0:
                continue
            flip = scale < 0
            if flip:
                scale, up = -scale, not up
            lowest_level = _UP if up else _DOWN
            on_lattice = 1
            for k in range(4):
                on = place_group(rank, i1, i2, flip, x, w, scale, lowest_level, lattice, codes, k)
                if on < 0:
                    return block
                on_lattice &= on
            if not on_lattice:
                qx, qq = F(0), F(0)
                for i in range(32):
                    rolled()
                    q = level_of(codes[i // 8], i % 8) + lowest_level
                    qx += w[i] * q * x[i]
                    qq += w[i] * q * q
                if qx > 0 and qq > 0:
                    scale = qx / qq
            if not scale >= 0:
                return block
            high = 0
            for k in range(4):
                point = entry_of(np.int64(codes[k]), lattice, 8)
                y[2 + 4 * ib + k] = point & 255
                high |= point >> 8 << 3 * k
            put_half(y, 34 + 2 * ib, high)
            scales[ib] = scale
            max_scale = max(max_scale, scale)
            downs |= (0 if up else 8) << 4 * ib
        if max_scale == 0:
            continue
        d = max_scale / F(15)
        inverse = F(1) / d
        put_half(y, 0, half_bits(d * F(1.125)))
        for ib in range(8):
            level = min(max(np.int64(nearest_int(F(0.5) * (inverse * scales[ib] - F(1)))), 0), 7)
            y[35 + 2 * ib] |= (level | downs >> 4 * ib & 8) << 4
    return -1


@inline
def cut_iq1_m(x, w, order, sums):
    """The best cuts of 16 sorted values: scale, i1, i2, signs of the deltas (bit 1: first half down, bit 0: second).

    Sums are kept for each half; with s the Σ w·x below i1 and below i2, Σ w·x·q is Σ w·x · highest level − s.
    """
    trial_x, trial_w = float_room(32), float_room(32)
    # by half and cut: Σ of w·x, Σ of w, and of that −1.25 and −0.75 times
    for h in range(2):
        half = skip(sums, 96 * h)
        total_x, total_w = F(0), F(0)
        half[0], half[24], half[48], half[72] = total_x, total_w, total_w * F(-1.25), total_w * F(-0.75)
        for j in range(16):
            rolled()
            i = order[j]
            if i // 8 == h:
                total_x += w[i] * x[i]
                total_w += w[i]
            half[j + 1], half[j + 25] = total_x, total_w
            half[j + 49], half[j + 73] = total_w * F(-1.25), total_w * F(-0.75)
    a, b = sums, skip(sums, 96)
    a_x_up, a_x_down, b_x_up, b_x_down = a[16] * F(1.125), a[16] * F(0.875), b[16] * F(1.125), b[16] * F(0.875)
    a_w_up, a_w_down = a[40] * F(1.125) * F(1.125), a[40] * F(0.875) * F(0.875)
    b_w_up, b_w_down = b[40] * F(1.125) * F(1.125), b[40] * F(0.875) * F(0.875)
    best, scale = F(-3.4028234663852886e38), F(np.nan)
    best_1, best_2, best_k = 0, 0, -1
    for i1 in range(17):
        rolled()
        below_a, below_b = a[i1], b[i1]
        a_up_1, a_down_1 = a_w_up + a[24 + i1] * F(0.75), a_w_down + a[24 + i1] * F(1.25)
        b_up_1, b_down_1 = b_w_up + b[24 + i1] * F(0.75), b_w_down + b[24 + i1] * F(1.25)
        for i2 in range(i1, 17, WIDTH):
            rolled()
            s_a, s_b = load(a, i2) + below_a, load(b, i2) + below_b
            xa_up, xa_down, xb_up, xb_down = a_x_up - s_a, a_x_down - s_a, b_x_up - s_b, b_x_down - s_b
            wa_up, wa_down = load(a, 48 + i2) + a_up_1, load(a, 72 + i2) + a_down_1
            wb_up, wb_down = load(b, 48 + i2) + b_up_1, load(b, 72 + i2) + b_down_1
            x_0, x_1, x_2, x_3 = xa_up + xb_up, xa_up + xb_down, xa_down + xb_up, xa_down + xb_down
            w_0, w_1, w_2, w_3 = wa_up + wb_up, wa_up + wb_down, wa_down + wb_up, wa_down + wb_down
            taken = (w_0 > 0) & (x_0 * x_0 > w_0 * best) | (w_1 > 0) & (x_1 * x_1 > w_1 * best)
            taken |= (w_2 > 0) & (x_2 * x_2 > w_2 * best) | (w_3 > 0) & (x_3 * x_3 > w_3 * best)
            lanes = np.int64(bits(taken))
            if i2 > 9:
                lanes &= (1 << (17 - i2)) - 1
            if lanes == 0:
                continue
            store(trial_x, 0, x_0)
            store(trial_x, 8, x_1)
            store(trial_x, 16, x_2)
            store(trial_x, 24, x_3)
            store(trial_w, 0, w_0)
            store(trial_w, 8, w_1)
            store(trial_w, 16, w_2)
            store(trial_w, 24, w_3)
            for lane in range(np.int64(trailing_zeros(lanes)), min(WIDTH, 17 - i2)):
                rolled()
                for k in range(4):
                    rolled()
                    qx, qq = trial_x[8 * k + lane], trial_w[8 * k + lane]
                    if qq > 0 and qx * qx > best * qq:
                        scale = qx / qq
                        best = scale * qx
                        best_1, best_2, best_k = i1, i2 + lane, k
    return scale, best_1, best_2, best_k


@kernel
def _iq1_m(values, importance, weighted, columns, grid, out):
    lattice = pointers(grid)
    w, sums, scales, codes = float_room(256), float_room(192), float_room(16), int_room(32)
    rank, order, shifts = int_room(16), int_room(16), int_room(16)
    clear(sums, 192)
    for block in range(len(values) // BLOCK):
        from_x, y = skip(pointer(values), BLOCK * block), skip(pointer(out), 56 * block)
        sigma2 = mean_square(from_x, F(2))
        for i in range(56):
            y[i] = 0
        max_scale = F(0)
        for ib in range(16):
            x, w_b, codes_b = skip(from_x, 16 * ib), skip(w, 16 * ib), skip(codes, 2 * ib)
            column = (BLOCK * block + 16 * ib) % columns if weighted else 0
            scales[ib], shifts[ib] = 0, 0
            codes_b[0], codes_b[1] = 0, 0
            top = weigh(x, skip(pointer(importance), column), weighted, sigma2, 16, w_b)
            if top < F(1e-7):
                continue
            sort(x, 16, rank, order)
            scale, i1, i2, shift = cut_iq1_m(x, w_b, order, sums)
            if shift < 0:
                continue
            flip = scale < 0
            if flip:
                scale, shift = -scale, 3 - shift
            on_lattice = 1
            for k in range(2):
                rolled()
                lowest_level = _DOWN if shift >> (1 - k) & 1 else _UP
                on = place_group(rank, i1, i2, flip, x, w_b, scale, lowest_level, lattice, codes_b, k)
                if on < 0:
                    return block
                on_lattice &= on
            if not on_lattice:
                qx, qq = F(0), F(0)
                for i in range(16):
                    rolled()
                    q = level_of(codes_b[i // 8], i % 8) + (_DOWN if shift >> (1 - i // 8) & 1 else _UP)
                    qx += w_b[i] * q * x[i]
                    qq += w_b[i] * q * q
                if qx > 0 and qq > 0:
                    scale = qx / qq
            if not scale >= 0:
                return block
            for k in range(2):
                point = entry_of(np.int64(codes_b[k]), lattice, 8)
                y[2 * ib + k] = point & 255
                y[32 + ib] |= point >> 8 << 4 * k
            scales[ib], shifts[ib] = scale, shift
            max_scale = max(max_scale, scale)
        if max_scale == 0:
            continue
        d = max_scale / F(15)
        inverse = F(1) / d
        qx, qq = F(0), F(0)
        for ib in range(16):
            rolled()
            level = min(max(np.int64(nearest_int(F(0.5) * (inverse * scales[ib] - F(1)))), 0), 7)
            word = level << 3 * (ib % 4)
            at = 48 + 2 * (ib // 4)
            y[at] |= word & 255
            y[at + 1] |= word >> 8
            y[32 + ib] |= (shifts[ib] & 1) << 7 | (shifts[ib] >> 1) << 3
            for i in range(16 * ib, 16 * ib + 16):
                rolled()
                k = i // 8 % 2
                q = (level_of(codes[i // 8], i % 8) + (_DOWN if shifts[ib] >> (1 - k) & 1 else _UP)) * F(2 * level + 1)
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
