"""Rounding with feedback: the levels of a block are chosen so that what the matrix computes changes least.

An error e of a row w changes its product with inputs x by e · x, on average Σ (e · x)² = e H eᵀ with the second moments
H = Σ xᵀx. With H = U D Uᵀ, U unit upper triangular, that is Σₖ Dₖ (eₖ + Σⱼ₍ⱼ<ₖ₎ eⱼ Uⱼₖ)²: rounding column k to the
level nearest to wₖ + Σⱼ eⱼ Uⱼₖ makes each summand as small as its predecessors leave it. This is GPTQ (Frantar et al.,
2210.17323), in the form of LDLQ (Chee et al., 2307.13304). The scales of each block are those that the type's own
encoder finds for the corrected values, under the same importances as without feedback.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

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

    Encode = Callable[[Floats, Floats | None], Bytes]

DAMPING = 0.01
"""Share of the mean second moment that is added to each: directions that no input has stay near the weights."""
VARIANCE = 0.001
"""The same of variances about means: of 0.1, 0.01 and 0.001 the least gave the least divergence (SmolLM2, Q4_K: 0.867,
0.840 and 0.833 times that without corrections)."""
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
        importances: float32 `(columns,)`, by which scales are searched (`quant.codec.Codec.searched`), or None.
        factors: What `correction_factors` returns.

    Returns:
        uint8 `(R, row bytes)`; each row depends on itself alone.

    Raises:
        BlockError: A value is not finite.
    """
    one = codec(kind.name)
    encode = one.encode if importances is None else one.searched or one.encode
    assert encode is not None
    return _encode(kind, rows, importances, encode, _ByMoments(factors, rows.shape))


def encode_by_means(kind: BlockType, rows: Floats, importances: Floats, means: Floats) -> Bytes:
    """Encode rows with corrections for the errors of earlier columns, by what an importance matrix holds.

    The columns of the inputs are taken to vary about their means independently of each other: H = diag(v) + μᵀμ, with
    the variances v = mean squares − μ². What the rounding changes in the product with the mean input is a constant,
    which nothing else in the model takes back.

    Args:
        kind: One of the types of `LEVELS`.
        rows: float32 `(R, columns)`.
        importances: float32 `(columns,)`, the mean squares of the inputs.
        means: float32 `(columns,)`, their means.

    Returns:
        uint8 `(R, row bytes)`, which depend on the arguments alone, not on the processor; each row on itself.

    Raises:
        BlockError: A value is not finite.
    """
    one = codec(kind.name)
    encode = one.searched or one.encode
    assert encode is not None
    if not means.any():
        return encode(rows, importances)
    return _encode(kind, rows, importances, encode, _ByMeans(importances, means, len(rows)))


class _Corrections(Protocol):
    """What errors of earlier columns add to later ones, while columns are rounded in turn."""

    def ahead(self, start: int, stop: int) -> Floats | None:
        """Return where columns are going to lie before their scales are chosen, less where they are.

        Scales are chosen for that: as if the columns themselves were not rounded.

        Returns:
            float32 `(stop − start, R)`; None for nothing.
        """

    def round(self, start: int, original: Floats, scales: tuple[Any, ...], codes: Bytes, errors: Floats) -> None:
        """Choose the levels of consecutive columns.

        Args:
            start: The first.
            original: float32 `(columns, R)`, what is to be rounded.
            scales: Scales, shifts and the columns of one, the levels, and whether these are consecutive integers.
            codes: uint8 `(columns, R)`, filled with the numbers of levels.
            errors: float32 `(columns, R)`, filled with original less rounded values.
        """


class _ByMoments:
    """Corrections by factors of the second moments."""

    def __init__(self, factors: Floats, shape: tuple[int, ...]) -> None:
        self.factors, self.products = factors, PRODUCTS.load()
        self.errors: Any = np.zeros(shape, np.float32)
        self.earlier: Any = None

    def ahead(self, start: int, stop: int) -> Floats | None:
        from ggferry.quant.kernels.feedback import unrounded

        self.earlier = np.zeros((len(self.errors), stop - start), np.float32)
        if not start:
            return None
        earlier = np.ascontiguousarray(self.errors[:, :start])
        self.products(earlier, _transposed(self.factors[:start, start:stop]), self.earlier, 0)
        found: Floats = _transposed(self.earlier)
        unrounded(found, np.ascontiguousarray(self.factors[start:stop, start:stop]))
        return found

    def round(self, start: int, original: Floats, scales: tuple[Any, ...], codes: Bytes, errors: Floats) -> None:
        from ggferry.quant.kernels.feedback import round_columns

        stop = start + len(original)
        factors = np.ascontiguousarray(self.factors[start:stop, start:stop])
        adjusted = _with_finite(original, _transposed(self.earlier))
        round_columns(original, adjusted, *scales[:3], factors, *scales[3:], codes, errors)
        self.errors[:, start:stop] = errors.T


