"""What codes become that are no lattice points, in the search of IQ2 and IQ3: a neighbor with the least error.

A group of four has seven neighbors or so, and every trial sums their errors as the reference does. A group of eight
has up to 292. They are searched once for a run of trials with the same code, by a shortcut that gives the same choice:

With P = Σ w·x·q and Q = Σ w·q², a neighbor's error at scale s is Σ w·x² − s·(2P − s·Q), so the least error has the
greatest gain 2P − s·Q. Rounding moves neither that estimate nor the reference's sum by more than 14 units in the last
place of B(s) = Σ w·(s·max q + |x|)², because each adds eight products that were rounded a few times. A neighbor whose
gain leads by 256 units of B(s) / s leads by more than the 28 that doubt could cost. Where nobody leads so far, or
numbers are so large or small that they might overflow or lose bits as denormals, the reference's sum decides.
"""

from __future__ import annotations

import numpy as np
from numba.cpython.unsafe.numbers import trailing_zeros

from ggferry.quant.kernels.common import F, I, inline, spread16
from ggferry.quant.kernels.grids import entry_of
from ggferry.quant.kernels.lanes import (
    WIDTH,
    absolute,
    as_ints,
    bits,
    float_room,
    int_room,
    lane_numbers,
    load,
    load_numbers,
    lowest,
    rolled,
    skip,
    spread,
    store,
    where,
)
from ggferry.quant.kernels.lanes_across import gather, joined, loose_fma, loose_sum, lowest_of_eight

FAR = 304
"""At most 292 neighbors, in whole blocks."""

FLT_MAX = F(np.finfo(np.float32).max)

NOBODY = 512
"""More than the number of a neighbor."""

_SLACK = F(2.0**-16)


@inline
def slack_of(x, w, top):
    """What bounds the rounding of a search (see `settle_eight`): −1 first where numbers are too large or small."""
    v, weight = absolute(load(x, 0)), load(w, 0)
    w_sum = loose_sum(weight)
    if not F(1e-10) < w_sum < F(1e10):
        w_sum = F(-1)
    return _SLACK * top * top * w_sum, F(2) * _SLACK * top * loose_sum(weight * v), _SLACK * loose_sum(weight * v * v)


@inline
def closest(near, count, x, w, s):
    """The neighbor with the least error at scale s as the reference sums it; −1 if no error is below FLT_MAX."""
    low, found = I(0x7F7FFFFF), -1
    for b in range((count + WIDTH - 1) // WIDTH):
        rolled()
        error = spread(F(0))
        for i in range(8):
            gap = load_numbers(near, (8 * b + i) * WIDTH) * s - x[i]
            error += gap * w[i] * gap
        order = as_ints(error) & 0x7FFFFFFF
        lower = lowest(order)
        if lower < low:
            low = lower
            found = WIDTH * b + np.int64(trailing_zeros(bits(order == low)))
    return found


@inline
def moments(near, count, x, w, twice_p, q):
    """2P and Q of the neighbors, about."""
    for b in range((count + WIDTH - 1) // WIDTH):
        rolled()
        p_sum, q_sum = spread(F(0)), spread(F(0))
        for i in range(8):
            level = load_numbers(near, (8 * b + i) * WIDTH)
            weighted = level * w[i]
            p_sum = loose_fma(weighted, x[i], p_sum)
            q_sum = loose_fma(weighted, level, q_sum)
        store(twice_p, WIDTH * b, p_sum + p_sum)
        store(q, WIDTH * b, q_sum)


@inline
def leaders(twice_p, q, count, s):
    """At eight scales: the greatest gain, the second, and the number of the neighbor that has the greatest."""
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
def refine_eight(near, near_code, count, x, w, scales, ids, slack, t, end, chosen):
    """Writes to `chosen` the nearest neighbor's code in trials t … end − 1. False if a search fails.

    `slack`: Σ w·max q², Σ 2·w·max q·|x|, Σ w·x² or more, times the margin; the first negative to trust no estimate.
    """
    twice_p, q = float_room(FAR), float_room(FAR)
    w_slack, wx_slack, wxx_slack = slack
    if w_slack >= 0:
        moments(near, count, x, w, twice_p, q)
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
            j = closest(near, count, x, w, scales[u])
            if j < 0:
                return False
            chosen[u] = near_code[j]
        t += WIDTH
    return True


@inline
def refine_four(near, near_code, count, x, w, scales, t, end, chosen):
    """The same for a group of four: the reference's sums, eight neighbors at a time in each of two trials."""
    first = int_room(16)
    while t < end:
        rolled()
        u = min(t + 1, end - 1)
        s = joined(spread(scales[t]), spread(scales[u]))
        least, nearest = spread16(FLT_MAX), spread16(I(NOBODY))
        number = joined(lane_numbers(), lane_numbers())
        for b in range(0, count, WIDTH):
            rolled()
            error = spread16(F(0))
            for i in range(4):
                level = load_numbers(near, 4 * b + i * WIDTH)
                gap = joined(level, level) * s - x[i]
                error += gap * w[i] * gap
            less = error < least
            nearest = where(less, number, nearest)
            least = where(less, error, least)
            number += WIDTH
        order = as_ints(least)
        store(first, 0, lowest_of_eight(where(order == lowest_of_eight(order), nearest, NOBODY)))
        if first[0] == NOBODY or first[WIDTH] == NOBODY:
            return False
        chosen[t], chosen[u] = near_code[first[0]], near_code[first[WIDTH]]
        t += 2
    return True


@inline
def refine(codes, runs, trials, scales, ids, x, w, width, lattice, slack, chosen):
    """Writes to `chosen` the code of the lattice point that a group becomes in every trial. False if a search fails."""
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
        if width == 4:
            settled = refine_four(near, near_code, count, x, w, scales, t, end, chosen)
        else:
            settled = refine_eight(near, near_code, count, x, w, scales, ids, slack, t, end, chosen)
        if not settled:
            return False
    return True
