"""Encoder of IQ4_XS that goes on where llama.cpp's search ends: `--rounding search`.

The search of ggml-quants.c fits each 32 values by themselves, makes codes of their scales, and stops. Here each code
may become one beside it or beside its negative, then the block's float16 scale is fitted to all levels by least
squares, and so again; what explains most of Σ w · x² stands, under the same weights. The trials of a code are lanes.
"""

from __future__ import annotations

import numpy as np

from ggferry.quant.codecs.iquants import TYPES
from ggferry.quant.kernels.common import F, half_bits, half_value, inline, kernel, nearest_int, put_half
from ggferry.quant.kernels.iquants4 import TRIES, best_scale, cells, put_indices, sum_levels
from ggferry.quant.kernels.iquants_run import encode
from ggferry.quant.kernels.lanes import (
    WIDTH,
    float_room,
    lane_numbers,
    load,
    maximum,
    minimum,
    pointer,
    rolled,
    skip,
    sqrt,
    store,
    to_floats,
    where,
)

ROUNDS = 3


@inline
def try_codes(x, w, d, code, levels, tried, gain, sum_qx, sum_qq):
    """Try, for 32 values, eight codes around `code` and eight around its negative; returns the number of the best.

    Of each, `gain` is what it explains of Σ w · x², and the sums are those of its levels.
    """
    near = maximum(minimum(lane_numbers() - 4 + code, 31), -32)
    far = maximum(minimum(lane_numbers() - 4 - code, 31), -32)
    store(tried, 0, to_floats(near))
    store(tried, WIDTH, to_floats(far))
    step_a, step_b = d * load(tried, 0), d * load(tried, WIDTH)
    twice_a = where(step_a != 0, F(2) / step_a, F(0))
    twice_b = where(step_b != 0, F(2) / step_b, F(0))
    qx_a, qx_b, qq_a, qq_b = sum_levels(x, w, twice_a, twice_b, levels, sum_qx, sum_qq)
    store(gain, 0, step_a * (qx_a + qx_a - step_a * qq_a))
    store(gain, WIDTH, step_b * (qx_b + qx_b - step_b * qq_b))
    best = 4
    for t in range(2 * WIDTH):
        rolled()
        if gain[t] > gain[best]:
            best = t
    return best


@inline
def improve(x, w, d, codes, levels):
    """Improve the eight codes of a block in place; returns its scale, a float16's."""
    tried, gain, sum_qx, sum_qq, trial = (float_room(16), float_room(16), float_room(16), float_room(16), float_room(8))
    for j in range(8):
        trial[j] = codes[j]
    best_d, most, now = d, F(-1), d
    for _ in range(ROUNDS):
        rolled()
        total, qx, qq = F(0), F(0), F(0)
        for j in range(8):
            rolled()
            t = try_codes(
                skip(x, 32 * j), skip(w, 32 * j), now, np.int32(trial[j]), levels, tried, gain, sum_qx, sum_qq
            )
            code = tried[t]
            trial[j] = code
            total += gain[t]
            qx += code * sum_qx[t]
            qq += code * code * sum_qq[t]
        if not total > most:
            break
        most, best_d = total, now
        for j in range(8):
            codes[j] = trial[j]
        fitted = half_value(half_bits(qx / qq)) if qq > 0 else now
        if fitted == now:
            break
        now = fitted
    return best_d


@kernel
def iq4_xs_searched(values, importance, weighted, columns, tries, indices, levels, out):
    w, scales, codes = float_room(256), float_room(8), float_room(8)
    tries, indices, levels = pointer(tries), pointer(indices), pointer(levels)
    for block in range(len(values) // 256):
        x, y = skip(pointer(values), block * 256), skip(pointer(out), block * 136)
        sigma2 = F(0)
        for i in range(256):
            rolled()
            sigma2 += x[i] * x[i]
        sigma2 *= F(2) / F(256)
        for i in range(0, 256, WIDTH):
            rolled()
            weight = sqrt(load(x, i) * load(x, i) + sigma2)
            store(w, i, load(pointer(importance), (block * 256 + i) % columns) * weight)
        widest, max_scale = F(0), F(0)
        for ib in range(8):
            rolled()
            scale = best_scale(skip(x, 32 * ib), skip(pointer(w), 32 * ib), tries, levels)
            scales[ib] = scale
            if abs(scale) > widest:
                widest, max_scale = abs(scale), scale
        d = -max_scale / F(32)
        inverse = F(1) / d if d != 0 else F(0)
        for ib in range(8):
            codes[ib] = F(min(max(np.int64(nearest_int(inverse * scales[ib])), -32), 31))
        d = improve(x, pointer(w), half_value(half_bits(d)), codes, levels)
        put_half(y, 0, half_bits(d))
        high = 0
        for ib in range(8):
            rolled()
            step = d * codes[ib]
            put_indices(skip(x, 32 * ib), F(1) / step if step != 0 else F(0), indices, skip(y, 8 + 16 * ib))
            level = np.int64(codes[ib]) + 32
            high |= level >> 4 << 2 * ib
            low = level & 15
            y[4 + ib // 2] = low if ib % 2 == 0 else y[4 + ib // 2] | low << 4
        put_half(y, 2, high)
    return -1


def encode_iq4_xs(values, weights):
    """Encode rows of float32 `(R, columns)` by importance `(columns,)`; see `Codec.encode`."""
    return encode(TYPES["IQ4_XS"], iq4_xs_searched, values, weights, TRIES, *cells(), needs_weights=True)
