"""Encoder of Q4_0 that goes on where llama.cpp's search ends: `--rounding search`.

The search of ggml-quants.c tries 19 scales a block, the sign of which is that of the value of greatest magnitude, and
rounds with the one that it chose before it is rounded to float16 itself. Here scales of both signs are tried, in a
wider range, each followed by the float16 that fits its levels best; what lowers Σ w · error² stands, under the same
weights. Lanes are blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ggferry.quant.blocks import check_values
from ggferry.quant.codecs.simple import TYPES
from ggferry.quant.kernels.common import (
    LANES,
    F,
    all_finite,
    encode_rows,
    half_bits,
    inline,
    kernel,
    levels,
    load,
    load16,
    put_half,
    scratch,
    spread,
)
from ggferry.quant.kernels.fits import fit_scale, peak_of
from ggferry.quant.kernels.lanes import rolled, store, where
from ggferry.quant.kernels.searched_kquants import as_halves, error_of, nearest_level
from ggferry.quant.kernels.simple import put_levels, row_mean_squares, take_weighted

if TYPE_CHECKING:
    from ggferry.quant.types import Bytes, Floats

TRIALS = 20
REFITS = 3


@inline
def fitted(x, w, ratio):
    """The scale that fits the levels nearest to `ratio` · x best, and how much of Σ w · x² it explains."""
    sum_qx, sum_qq = spread(F(0)), spread(F(0))
    for e in range(0, 32 * LANES, LANES):
        v, weight = load(x, e), load(w, e)
        q = nearest_level(ratio * v, -8, 7)
        sum_qx += weight * q * v
        sum_qq += weight * q * q
    usable = sum_qq > F(0)
    return where(usable, sum_qx / sum_qq, F(0)), where(usable, sum_qx * sum_qx / sum_qq, F(-1))


@inline
def best_scale(x, w, d, room):
    """The float16 scale of each of `LANES` blocks, no worse than `d`."""
    d = as_halves(d, room)
    least = error_of(x, w, 0, 32, d, spread(F(0)), -8, 7)
    peak = peak_of(x, 32)[0]
    scale, most = d, spread(F(-1))
    for trial in range(2 * TRIALS):
        rolled()
        size = F(5.5) + F(0.225) * F(trial % TRIALS)
        ratio = (size if trial < TRIALS else -size) / peak
        new, explained = fitted(x, w, ratio)
        better = explained > most
        scale, most = where(better, new, scale), where(better, explained, most)
    for _ in range(REFITS):
        rolled()
        scale = as_halves(scale, room)
        error = error_of(x, w, 0, 32, scale, spread(F(0)), -8, 7)
        better = error < least
        d, least = where(better, scale, d), where(better, error, least)
        scale = fitted(x, w, where(scale != F(0), F(1) / scale, F(0)))[0]
    return d


@kernel
def q4_0_searched(values, out, first, weights, sigma2):
    x, w, wx, d, room = scratch(32), scratch(32), scratch(32), scratch(1), scratch(1)
    for batch in range(0, values.size, 32 * LANES):
        if not all_finite(values, batch, batch + 32 * LANES):
            return False
        take_weighted(values, batch, first, weights, sigma2, x, w)
        found = fit_scale(x, w, wx, 32, 8, True)[0]
        store(d, 0, best_scale(x, w, found, room))
        for k in range(LANES):
            at, o = batch + 32 * k, 18 * (batch // 32 + k)
            put_half(out, o, half_bits(d[k]))
            inverse = F(1) / d[k] if d[k] != F(0) else F(0)
            a = levels(load16(values, at) * inverse, -8, 7) + 8
            b = levels(load16(values, at + 16) * inverse, -8, 7) + 8
            put_levels(out, o + 2, a, b, False)
    return True


def encode_q4_0(values: Floats, weights: Floats) -> Bytes:
    """Encode rows of float32 `(R, columns)` by importance `(columns,)`; see `Codec.encode`."""
    check_values(TYPES["Q4_0"], values)
    values = np.require(values, requirements="CAW")
    means = np.empty(len(values), F)
    row_mean_squares(values.reshape(-1), values.shape[1], means)
    return encode_rows(TYPES["Q4_0"], q4_0_searched, values, batch=LANES, weights=weights, sigma2=means)
