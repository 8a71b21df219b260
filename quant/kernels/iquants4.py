"""Encoders of IQ4_NL and IQ4_XS: `quantize_row_iq4_nl_impl` of ggml-quants.c. The trials of a scale are lanes."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numba.cpython.unsafe.numbers import trailing_zeros

from ggferry.quant.codecs.iquants import IQ4_LEVELS, TYPES
from ggferry.quant.kernels.common import F, I, half_bits, inline, kernel, nearest_int, put_half
from ggferry.quant.kernels.iquants_run import encode
from ggferry.quant.kernels.lanes import (
    WIDTH,
    absolute,
    as_floats,
    as_ints,
    bits,
    float_room,
    highest,
    load,
    maximum,
    pointer,
    rolled,
    skip,
    spread,
    sqrt,
    store,
    to_floats,
    to_ints,
    where,
)
from ggferry.quant.kernels.lanes_across import gather

if TYPE_CHECKING:
    from ggferry.quant.types import Bytes, Floats

_LOWEST = 255
"""Cell 0 is −255: a cell is the integer below twice a value, plus this."""


@cache
def cells() -> tuple[Any, Any]:
    """int32 tables by cell: the index of the level nearest to the values of a cell, and that level's float32 bits.

    `best_index_int8` takes the upper of two levels from their middle on; all middles are multiples of ½, and around
    them both differences are exact in float32. So the integer below twice the value decides.
    """
    levels = np.array(IQ4_LEVELS)
    index = np.searchsorted(levels[:-1] + levels[1:], np.arange(-_LOWEST, 2 * levels[-1] + 1), side="right")
    return index.astype(np.int32), levels[index].astype(np.float32).view(np.int32)


@inline
def cell_of(twice):
    """The cells of eight values, given twice the values; a NaN's is the highest, as in the reference."""
    twice = where(twice < 226, twice, 226)
    twice = where(twice > -_LOWEST, twice, -_LOWEST)
    below = to_ints(twice)
    return where(to_floats(below) > twice, below - 1, below) + _LOWEST


@inline
def greatest(x):
    """The first of 32 values whose magnitude is greatest."""
    most = spread(I(0))
    for i in range(0, 32, WIDTH):
        rolled()
        most = maximum(most, as_ints(absolute(load(x, i))))
    found = F(0)
    top = highest(most)
    for i in range(32 - WIDTH, -1, -WIDTH):
        rolled()
        same = np.int64(bits(as_ints(absolute(load(x, i))) == top))
        if same:
            found = x[i + np.int64(trailing_zeros(same))]
    return found


@inline
def sum_levels(x, w, twice_a, twice_b, levels, sum_qx, sum_qq):
    """Σ w · level · x and Σ w · level² of 32 values, for two times `WIDTH` trials, by twice their inverse scales."""
    qx_a, qx_b, qq_a, qq_b = spread(F(0)), spread(F(0)), spread(F(0)), spread(F(0))
    for i in range(32):
        rolled()
        q_a = as_floats(gather(levels, cell_of(twice_a * x[i])))
        q_b = as_floats(gather(levels, cell_of(twice_b * x[i])))
        qx_a += q_a * w[i] * x[i]
        qx_b += q_b * w[i] * x[i]
        qq_a += q_a * w[i] * q_a
        qq_b += q_b * w[i] * q_b
    store(sum_qx, 0, qx_a)
    store(sum_qx, WIDTH, qx_b)
    store(sum_qq, 0, qq_a)
    store(sum_qq, WIDTH, qq_b)
    return qx_a, qx_b, qq_a, qq_b


@inline
def best_scale(x, w, tries, levels):
    """The scale of 32 values: 16 trials, each the one that fits the levels its inverse rounds to best."""
    top = greatest(x)
    if abs(top) < F(1e-15):
        return F(0)
    inverse, sum_qx, sum_qq = float_room(16), float_room(16), float_room(16)
    for t in range(0, 16, WIDTH):
        store(inverse, t, load(tries, t) / top)
    inverse[0] = F(1) / (-top / F(-127))
    twice_a, twice_b = load(inverse, 0) * 2, load(inverse, WIDTH) * 2
    sum_levels(x, w, twice_a, twice_b, levels, sum_qx, sum_qq)
    d = sum_qx[0] / sum_qq[0] if sum_qq[0] > 0 else F(0)
    best = d * sum_qx[0]
    for t in range(1, 16):
        rolled()
        if sum_qq[t] > 0 and sum_qx[t] * sum_qx[t] > best * sum_qq[t]:
            d = sum_qx[t] / sum_qq[t]
            best = d * sum_qx[t]
    return d


@inline
def put_indices(x, inverse, indices, y):
    """The indices of 32 values as split nibbles."""
    for i in range(0, 16, WIDTH):
        rolled()
        low = gather(indices, cell_of(load(x, i) * inverse * 2))
        high = gather(indices, cell_of(load(x, 16 + i) * inverse * 2))
        store(y, i, low | high << 4)


@kernel
def search(values, importance, weighted, columns, size, tries, indices, levels, out):
    """Encodes blocks of 32 (IQ4_NL) or 256 (IQ4_XS) values."""
    w, scales = float_room(32), float_room(8)
    tries, indices, levels = pointer(tries), pointer(indices), pointer(levels)
    block_bytes = 18 if size == 32 else 136
    subs = size // 32
    for block in range(len(values) // size):
        x, y = skip(pointer(values), block * size), skip(pointer(out), block * block_bytes)
        sigma2 = F(0)
        if weighted:
            for i in range(size):
                rolled()
                sigma2 += x[i] * x[i]
            sigma2 *= F(2) / F(size)
        widest, max_scale = F(0), F(0)
        for ib in range(subs):
            x_b = skip(x, 32 * ib)
            for i in range(0, 32, WIDTH):
                rolled()
                square = load(x_b, i) * load(x_b, i)
                if weighted:
                    column = (block * size + 32 * ib + i) % columns
                    square = load(pointer(importance), column) * sqrt(square + sigma2)
                store(w, i, square)
            scale = best_scale(x_b, w, tries, levels)
            scales[ib] = scale
            if abs(scale) > widest:
                widest, max_scale = abs(scale), scale
        if size == 32:
            put_half(y, 0, half_bits(scales[0]))
            put_indices(x, F(1) / scales[0] if scales[0] != 0 else F(0), indices, skip(y, 2))
            continue
        d = -max_scale / F(32)
        inverse = F(1) / d if d != 0 else F(0)
        put_half(y, 0, half_bits(d))
        high = 0
        for ib in range(subs):
            rolled()
            level = min(max(np.int64(nearest_int(inverse * scales[ib])), -32), 31)
            step = d * F(level)
            put_indices(skip(x, 32 * ib), F(1) / step if step != 0 else F(0), indices, skip(y, 8 + 16 * ib))
            level += 32
            high |= level >> 4 << 2 * ib
            low = level & 15
            y[4 + ib // 2] = low if ib % 2 == 0 else y[4 + ib // 2] | low << 4
        put_half(y, 2, high)
    return -1


TRIES = np.concatenate([[1], np.arange(-7, 8) + IQ4_LEVELS[0]]).astype(np.float32)


def encode_iq4_nl(values: Floats, weights: Floats | None) -> Bytes:
    return encode(TYPES["IQ4_NL"], search, values, weights, 32, TRIES, *cells())


def encode_iq4_xs(values: Floats, weights: Floats | None) -> Bytes:
    return encode(TYPES["IQ4_XS"], search, values, weights, 256, TRIES, *cells())
