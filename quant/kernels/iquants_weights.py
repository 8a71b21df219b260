"""What comes before the search of IQ2 and IQ3: weights, signs, and IQ2_XXS's first guess of a scale."""

from __future__ import annotations

import numpy as np
from numba.cpython.unsafe.numbers import trailing_zeros

from ggferry.quant.kernels.common import F, I, inline, nearest, nearest_int
from ggferry.quant.kernels.lanes import (
    WIDTH,
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
    minimum,
    rolled,
    scalar_float,
    spread,
    sqrt,
    store,
    to_floats,
    where,
)

BLOCK = 256
PLAIN_SQUARE, PLAIN_SQUARE_AND_SIGMA = 0, 1
"""Weights without an importance matrix: x², or x² + σ²/4 with σ² twice the block's mean square."""


@inline
def mean_square(x, factor):
    """`factor` times the mean of the squares of a block, summed in order as the reference does."""
    total = F(0)
    for i in range(BLOCK):
        rolled()
        total += x[i] * x[i]
    return factor * total / F(BLOCK)


@inline
def prepare(x, importance, weighted, sigma2, plain, even, n, w, root, magnitude, signs):
    """Weights, their roots, magnitudes and a byte of signs every eight; the greatest magnitude, if not negative.

    Weights are importance · √(sigma2 + x²), or what `plain` says. `even`: seven signs of eight are stored, and where
    an odd number is minus the reference turns the sign of the element that costs least.
    """
    greatest = spread(I(-2147483648))
    for i in range(0, n, WIDTH):
        rolled()
        v = load(x, i)
        weight = v * v
        if weighted:
            weight = load(importance, i) * sqrt(weight + sigma2)
        elif plain == PLAIN_SQUARE_AND_SIGMA:
            weight = weight + F(0.25) * sigma2
        store(w, i, weight)
        store(root, i, sqrt(weight))
        plus = v >= F(0)
        v = where(plus, v, spread(F(0)) - v)
        store(magnitude, i, v)
        s = np.int64(255) ^ bits(plus)
        if even:
            odd = s ^ s >> 4
            odd ^= odd >> 2
            if (odd ^ odd >> 1) & 1:
                cost = as_ints(weight * v * v) & 0x7FFFFFFF
                k = np.int64(trailing_zeros(bits(cost == lowest(cost))))
                if bits(cost > 0x7F800000) & 1:  # nothing is less than a NaN that comes first
                    k = 0
                magnitude[i + k] = -magnitude[i + k]
                s ^= 1 << k
            s &= 127
        signs[i // WIDTH] = s
        greatest = maximum(greatest, as_ints(load(magnitude, i)))
    return scalar_float(highest(greatest))


@inline
def scale_of_positives(x, w):
    """`make_qp_quants` of ggml-quants.c for 32 values and levels 0 … 4: the scale alone.

    The reference keeps levels as uint8, so that a negative value's wraps around.
    """
    level, tried, tried_error = int_room(32), float_room(WIDTH), float_room(WIDTH)
    all_lx, all_ll, all_new = float_room(WIDTH), float_room(WIDTH), int_room(WIDTH)
    greatest = spread(I(0))
    for i in range(0, 32, WIDTH):
        rolled()
        greatest = maximum(greatest, as_ints(load(x, i)))
    top = scalar_float(highest(greatest))
    inverse = F(4) / top
    scale = F(1) / inverse
    step = lane_numbers() - 4
    inverses = (to_floats(where(step < 0, step, step + 1)) * F(0.1) + F(4)) / top
    scales = F(1) / inverses
    error, errors = F(0), spread(F(0))
    for i in range(32):
        rolled()
        gap = x[i] - scale * F(nearest_int(inverse * x[i]) & 255)
        error += w[i] * gap * gap
        gaps = x[i] - scales * to_floats(minimum(nearest(inverses * x[i]), 4))
        errors += gaps * w[i] * gaps
    store(tried, 0, inverses)
    store(tried_error, 0, errors)
    for t in range(WIDTH):
        rolled()
        if tried_error[t] < error:
            error, inverse = tried_error[t], tried[t]
    lx, ll = F(0), F(0)
    for i in range(32):
        rolled()
        one = min(nearest_int(inverse * x[i]), I(4))
        level[i] = one & 255
        lx += w[i] * x[i] * F(one)
        ll += w[i] * F(one) * F(one)
    for _ in range(5):
        rolled()
        changed = False
        b, done = 0, 0
        while b < 32:
            # eight changes of a level are tried at once; one that is made alters the sums, and those after it are
            # tried again
            rolled()
            v, weight, old = load(x, b), load(w, b), load_ints(level, b)
            other_lx = lx - weight * v * to_floats(old)
            other_ll = ll - weight * to_floats(old) * to_floats(old)
            new = minimum(nearest(v * other_ll / other_lx), 4)
            new_lx = other_lx + weight * v * to_floats(new)
            new_ll = other_ll + weight * to_floats(new) * to_floats(new)
            better = (other_lx > 0) & (other_ll > 0) & (new != old) & (new_lx * new_lx * ll > lx * lx * new_ll)
            steps = np.int64(bits(better)) >> done << done
            if steps == 0:
                b, done = b + WIDTH, 0
                continue
            store(all_lx, 0, new_lx)
            store(all_ll, 0, new_ll)
            store(all_new, 0, new)
            k = np.int64(trailing_zeros(steps))
            lx, ll = all_lx[k], all_ll[k]
            level[b + k] = all_new[k] & 255
            changed, done = True, k + 1
        if not changed:
            break
    return lx / ll if ll > 0 else F(0)
