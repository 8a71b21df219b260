"""The search of IQ1_S and IQ1_M: where to cut a sub-block's sorted values into three levels, and which deltas to take.

The reference tries every pair of cuts with every sign of the deltas in turn. A trial whose correlation x²/w, where x is
Σ weight·value·level and w is Σ weight·level², beats that of the last one taken is taken. Here sixteen sub-blocks are
lanes, and a trial costs little unless one of them takes it. So that few do, the search does not start from nothing:
of a coarse grid of the trials the best is found first, and its correlation, less one part in 512, is what the first
trial has to beat.

That changes nothing. Compare the two searches, from nothing and from that start. Once both take a trial they are
equal for good. A trial that one of them takes alone does not beat what the other one holds by more than a few roundings
of 2⁻²⁴, so the greater of what they hold grows by at most five of them: 1122 trials raise it by less than one part in
2048 above the start. The best trial of the grid is further above it: both take that one, if not one before. (All this
while no product is a denormal number or overflows; the start is only used where none can be.)
"""

from __future__ import annotations

import numpy as np
from numba.core import types

from ggferry.quant.kernels.common import F, I, inline, load16, shared, spread16
from ggferry.quant.kernels.lanes import bits, rolled, rooms, skip, stand_alone, store, to_floats, transpose, where

SUB_BLOCKS = 16
"""Searched at once, as lanes: those of one block of IQ1_M, of two of IQ1_S."""

columns = rooms(types.float32, SUB_BLOCKS)
"""`columns(n)`: room on the stack for n float32 of every sub-block, as `[n][sub-block]`."""

UP, DOWN = F(-0.875), F(-1.125)
"""The lowest level, moved by the delta: `x_p[0]`, `x_m[0]`. The others are 1 and 2 more."""

_NOTHING = F(-np.finfo(np.float32).max)
_LEAST, _MOST = F(1e-16), F(1e15)
"""Between them, sums and correlations have products that are neither denormal nor infinite."""


@shared
def across(rows, n, columns):
    """Transpose: n values, a multiple of 16, of each sub-block become `columns[value][sub-block]`."""
    stand_alone()
    for i in range(0, n, SUB_BLOCKS):
        rolled()
        transpose(rows, i, n, columns, SUB_BLOCKS * i, SUB_BLOCKS)


@shared
def along(columns, n, rows):
    """The way back of `across`."""
    stand_alone()
    for i in range(0, n, SUB_BLOCKS):
        rolled()
        transpose(columns, SUB_BLOCKS * i, SUB_BLOCKS, rows, i, n)


@inline
def at(columns, i):
    """Number i of every sub-block."""
    return load16(columns, SUB_BLOCKS * i)


@inline
def put(columns, i, v):
    store(columns, SUB_BLOCKS * i, v)


@shared
def rank_all(x, n, rank):
    """Ranks of every sub-block's n values, equal ones in their order as glibc's merging `qsort` leaves them. Rows."""
    stand_alone()
    values, ranks = columns(32), columns(32)
    across(x, n, values)
    for j in range(n):
        rolled()
        values_here, before = at(values, j), spread16(I(0))
        for i in range(j):
            before += where(at(values, i) <= values_here, spread16(I(1)), spread16(I(0)))
        for i in range(j + 1, n):
            before += where(at(values, i) < values_here, spread16(I(1)), spread16(I(0)))
        put(ranks, j, to_floats(before))
    along(ranks, n, rank)


@inline
def start(best_x, best_w, weight):
    """What the first trial has to beat, from the best one of a grid and the sum of weights."""
    held = best_x / best_w * best_x * F(1 - 1 / 512)
    safe = (held > _LEAST) & (held < _MOST) & (weight > _LEAST) & (weight < _MOST)
    return where(safe, held, _NOTHING)


@inline
def better(trial, than):
    """Of two trials the one that correlates better, about."""
    x, w = trial
    best_x, best_w = than
    more = x * x * best_w > best_x * best_x * w
    return where(more, x, best_x), where(more, w, best_w)