class _ByMeans:
    """Corrections by means of the inputs. Sums are added up in the order of columns, in float64, on any processor."""

    def __init__(self, squares: Floats, means: Floats, rows: int) -> None:
        self.means = means.astype(np.float64)
        power = np.cumsum(squares, dtype=np.float64)[-1] / squares.size
        variances = np.maximum(squares - self.means * self.means, 0) + VARIANCE * power
        self.shares = self.means / variances
        self.rest = 1 + np.cumsum((self.means * self.shares)[::-1])[::-1]
        self.gains = self.shares / self.rest
        self.owed = np.zeros(rows)

    def ahead(self, start: int, stop: int) -> Floats | None:
        found: Floats = np.outer(self.shares[start:stop] / self.rest[start], self.owed).astype(np.float32)
        return found if start else None

    def round(self, start: int, original: Floats, scales: tuple[Any, ...], codes: Bytes, errors: Floats) -> None:
        from ggferry.quant.kernels.feedback import round_columns_by_means

        stop = start + len(original)
        own = self.means[start:stop], self.gains[start:stop]
        round_columns_by_means(original, *scales[:3], *own, *scales[3:], self.owed, codes, errors)


def _encode(
    kind: BlockType, rows: Floats, importances: Floats | None, encode: Encode, corrections: _Corrections
) -> Bytes:
    refuse_nonfinite(kind, rows)
    levels = LEVELS[kind.name]
    values = np.array(levels.values, np.float32)
    lost: Any = np.zeros(len(rows))
    out = np.empty((len(rows), kind.row_bytes(rows.shape[1])), np.uint8)
    for start in range(0, rows.shape[1], COLUMNS):
        stop = min(rows.shape[1], start + COLUMNS)
        original = _transposed(rows[:, start:stop])
        more = corrections.ahead(start, stop)
        aims = original if more is None else _with_finite(original, more)
        weights = None if importances is None else np.ascontiguousarray(importances[start:stop])
        blocks = encode(_transposed(aims), weights)
        scales, shifts = coefficients(kind.name, blocks)
        codes, errors = np.empty(original.shape, np.uint8), np.empty(original.shape, np.float32)
        grouped = _transposed(scales), _transposed(shifts), len(original) // scales.shape[1]
        corrections.round(start, original, (*grouped, values, levels.uniform), codes, errors)
        put_codes(kind.name, blocks, _transposed(codes))
        out[:, kind.row_bytes(start) : kind.row_bytes(stop)] = blocks
        lost += np.einsum("cr,cr->r", errors, errors, dtype=np.float64)
    _without_far_rows(kind, rows, importances, encode, lost, out)
    return out


def _with_finite(original: Floats, more: Floats) -> Floats:
    """Return columns with corrections, float32 `(columns, R)`; a row that would overflow as it is."""
    found: Floats = original + more
    beyond = ~np.isfinite(found).all(axis=0)
    found[:, beyond] = original[:, beyond]
    return found


def _without_far_rows(
    kind: BlockType, rows: Floats, importances: Floats | None, encode: Encode, lost: Any, out: Bytes
) -> None:
    """Encode rows without feedback that corrections have moved much further than rounding does.

    Almost equal columns can do that. `lost`: float64 `(R,)`, the squared errors.
    """
    _, most = band_of(kind.name) or (0.0, 0.0)
    power = np.einsum("rc,rc->r", rows, rows, dtype=np.float64)
    far = np.flatnonzero(~(lost <= (TOLERANCE * CORRECTED * most) ** 2 * power))
    if far.size:
        own = np.ascontiguousarray(rows[far])
        plain = encode(own, importances)
        left = codec(kind.name).values(plain, own.shape[1]) - own
        worse = ~(lost[far] <= CORRECTED**2 * np.einsum("rc,rc->r", left, left, dtype=np.float64))
        out[far[worse]] = plain[worse]


def _transposed(matrix: Any) -> Any:
    return np.ascontiguousarray(matrix.T)
