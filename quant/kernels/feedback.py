"""Rounding with feedback, column by column: what an error costs is taken from the columns that follow.

Rows are independent of each other and lie side by side, so that every inner loop runs over them.
"""

from __future__ import annotations

from ggferry.quant.kernels.common import MAGIC, F, kernel


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
    low, high = values[0], values[-1]
    for k in range(columns):
        g = k // group
        for r in range(rows):
            scale, shift = scales[g, r], shifts[g, r]
            v = (adjusted[k, r] - shift) / scale if scale != F(0) else F(0)
            if uniform:
                v = low if v < low else v
                v = high if v > high else v
                level = (v + MAGIC) - MAGIC
                code = level - low
            else:
                code = F(0)
                for n in range(1, len(values)):
                    code += F(1) if v > (values[n - 1] + values[n]) * F(0.5) else F(0)
                level = values[int(code)]
            codes[k, r] = int(code)
            errors[k, r] = original[k, r] - (level * scale + shift)
        for j in range(k + 1, columns):
            factor = factors[k, j]
            if factor != F(0):
                for r in range(rows):
                    adjusted[j, r] += errors[k, r] * factor
