"""Rounding with feedback: the levels of a block are chosen so that what the matrix computes changes least.

An error e of a row w changes its product with inputs x by e · x, on average Σ (e · x)² = e H eᵀ with the second moments
H = Σ xᵀx. With H = U D Uᵀ, U unit upper triangular, that is Σₖ Dₖ (eₖ + Σⱼ₍ⱼ<ₖ₎ eⱼ Uⱼₖ)²: rounding column k to the
level nearest to wₖ + Σⱼ eⱼ Uⱼₖ makes each summand as small as its predecessors leave it. This is GPTQ (Frantar et al.,
2210.17323), in the form of LDLQ (Chee et al., 2307.13304). The scales of each block are those that the type's own
encoder finds for the corrected values, under the same importances as without feedback.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ggferry.quant.blocks import refuse_nonfinite
from ggferry.quant.codec import codec
from ggferry.quant.levels import LEVELS, coefficients, put_codes
from ggferry.quant.types import BlockType
from ggferry.support.heavy import np

if TYPE_CHECKING:
    from ggferry.quant.types import Bytes, Floats

DAMPING = 0.01
"""Share of the mean second moment that is added to each: directions that no input has stay near the weights."""
COLUMNS = 256
"""Columns that the compiled loop rounds at once: the errors of all before them are one product."""


def correction_factors(moments: Floats) -> Floats | None:
    """Return U of `moments` = U D Uᵀ, float32 `(columns, columns)`, unit upper triangular.

    Args:
        moments: Σ xᵀx over inputs, float32 `(columns, columns)`.

    Returns:
        None where all moments are zero, or some are not finite.
    """
    mean = float(moments.diagonal().mean(dtype=np.float64))
    if not 0 < mean < math.inf or not np.isfinite(moments).all():
        return None
    flipped = np.ascontiguousarray(moments[::-1, ::-1], np.float64)
    for power in range(8):
        damped = flipped.copy()
        damped.flat[:: len(damped) + 1] += DAMPING * 10**power * mean
        try:
            lower = np.linalg.cholesky(damped)
        except np.linalg.LinAlgError:
            continue
        lower /= lower.diagonal().copy()
        return np.ascontiguousarray(lower[::-1, ::-1], np.float32)
    return None


def encode_with_feedback(kind: BlockType, rows: Floats, importances: Floats | None, factors: Floats) -> Bytes:
    """Encode rows with corrections for the errors of earlier columns.

    Args:
        kind: One of the types of `LEVELS`.
        rows: float32 `(R, columns)`.
        importances: float32 `(columns,)`, by which the encoder chooses scales, or None.
        factors: What `correction_factors` returns.

    Returns:
        uint8 `(R, row bytes)`; each row depends on itself alone.

    Raises:
        BlockError: A value is not finite.
    """
    from ggferry.quant.kernels.feedback import round_columns

    refuse_nonfinite(kind, rows)
    levels, encode = LEVELS[kind.name], codec(kind.name).encode
    assert encode is not None
    values = np.array(levels.values, np.float32)
    errors: Any = np.zeros(rows.shape, np.float32)
    out = np.empty((len(rows), kind.row_bytes(rows.shape[1])), np.uint8)
    for start in range(0, rows.shape[1], COLUMNS):
        stop = min(rows.shape[1], start + COLUMNS)
        original = rows[:, start:stop]
        adjusted = original + errors[:, :start] @ factors[:start, start:stop] if start else original.copy()
        weights = None if importances is None else np.ascontiguousarray(importances[start:stop])
        blocks = encode(adjusted, weights)
        scales, shifts = coefficients(kind.name, blocks)
        codes = np.empty((stop - start, len(rows)), np.uint8)
        found = np.empty((stop - start, len(rows)), np.float32)
        round_columns(
            np.ascontiguousarray(original.T),
            np.ascontiguousarray(adjusted.T),
            np.ascontiguousarray(scales.T),
            np.ascontiguousarray(shifts.T),
            (stop - start) // scales.shape[1],
            np.ascontiguousarray(factors[start:stop, start:stop]),
            values,
            levels.uniform,
            codes,
            found,
        )
        put_codes(kind.name, blocks, np.ascontiguousarray(codes.T))
        out[:, kind.row_bytes(start) : kind.row_bytes(stop)] = blocks
        errors[:, start:stop] = found.T
    return out
