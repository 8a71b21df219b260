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

from ggferry.quant.accuracy.expected_error import CORRECTED, TOLERANCE, band_of
from ggferry.quant.blocks import refuse_nonfinite
from ggferry.quant.codec import codec
from ggferry.quant.kernels import ALIGNED, PRODUCTS
from ggferry.quant.levels import LEVELS, coefficients, put_codes
from ggferry.quant.types import BlockType
from ggferry.support.heavy import np, torch
from ggferry.support.threads import each

if TYPE_CHECKING:
    from ggferry.quant.types import Bytes, Floats

DAMPING = 0.01
"""Share of the mean second moment that is added to each: directions that no input has stay near the weights."""
MOST_DAMPING = 8
"""How often ten times as much is tried where rounding keeps the moments from being positive definite."""
COLUMNS = 256
"""Columns that the compiled loop rounds at once: the errors of all before them are one product."""

TRANSPOSED = 64
"""Inputs that are transposed at once: what is written of a column follows each other."""


def second_moments(inputs: Floats, threads: int = 1) -> Floats:
    """Return Σ xᵀx, float32 `(columns, columns)`, of inputs x, float32 `(n, columns)`; the same for any `threads`."""
    products = PRODUCTS.load()
    columns = np.zeros((inputs.shape[1], len(inputs) + -len(inputs) % ALIGNED), np.float32)
    found = np.empty((len(columns),) * 2, np.float32)

    def transpose(start: int) -> None:
        part = inputs[start : start + TRANSPOSED]
        columns[:, start : start + len(part)] = part.T

    def panel(start: int) -> None:
        stop = min(len(columns), start + COLUMNS)
        products(columns[:stop], columns[start:stop], found[:stop], start)
        found[start:stop, :start] = found[:start, start:stop].T  # sums of the same products in the same order

    each(range(0, len(inputs), TRANSPOSED), transpose, threads)
    each(reversed(range(0, len(columns), COLUMNS)), panel, threads)  # the largest first
    return found


def correction_factors(moments: Floats) -> Floats | None:
    """Return U of `moments` = U D Uᵀ, float32 `(columns, columns)`, unit upper triangular.

    Args:
        moments: What `second_moments` returns.

    Returns:
        None where all moments are zero, or some are not finite.
    """
    mean = float(moments.diagonal().mean(dtype=np.float64))
    if not 0 < mean < math.inf or not np.isfinite(moments).all():
        return None
    flipped = torch.from_numpy(np.ascontiguousarray(moments[::-1, ::-1], np.float64))
    for power in range(MOST_DAMPING):
        damped = flipped.clone()
        damped.diagonal().add_(DAMPING * 10**power * mean)
        lower, failed = torch.linalg.cholesky_ex(damped)
        if not failed:
            lower /= lower.diagonal().clone()
            return np.ascontiguousarray(lower.numpy()[::-1, ::-1], np.float32)
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
    values, products = np.array(levels.values, np.float32), PRODUCTS.load()
    errors: Any = np.zeros(rows.shape, np.float32)
    out = np.empty((len(rows), kind.row_bytes(rows.shape[1])), np.uint8)
    for start in range(0, rows.shape[1], COLUMNS):
        stop = min(rows.shape[1], start + COLUMNS)
        original = rows[:, start:stop]
        adjusted = original.copy()
        if start:
            corrections = np.empty(original.shape, np.float32)
            products(np.ascontiguousarray(errors[:, :start]), _transposed(factors[:start, start:stop]), corrections, 0)
            adjusted += corrections
            lost = ~np.isfinite(adjusted).all(axis=1)
            adjusted[lost] = original[lost]
        weights = None if importances is None else np.ascontiguousarray(importances[start:stop])
        blocks = encode(adjusted, weights)
        scales, shifts = coefficients(kind.name, blocks)
        codes = np.empty((stop - start, len(rows)), np.uint8)
        found = np.empty((stop - start, len(rows)), np.float32)
        round_columns(
            _transposed(original),
            _transposed(adjusted),
            _transposed(scales),
            _transposed(shifts),
            (stop - start) // scales.shape[1],
            np.ascontiguousarray(factors[start:stop, start:stop]),
            values,
            levels.uniform,
            codes,
            found,
        )
        put_codes(kind.name, blocks, _transposed(codes))
        out[:, kind.row_bytes(start) : kind.row_bytes(stop)] = blocks
        errors[:, start:stop] = found.T
    _without_far_rows(kind, rows, importances, errors, out)
    return out


def _without_far_rows(kind: BlockType, rows: Floats, importances: Floats | None, errors: Floats, out: Bytes) -> None:
    """Encode rows without feedback that corrections have moved much further than rounding does.

    Almost equal columns can do that.
    """
    one, (_, most) = codec(kind.name), band_of(kind.name) or (0.0, 0.0)
    assert one.encode is not None
    power, error = (np.einsum("rc,rc->r", each, each, dtype=np.float64) for each in (rows, errors))
    far = np.flatnonzero(~(error <= (TOLERANCE * CORRECTED * most) ** 2 * power))
    if far.size:
        own = np.ascontiguousarray(rows[far])
        plain = one.encode(own, importances)
        left = one.values(plain, own.shape[1]) - own
        worse = ~(error[far] <= CORRECTED**2 * np.einsum("rc,rc->r", left, left, dtype=np.float64))
        out[far[worse]] = plain[worse]


def _transposed(matrix: Any) -> Any:
    return np.ascontiguousarray(matrix.T)
