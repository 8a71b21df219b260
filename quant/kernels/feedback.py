"""Rounding with feedback, column by column: what an error costs is taken from the columns that follow.

Rows are independent of each other and lie side by side, so that every inner loop runs over them.
"""

from __future__ import annotations

import numpy as np

from ggferry.quant.kernels.common import MAGIC, F, inline, kernel


@inline
def choose_levels(aims, own, scales, shifts, values, uniform, codes, errors):
    """Take for one column of some rows the level that is nearest to what each aims at.

    Loops without branches, over rows alone: they are compiled to vectors.

    Args:
        aims: float32 `(rows,)`, overwritten.
        own: float32 `(rows,)`, the values without corrections.
        scales: float32 `(rows,)`; 0 takes the level nearest to 0.
        shifts: float32 `(rows,)`, what is added to level × scale.
        values: float32 `(levels,)`, ascending.
        uniform: Whether these are consecutive integers.
        codes: uint8 `(rows,)`, filled with the numbers of the levels.
        errors: float32 `(rows,)`, filled with own less rounded values.
    """
    rows, low, high = len(aims), values[0], values[-1]
    for r in range(rows):
        aims[r] = (aims[r] - shifts[r]) / scales[r] if scales[r] != F(0) else F(0)
    if uniform:
        for r in range(rows):
            v = aims[r]
            v = low if v < low else v
            v = high if v > high else v
            level = (v + MAGIC) - MAGIC
            codes[r] = np.uint8(level - low)
            errors[r] = own[r] - (level * scales[r] + shifts[r])
        return
    for r in range(rows):
        codes[r] = 0
        errors[r] = low
    for n in range(1, len(values)):
        border, value = (values[n - 1] + values[n]) * F(0.5), values[n]
        for r in range(rows):
            codes[r] = n if aims[r] > border else codes[r]
            errors[r] = value if aims[r] > border else errors[r]
    for r in range(rows):
        errors[r] = own[r] - (errors[r] * scales[r] + shifts[r])


@kernel
def unrounded(corrections, factors):
    """Turn corrections for earlier columns into what they are where these columns take them without rounding.

    Args:
        corrections: float32 `(columns, rows)`, changed in place.
        factors: float32 `(columns, columns)`, as for `round_columns`.
    """
    columns, rows = corrections.shape
    for k in range(columns):
        for j in range(k + 1, columns):
            factor = factors[k, j]
            if factor != F(0):
                for r in range(rows):
                    corrections[j, r] -= corrections[k, r] * factor


@kernel
def round_columns(original, adjusted, scales, shifts, group, factors, values, uniform, codes, errors):
    """Choose the levels of consecutive columns of some rows.

    Args:
        original: float32 `(columns, rows)`, what is to be rounded.
        adjusted: The same with the corrections for earlier columns; overwritten.
        scales: float32 `(groups, rows)`.
        shifts: float32 `(groups, rows)`.
        group: Columns that share a scale.
        factors: float32 `(columns, columns)`; row k says how the error of column k corrects later ones.
        values: float32 `(levels,)`, ascending.
        uniform: Whether these are consecutive integers.
        codes: uint8 `(columns, rows)`, filled with the numbers of the levels.
        errors: float32 `(columns, rows)`, filled with original less rounded values.
    """
    columns, rows = original.shape
    for k in range(columns):
        g = k // group
        choose_levels(adjusted[k], original[k], scales[g], shifts[g], values, uniform, codes[k], errors[k])
        for j in range(k + 1, columns):
            factor = factors[k, j]
            if factor != F(0):
                for r in range(rows):
                    adjusted[j, r] += errors[k, r] * factor
