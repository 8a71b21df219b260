"""The search that IQ2 and IQ3 share: for every sub-block, the scale and the lattice points that fit it best.

llama.cpp tries 13 to 31 scales. Each rounds every group of elements to a code, and a code that is no lattice point to
the neighbor with the least weighted squared error (`iquants_settle`). Here the trials are lanes.
"""

from __future__ import annotations

import numpy as np

from ggferry.quant.kernels.common import F, I, inline, kernel, nearest, nearest_int
from ggferry.quant.kernels.grids import entry_of, group_width, pointers
from ggferry.quant.kernels.iquants_refine import refine, slack_of
from ggferry.quant.kernels.iquants_weights import mean_square, prepare, scale_of_positives
from ggferry.quant.kernels.lanes import (
    WIDTH,
    as_ints,
    bits,
    float_room,
    highest,
    int_room,
    load,
    load_ints,
    maximum,
    minimum,
    pointer,
    rolled,
    scalar_float,
    skip,
    spread,
    store,
    to_floats,
)
from ggferry.quant.kernels.lanes_across import following

BLOCK = 256
"""`QK_K` of ggml-common.h."""

ROOM = 40
"""Trials of one sub-block (at most 31), and room for eight lanes from the last."""

CODES = 8 * ROOM
"""Eight groups at most."""

REFIT_ALWAYS, REFIT_OFF_LATTICE, REFIT_ALL_IF_ANY = 0, 1, 2


@inline
def largest(x, n):
    """The largest magnitude of n values."""
    most = spread(I(0))
    for i in range(0, n, WIDTH):
        rolled()
        most = maximum(most, as_ints(load(x, i)) & 0x7FFFFFFF)
    return scalar_float(highest(most))


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
            code = (code << level_bits) | minimum(maximum(nearest((scale * x[i] - 1) * 0.5), 0), top)
        store(codes, t, code)
        changes |= np.int64(bits(code != following(before, code))) << t
        before = code
    return changes & ((1 << trials) - 1)


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
                level = code & level_mask
                code >>= level_bits
                value = to_floats(level + level + 1)
                qx += value * (w[i] * x[i])
                qq += value * w[i] * value
        store(sum_qx, t, qx)
        store(sum_qq, t, qq)


@kernel
def search(values, importance, weighted, columns, first, form, tries, lattice, points, signs, levels, units, empty):
    """Search blocks of 256 values. Returns −1, or the number of a block where the reference aborts.

    Writes, in a row for each block: the lattice point of every group, a byte of signs for every eight, the level of
    every scale, their unit d (0 if no scale is above 0), and the bits of sub-blocks that were not searched, whose
    fields are 0.
    """
    n, _, factor, plain, even, least, policy, trials = form
    lattice = pointers(lattice)
    width = group_width(lattice[2])
    level_bits = 2 if width == 8 else 3
    groups = n // width
    w, root, x, sub_scales = float_room(32), float_room(32), float_room(32), float_room(16)
    ids, scales, sum_qx, sum_qq = float_room(ROOM), float_room(ROOM), float_room(ROOM), float_room(ROOM)
    codes, chosen = int_room(CODES), int_room(CODES)
    found = int_room(8)
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
                    if within and width == 8:
                        slack = slack_of(x_k, root_k, top)
                    runs = round_to_codes(ids, now, x_k, width, level_bits, codes_k)
                    if not refine(codes_k, runs, now, scales, ids, x_k, root_k, width, lattice, slack, chosen_k):
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
