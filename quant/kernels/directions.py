"""Rounding by a few directions of the inputs: second moments diag(v) + A Aᵀ, whose factors need no triangle.

Everything is float64 and added up in one order, so that the levels depend neither on the processor nor on threads.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
from numba.core import types

from ggferry.quant.kernels.common import LANES, F, inline, kernel, load, spread
from ggferry.quant.kernels.feedback import choose_levels
from ggferry.quant.kernels.lanes import Lanes, loader, store, to_doubles, to_singles

TILE = 64
"""Rows at a time: what they owe in every direction stays in a core's first cache."""
_load = loader(types.float64, Lanes(types.float64, LANES))
LEAST = 1e-6
"""Share of the largest: what is less of a product of a sketch with itself is rounding of float32."""


@kernel
def directions_of_sketch(sketch, signs):
    """Turn Y = S Ω into A = Y (ΩᵀY)^(-1/2), by which A Aᵀ is about S (Nyström's approximation), with Cholesky's root.

    Args:
        sketch: float64 `(columns, directions)`, Y; A afterwards. A direction that the others hold already becomes 0.
        signs: float64 `(columns, directions)`, Ω.
    """
    columns, count = sketch.shape
    inner, root = np.zeros((count, count)), np.zeros((count, count))
    for c in range(columns):
        for i in range(count):
            for j in range(count):
                inner[i, j] += signs[c, i] * sketch[c, j]
    largest = 0.0
    for i in range(count):
        largest = max(largest, inner[i, i])
    for i in range(count):
        for j in range(i):
            rest = (inner[i, j] + inner[j, i]) / 2
            for m in range(j):
                rest -= root[i, m] * root[j, m]
            root[i, j] = rest / root[j, j] if root[j, j] > 0.0 else 0.0
        rest = inner[i, i]
        for m in range(i):
            rest -= root[i, m] * root[i, m]
        root[i, i] = sqrt(rest) if rest > LEAST * largest else 0.0
    for c in range(columns):
        for i in range(count):
            rest = sketch[c, i]
            for m in range(i):
                rest -= sketch[c, m] * root[i, m]
            sketch[c, i] = rest / root[i, i] if root[i, i] > 0.0 else 0.0


@kernel
def gains_of_directions(variances, directions, step, gains, inverses):
    """Compute what columns take upon themselves of what earlier ones owe: column c takes P a / v of it.

    P = (I + Σ aᵀa / v over this column and all later ones)⁻¹ is carried from the last column to the first (Sherman and
    Morrison).

    Args:
        variances: float64 `(columns,)`, v, greater than 0.
        directions: float64 `(columns, directions)`, a row a for each column.
        step: Columns that are rounded at once.
        gains: float64 `(columns, directions)`, filled.
        inverses: float64 `(steps, directions, directions)`, filled with P at the first column of each step.
    """
    columns, count = directions.shape
    inverse, product = np.eye(count), np.empty(count)
    for c in range(columns - 1, -1, -1):
        power = 0.0
        for i in range(count):
            product[i] = 0.0
            for j in range(count):
                product[i] += inverse[i, j] * directions[c, j]
            power += product[i] * directions[c, i]
        power = variances[c] + max(power, 0.0)
        for i in range(count):
            gains[c, i] = product[i] / power
        for i in range(count):
            for j in range(count):
                inverse[i, j] -= product[i] * gains[c, j]
        if c % step == 0:
            inverses[c // step] = inverse


@kernel
def ahead_by_directions(directions, variances, inverse, owed, found):
    """Compute where columns are going to lie, less where they are, if they are not rounded themselves.

    Args:
        directions: float64 `(columns, directions)`, of these columns.
        variances: float64 `(columns,)`.
        inverse: float64 `(directions, directions)`, P at the first of them.
        owed: float64 `(directions, rows)`, the sums of error × direction of all columns before.
        found: float32 `(columns, rows)`, filled.
    """
    columns, count = directions.shape
    shares, owing, total = np.empty((count, TILE)), np.zeros((count, TILE)), np.empty(TILE, F)
    parts = np.empty((columns, count))
    for c in range(columns):
        for i in range(count):
            parts[c, i] = directions[c, i] / variances[c]
    for low in range(0, owed.shape[1], TILE):
        rows = min(TILE, owed.shape[1] - low)
        owing[:, :rows] = owed[:, low : low + rows]
        for i in range(count):
            for lane in range(0, TILE, LANES):
                store(shares, i * TILE + lane, _weighed(owing, lane, inverse, i, count))
        for c in range(columns):
            for lane in range(0, TILE, LANES):
                store(total, lane, to_singles(_weighed(shares, lane, parts, c, count)))
            for r in range(rows):
                found[c, low + r] = total[r]


@inline
def _weighed(owing, lane, factors, row, count):
    """The sums of `owing`, float64 `(count, TILE)`, times row `row` of `factors`, as lanes from `lane` on."""
    total = spread(0.0)
    for i in range(count):
        total = total + _load(owing, i * TILE + lane) * factors[row, i]
    return total


@kernel
def round_columns_by_directions(
    original, scales, shifts, group, directions, gains, values, uniform, owed, codes, errors
):
    """Choose the levels of consecutive columns of some rows.

    Args:
        original: float32 `(columns, rows)`, what is to be rounded.
        scales: float32 `(groups, rows)`.
        shifts: float32 `(groups, rows)`.
        group: Columns that share a scale.
        directions: float64 `(columns, directions)`.
        gains: float64 `(columns, directions)`: the share of what is owed that a column takes upon itself.
        values: float32 `(levels,)`, ascending.
        uniform: Whether these are consecutive integers.
        owed: float64 `(directions, rows)`, the sums of error × direction of all columns so far; those of these columns
            are added.
        codes: uint8 `(columns, rows)`, filled with the numbers of the levels.
        errors: float32 `(columns, rows)`, filled with original less rounded values.
    """
    columns, count = directions.shape
    owing, taken, aims, lost = np.zeros((count, TILE)), np.empty(TILE, F), np.empty(TILE, F), np.zeros(TILE, F)
    for low in range(0, original.shape[1], TILE):
        high = min(low + TILE, original.shape[1])
        rows = high - low
        owing[:, :rows] = owed[:, low:high]
        for lane in range(0, TILE, LANES):
            store(taken, lane, to_singles(_weighed(owing, lane, gains, 0, count)))
        for k in range(columns):
            g, own = k // group, original[k, low:high]
            for r in range(rows):
                aims[r] = own[r] + taken[r]
            these = scales[g, low:high], shifts[g, low:high]
            choose_levels(aims[:rows], own, these[0], these[1], values, uniform, codes[k, low:high], lost[:rows])
            for r in range(rows):
                errors[k, low + r] = lost[r]
            following = min(k + 1, columns - 1)
            for lane in range(0, TILE, LANES):
                error, total = to_doubles(load(lost, lane)), spread(0.0)
                for i in range(count):
                    now = _load(owing, i * TILE + lane) + error * directions[k, i]
                    store(owing, i * TILE + lane, now)
                    total = total + now * gains[following, i]
                store(taken, lane, to_singles(total))
        owed[:, low:high] = owing[:, :rows]