@inline
def take(trial, number, held):
    """Where the trial is taken: its correlation, scale and number, and elsewhere what was held."""
    x, w = trial
    best, scale, taken = held
    takes = (w > F(0)) & (x * x > best * w)
    if bits(takes):
        its = x / w
        best = where(takes, its * x, best)
        scale = where(takes, its, scale)
        taken = where(takes, number, taken)
    return best, scale, taken


# IQ1_S: trial number 128 · i2 + 2 · i1, and 1 if the delta is down

_S = 33 * SUB_BLOCKS


@inline
def trials_iq1_s(sums, i1, i2):
    """The trials of two cuts, with the delta up and down."""
    sum_x, sum_w, x_up, x_down = sums, skip(sums, _S), skip(sums, 2 * _S), skip(sums, 3 * _S)
    w_up, w_down = skip(sums, 4 * _S), skip(sums, 5 * _S)
    below_x, below_w = at(sum_x, i1), at(sum_w, i1)
    between_x = (at(sum_x, i2) - below_x) * F(0.125)
    between_w = (at(sum_w, i2) - below_w) * F(0.125) * F(0.125)
    up = between_x + below_x * UP + at(x_up, i2), between_w + below_w * UP * UP + at(w_up, i2)
    down = below_x * DOWN - between_x + at(x_down, i2), between_w + below_w * DOWN * DOWN + at(w_down, i2)
    return up, down


@inline
def sum_iq1_s(rank, w, wx, sums):
    """By i2: Σ to i2 of w·x and of w; the part of the trials' sums that is above i2, with the delta up and down."""
    sum_x, sum_w, x_up, x_down = sums, skip(sums, _S), skip(sums, 2 * _S), skip(sums, 3 * _S)
    w_up, w_down = skip(sums, 4 * _S), skip(sums, 5 * _S)
    for k in range(SUB_BLOCKS):
        rolled()
        for i in range(32 * k, 32 * k + 32):
            rolled()
            j = SUB_BLOCKS * (np.int64(rank[i]) + 1) + k
            sum_x[j], sum_w[j] = wx[i], w[i]
    total_x, total_w = spread16(F(0)), spread16(F(0))
    put(sum_x, 0, total_x)
    put(sum_w, 0, total_w)
    for i in range(1, 33):
        rolled()
        total_x += at(sum_x, i)
        total_w += at(sum_w, i)
        put(sum_x, i, total_x)
        put(sum_w, i, total_w)
    for i in range(33):
        rolled()
        above_x, above_w = total_x - at(sum_x, i), total_w - at(sum_w, i)
        put(x_up, i, above_x * F(1.125))
        put(x_down, i, above_x * F(0.875))
        put(w_up, i, above_w * F(1.125) * F(1.125))
        put(w_down, i, above_w * F(0.875) * F(0.875))
    return total_w


@shared
def cut_iq1_s(rank, w, wx, scales, taken):
    """The best trial of sixteen sub-blocks of 32: their scales, and their numbers or −1."""
    stand_alone()
    sums = columns(198)
    weight = sum_iq1_s(rank, w, wx, sums)
    best = spread16(F(0)), spread16(F(1))
    for i1 in range(5, 17, 3):
        rolled()
        for i2 in range(16, 28, 3):
            rolled()
            up, down = trials_iq1_s(sums, i1, i2)
            best = better(down, better(up, best))
    held = start(best[0], best[1], weight), spread16(F(np.nan)), spread16(I(-1))
    for i1 in range(33):
        rolled()
        for i2 in range(i1, 33):
            up, down = trials_iq1_s(sums, i1, i2)
            if bits((up[0] * up[0] > up[1] * held[0]) | (down[0] * down[0] > down[1] * held[0])):
                held = take(up, 128 * i2 + 2 * i1, held)
                held = take(down, 128 * i2 + 2 * i1 + 1, held)
    store(scales, 0, held[1])
    store(taken, 0, held[2])


# IQ1_M: trial number 128 · i2 + 4 · i1 + k, where bit 1 of k is set if the delta of the first half is down, bit 0 if
# the second half's is

