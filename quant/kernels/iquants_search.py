"""The search that IQ2 and IQ3 share: for every sub-block, the scale and the lattice points that fit it best.

llama.cpp tries 13 to 31 scales. Each rounds every group of elements to a code, and a code that is no lattice point to
the neighbour with the least weighted squared error. Here the trials are lanes, and the neighbours are searched once
for a run of trials with the same code, by a shortcut that gives the same choice:

With P = Σ w·x·q and Q = Σ w·q², a neighbour's error at scale s is Σ w·x² − s·(2P − s·Q), so its gain 2P − s·Q is a
line in s. Rounding moves neither that estimate nor the reference's sum by more than 14 units in the last place of
B(s) = Σ w·(s·max q + |x|)², because each adds eight products that were rounded a few times. A neighbour that leads by
256 units of B(s) / s at the first and at the last scale of a run leads at every scale between them by more than the 28
that doubt could cost: differences of lines, and B(s) / s, which is convex and over one run's scales varies by less than
half, are largest at an end. Where nobody leads so far, runs are cut in two; where a single scale leaves doubt, or
numbers are so large or small that they might overflow or lose bits as denormals, the reference's sum decides.
"""

from __future__ import annotations

import numpy as np
from numba.cpython.unsafe.numbers import trailing_zeros

from ggferry.quant.kernels.common import F, I, inline, kernel, nearest, nearest_int
from ggferry.quant.kernels.grids import entry_of, pointers
from ggferry.quant.kernels.iquants_weights import mean_square, prepare, scale_of_positives
from ggferry.quant.kernels.lanes import (
    WIDTH,
    absolute,
    as_ints,
    bits,
    float_room,
    following,
    gather,
    highest,
    int_room,
    load,
    load_bytes,
    load_ints,
    loose_fma,
    loose_sum,
    lowest,
    maximum,
    minimum,
    pointer,
    rolled,
    scalar_float,
    skip,
    spread,
    store,
    to_floats,
    where,
)

BLOCK = 256
"""`QK_K` of ggml-common.h."""

ROOM = 40
"""Trials of one sub-block (at most 31), and room for eight lanes from the last."""

CODES = 8 * ROOM
"""Eight groups at most."""

FAR = 304
"""At most 292 neighbours, in whole blocks."""

REFIT_ALWAYS, REFIT_OFF_LATTICE, REFIT_ALL_IF_ANY = 0, 1, 2

_SLACK = F(2.0**-16)


@inline
def largest(x, n):
    """The largest magnitude of n values."""
    most = spread(I(0))
    for i in range(0, n, WIDTH):
        rolled()
        most = maximum(most, as_ints(load(x, i)) & 0x7FFFFFFF)
    return scalar_float(highest(most))


