"""Rounding with feedback, column by column: what an error costs is taken from the columns that follow.

Rows are independent of each other and lie side by side, so that every inner loop runs over them.
"""

from __future__ import annotations

from ggferry.quant.kernels.common import MAGIC, F, inline, kernel


@inline
def nearest_level(aim, scale, shift, values, uniform):
    """Return the number of the level that is nearest to a value.

    Args:
        aim: The value.
        scale: The scale of its block; 0 takes the level nearest to 0.
        shift: What is added to level × scale.
        values: float32 `(levels,)`, ascending.
        uniform: Whether these are consecutive integers.
    """
    v = (aim - shift) / scale if scale != F(0) else F(0)
    code = F(0)
    if uniform:
        low, high = values[0], values[-1]
        v = low if v < low else v
        v = high if v > high else v
        code = ((v + MAGIC) - MAGIC) - low
    else:
        for n in range(1, len(values)):
            code += F(1) if v > (values[n - 1] + values[n]) * F(0.5) else F(0)
    return int(code)


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
        adjusted: The same with the corrections for earlier columns; those of these columns are added here.
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
        for r in range(rows):
            scale, shift = scales[g, r], shifts[g, r]
            code = nearest_level(adjusted[k, r], scale, shift, values, uniform)
            codes[k, r] = code
            errors[k, r] = original[k, r] - (values[code] * scale + shift)
        for j in range(k + 1, columns):
            factor = factors[k, j]
            if factor != F(0):
                for r in range(rows):
                    adjusted[j, r] += errors[k, r] * factor


@kernel
def round_columns_by_means(original, scales, shifts, group, means, gains, values, uniform, owed, codes, errors):
    """Choose the levels of consecutive columns of some rows, by the means of their inputs alone.

    Args:
        original: float32 `(columns, rows)`, what is to be rounded.
        scales: float32 `(groups, rows)`.
        shifts: float32 `(groups, rows)`.
        group: Columns that share a scale.
        means: float64 `(columns,)`.
        gains: float64 `(columns,)`: the share of what is owed that a column takes upon itself.
        values: float32 `(levels,)`, ascending.
        uniform: Whether these are consecutive integers.
        owed: float64 `(rows,)`, the sums of error × mean of all columns so far; those of these columns are added.
        codes: uint8 `(columns, rows)`, filled with the numbers of the levels.
        errors: float32 `(columns, rows)`, filled with original less rounded values.
    """
    columns, rows = original.shape
    for k in range(columns):
        g = k // group
        for r in range(rows):
            scale, shift = scales[g, r], shifts[g, r]
            aim = original[k, r] + F(owed[r] * gains[k])
            code = nearest_level(aim, scale, shift, values, uniform)
            codes[k, r] = code
            errors[k, r] = original[k, r] - (values[code] * scale + shift)
            owed[r] += errors[k, r] * means[k]