_M = 17 * SUB_BLOCKS
_HALF = 4 * _M


@inline
def half_trials(sums, i1, i2):
    """A half's share of the trials of two cuts, with the delta up and down.

    With s the Σ w·x below i1 and below i2, Σ w·x·q is Σ w·x · highest level − s.
    """
    sum_x, sum_w, low_up, low_down = sums, skip(sums, _M), skip(sums, 2 * _M), skip(sums, 3 * _M)
    total_x, total_w, below_w = at(sum_x, 16), at(sum_w, 16), at(sum_w, i1)
    s = at(sum_x, i2) + at(sum_x, i1)
    w_up = at(low_up, i2) + (total_w * F(1.125) * F(1.125) + below_w * F(0.75))
    w_down = at(low_down, i2) + (total_w * F(0.875) * F(0.875) + below_w * F(1.25))
    return total_x * F(1.125) - s, w_up, total_x * F(0.875) - s, w_down


@inline
def trials_iq1_m(sums, i1, i2):
    """The trials of two cuts in the reference's order: both deltas up, the second down, the first down, both down."""
    xa_up, wa_up, xa_down, wa_down = half_trials(sums, i1, i2)
    xb_up, wb_up, xb_down, wb_down = half_trials(skip(sums, _HALF), i1, i2)
    up = (xa_up + xb_up, wa_up + wb_up), (xa_up + xb_down, wa_up + wb_down)
    down = (xa_down + xb_up, wa_down + wb_up), (xa_down + xb_down, wa_down + wb_down)
    return up[0], up[1], down[0], down[1]


@inline
def sum_iq1_m(rank, w, wx, sums):
    """By half and cut: Σ to it of w·x and of w, and of that −1.25 and −0.75 times."""
    nothing = spread16(F(0))
    for i in range(1, 17):
        rolled()
        for column in (i, i + 17, i + 4 * 17, i + 5 * 17):
            put(sums, column, nothing)
    for k in range(SUB_BLOCKS):
        rolled()
        for i in range(16 * k, 16 * k + 16):
            rolled()
            j = SUB_BLOCKS * (np.int64(rank[i]) + 1) + k + (i >> 3 & 1) * _HALF
            sums[j], sums[j + _M] = wx[i], w[i]
    weight = nothing
    for h in range(2):
        rolled()
        half = skip(sums, h * _HALF)
        total_x, total_w = nothing, nothing
        for i in range(17):
            rolled()
            if i > 0:  # the other half's values add the zeros from above, which change nothing
                total_x += at(half, i)
                total_w += at(half, 17 + i)
            put(half, i, total_x)
            put(half, 17 + i, total_w)
            put(half, 34 + i, total_w * F(-1.25))
            put(half, 51 + i, total_w * F(-0.75))
        weight += total_w
    return weight


@shared
def cut_iq1_m(rank, w, wx, scales, taken):
    """The best trial of sixteen sub-blocks of 16: their scales, and their numbers or −1."""
    stand_alone()
    sums = columns(136)
    weight = sum_iq1_m(rank, w, wx, sums)
    best = spread16(F(0)), spread16(F(1))
    for i1 in range(1, 9, 2):
        rolled()
        for i2 in range(8, 16, 2):
            rolled()
            a, b, c, d = trials_iq1_m(sums, i1, i2)
            best = better(d, better(c, better(b, better(a, best))))
    held = start(best[0], best[1], weight), spread16(F(np.nan)), spread16(I(-1))
    for i1 in range(17):
        rolled()
        for i2 in range(i1, 17):
            a, b, c, d = trials_iq1_m(sums, i1, i2)
            least = held[0]
            takes = (a[0] * a[0] > a[1] * least) | (b[0] * b[0] > b[1] * least)
            if bits(takes | (c[0] * c[0] > c[1] * least) | (d[0] * d[0] > d[1] * least)):
                number = 128 * i2 + 4 * i1
                held = take(b, number + 1, take(a, number, held))
                held = take(d, number + 3, take(c, number + 2, held))
    store(scales, 0, held[1])
    store(taken, 0, held[2])