@inline
def closest(near, count, width, x, w, s):
    """The neighbour with the least error at scale s as the reference sums it; −1 if no error is below FLT_MAX."""
    low, found = I(0x7F7FFFFF), -1
    for b in range((count + WIDTH - 1) // WIDTH):
        rolled()
        error = spread(F(0))
        for i in range(width):
            rolled()
            gap = to_floats(load_bytes(near, (b * width + i) * WIDTH)) * s - x[i]
            error += gap * w[i] * gap
        order = as_ints(error) & 0x7FFFFFFF
        lower = lowest(order)
        if lower < low:
            low = lower
            found = WIDTH * b + np.int64(trailing_zeros(bits(order == low)))
    return found


@inline
def moments(near, count, width, x, w, twice_p, q):
    """2P and Q of the neighbours, about."""
    for b in range((count + WIDTH - 1) // WIDTH):
        rolled()
        p_sum, q_sum = spread(F(0)), spread(F(0))
        for i in range(width):
            rolled()
            level = to_floats(load_bytes(near, (b * width + i) * WIDTH))
            weighted = level * w[i]
            p_sum = loose_fma(weighted, x[i], p_sum)
            q_sum = loose_fma(weighted, level, q_sum)
        store(twice_p, WIDTH * b, p_sum + p_sum)
        store(q, WIDTH * b, q_sum)


@inline
def leaders(twice_p, q, count, s):
    """At eight scales: the greatest gain, the second, and the number of the neighbour that has the greatest."""
    best, second = spread(F(-np.inf)), spread(F(-np.inf))
    first, number = spread(I(0)), spread(I(0))
    for j in range(count):
        rolled()
        gain = twice_p[j] - s * q[j]
        first = where(gain > best, number, first)
        beaten = where(gain < best, gain, best)
        second = where(beaten > second, beaten, second)
        best = where(gain > best, gain, best)
        number += 1
    return best, second, first


@inline
def round_to_codes(ids, trials, x, width, level_bits, codes):
    """The codes of a group in every trial, levels clamp((id·x − 1) / 2); bit t where trial t's is not the last's."""
    top = 2 if level_bits == 2 else 7
    changes = 0
    before = spread(I(-1))
    for t in range(0, trials, WIDTH):
        rolled()
        scale = load(ids, t)
        code = spread(I(0))
        for i in range(width - 1, -1, -1):
            rolled()
            code = (code << level_bits) | minimum(maximum(nearest((scale * x[i] - 1) * 0.5), 0), top)
        store(codes, t, code)
        changes |= np.int64(bits(code != following(before, code))) << t
        before = code
    return changes & ((1 << trials) - 1)


@inline
def settle(codes, runs, trials, scales, ids, x, w, width, lattice, slack, twice_p, q, chosen):
    """Writes to `chosen` the code of the lattice point that a group becomes in every trial. False if a search fails.

    `slack`: Σ w·max q², Σ 2·w·max q·|x|, Σ w·x² or more, times the margin; the first negative to trust no estimate.
    """
    w_slack, wx_slack, wxx_slack = slack
    while runs:
        rolled()
        t = np.int64(trailing_zeros(runs))
        runs &= runs - 1
        end = np.int64(trailing_zeros(runs)) if runs else trials
        entry = entry_of(np.int64(codes[t]), lattice, width)
        if entry >= 0:
            point = spread(codes[t])
            while t < end:
                rolled()
                store(chosen, t, point)
                t += WIDTH
            continue
        first, count = WIDTH * (-entry >> 9), -entry & 511
        near, near_code = skip(lattice[2], first * width), skip(lattice[3], first)
        if w_slack >= 0:
            moments(near, count, width, x, w, twice_p, q)
        while t < end:
            rolled()
            doubt = np.int64(255)
            if w_slack >= 0:
                s = load(scales, t)
                margin = s * w_slack + wx_slack + load(ids, t) * wxx_slack
                best, second, number = leaders(twice_p, q, count, s)
                store(chosen, t, gather(near_code, number))
                doubt ^= bits(best - second > margin)
            if end - t < WIDTH:
                doubt &= (1 << (end - t)) - 1
            while doubt:
                rolled()
                u = t + np.int64(trailing_zeros(doubt))
                doubt &= doubt - 1
                j = closest(near, count, width, x, w, scales[u])
                if j < 0:
                    return False
                chosen[u] = near_code[j]
            t += WIDTH
    return True


@inline
def correlate(chosen, trials, x, w, n, width, level_bits, sum_qx, sum_qq):
    """Σ w·x·q and Σ w·q² of every trial, element after element as the reference sums them."""
    level_mask = (1 << level_bits) - 1
    for t in range(0, trials, WIDTH):
        rolled()
        qx, qq = spread(F(0)), spread(F(0))
        for k in range(n // width):
            rolled()
            code = load_ints(chosen, k * ROOM + t)
            for i in range(k * width, k * width + width):
                rolled()
                level = code & level_mask
                code >>= level_bits
                value = to_floats(level + level + 1)
                qx += value * (w[i] * x[i])
                qq += value * w[i] * value
        store(sum_qx, t, qx)
        store(sum_qq, t, qq)


@inline
def slack_of(x, w, top):
    """What bounds the rounding of a search among eight elements, whether in one group or two (see `settle`)."""
    v, weight = absolute(load(x, 0)), load(w, 0)
    w_sum = loose_sum(weight)
    if not F(1e-10) < w_sum < F(1e10):
        w_sum = F(-1)
    return _SLACK * top * top * w_sum, F(2) * _SLACK * top * loose_sum(weight * v), _SLACK * loose_sum(weight * v * v)


@kernel
def search(values, importance, weighted, columns, first, form, tries, lattice, points, signs, levels, units, empty):
    """Searches blocks of 256 values. Writes, a row a block: the lattice point of every group, a byte of signs every
    eight, the level of every scale, their unit d (0 if no scale is above 0), and the bits of sub-blocks that were
    not searched, whose fields are 0. Returns −1, or the number of a block where the reference aborts."""
    n, width, factor, plain, even, least, policy, trials = form
    level_bits = 2 if width == 8 else 3
    groups = n // width
    lattice = pointers(lattice)
    w, root, x, sub_scales = float_room(32), float_room(32), float_room(32), float_room(16)
    ids, scales, sum_qx, sum_qq = float_room(ROOM), float_room(ROOM), float_room(ROOM), float_room(ROOM)
    codes, chosen = int_room(CODES), int_room(CODES)
    found, twice_p, q = int_room(8), float_room(FAR), float_room(FAR)
    top = F(5) if width == 8 else F(15)
    for t in range(ROOM):  # denormals in lanes that nobody looks at would cost a hundred cycles each
        ids[t], scales[t] = 1, 1
    for block in range(len(values) // BLOCK):
        from_x = skip(pointer(values), block * BLOCK)
        from_importance = skip(pointer(importance), (first + block) * BLOCK % columns if weighted else 0)
        sigma2 = mean_square(from_x, factor)
        max_scale, unsearched = F(0), 0
        for ib in range(BLOCK // n):
            block_points = skip(pointer(points), (block * (BLOCK // n) + ib) * groups)
            block_signs = skip(pointer(signs), block * (BLOCK // 8) + ib * (n // 8))
            over = prepare(
                skip(from_x, ib * n),
                skip(from_importance, ib * n if weighted else 0),
                weighted,
                sigma2,
                plain,
                even,
                n,
                w,
                root,
                x,
                block_signs,
            )
            scale = over / top
            searched = not over < least
            if searched and policy == REFIT_ALWAYS:
                scale = scale_of_positives(x, w)
                over = scale * F(3)
                searched = not over <= 0
            sub_scales[ib] = 0
            if not searched:
                unsearched |= 1 << ib
                for k in range(groups):
                    block_points[k] = 0
                for k in range(n // 8):
                    block_signs[k] = 0
                continue
            for t in range(0, trials, WIDTH):
                rolled()
                inverse = load(pointer(tries), t) / over
                store(ids, t, inverse)
                store(scales, t, F(1) / inverse)
            within = F(1e-7) < scales[trials - 1] and scales[0] < F(1e6) and largest(x, n) < F(1e6)
            todo, now = (1 << groups) - 1, trials
            while True:
                rolled()
                for k in range(groups):
                    rolled()
                    x_k, root_k = skip(x, k * width), skip(root, k * width)
                    codes_k, chosen_k = skip(codes, k * ROOM), skip(chosen, k * ROOM)
                    if not todo >> k & 1:
                        chosen_k[0] = found[k]
                        continue
                    slack = (F(-1), F(0), F(0))
                    if within:
                        eight = k * width // WIDTH * WIDTH
                        slack = slack_of(skip(x, eight), skip(root, eight), top)
                    runs = round_to_codes(ids, now, x_k, width, level_bits, codes_k)
                    if not settle(
                        codes_k, runs, now, scales, ids, x_k, root_k, width, lattice, slack, twice_p, q, chosen_k
                    ):
                        return block
                correlate(chosen, now, x, w, n, width, level_bits, sum_qx, sum_qq)
                if now == 1:
                    if sum_qq[0] > 0:
                        scale = sum_qx[0] / sum_qq[0]
                    for k in range(groups):
                        found[k] = chosen[k * ROOM]
                    break
                best, winner = F(0), -1
                for t in range(trials):
                    rolled()
                    if sum_qq[t] > 0 and sum_qx[t] * sum_qx[t] > best * sum_qq[t]:
                        scale = sum_qx[t] / sum_qq[t]
                        best = scale * sum_qx[t]
                        winner = t
                todo = 0
                for k in range(groups):
                    rolled()
                    found[k] = chosen[k * ROOM + winner] if winner >= 0 else 0
                    if winner >= 0 and codes[k * ROOM + winner] != found[k]:
                        todo |= 1 << k
                if policy == REFIT_ALWAYS or (policy == REFIT_ALL_IF_ANY and (todo or winner < 0)):
                    todo = (1 << groups) - 1
                if not (todo and scale > 0):
                    break
                store(ids, 0, spread(F(1) / scale))
                store(scales, 0, spread(scale))
                within = F(1e-7) < scale < F(1e6) and largest(x, n) < F(1e6)
                now = 1
            if scale < 0:
                scale = -scale
                for k in range(n // 8):
                    block_signs[k] ^= 127 if even else 255
            if not scale >= 0:
                return block
            for k in range(groups):
                rolled()
                block_points[k] = entry_of(np.int64(found[k]), lattice, width)
            sub_scales[ib] = scale
            max_scale = max(max_scale, scale)
        d = max_scale / F(31)
        inverse = F(1) / d
        for ib in range(BLOCK // n):
            rolled()
            level = nearest_int(F(0.5) * (inverse * sub_scales[ib] - F(1)))
            levels[block, ib] = min(max(level, I(0)), I(15)) if max_scale > 0 else 0
        units[block] = d if max_scale > 0 else F(0)
        empty[block] = unsearched
    return -1
