"""Rounding with feedback: the levels of a block are chosen so that what the matrix computes changes least.

An error e of a row w changes its product with inputs x by e · x, on average Σ (e · x)² = e H eᵀ with the second moments
H = Σ xᵀx. With H = U D Uᵀ, U unit upper triangular, that is Σₖ Dₖ (eₖ + Σⱼ₍ⱼ<ₖ₎ eⱼ Uⱼₖ)²: rounding column k to the
level nearest to wₖ + Σⱼ eⱼ Uⱼₖ makes each summand as small as its predecessors leave it. This is GPTQ (Frantar et al.,
2210.17323), in the form of LDLQ (Chee et al., 2307.13304). The scales of each block are those that the type's own
encoder finds for the corrected values, under the same importances as without feedback.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from ggferry.quant.accuracy.expected_error import CORRECTED, TOLERANCE, band_of
from ggferry.quant.blocks import refuse_nonfinite
from ggferry.quant.codec import codec
from ggferry.quant.kernels import PRODUCTS
from ggferry.quant.levels import LEVELS, coefficients, put_codes
from ggferry.quant.rounding.directions import STEP, Directions
from ggferry.quant.types import BlockType
from ggferry.support.heavy import np

if TYPE_CHECKING:
    from ggferry.quant.types import Bytes, Floats

    Encode = Callable[[Floats, Floats | None], Bytes]

COLUMNS = STEP
"""Columns that the compiled loop rounds at once: the errors of all before them are one product."""


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


def encode_by_directions(kind: BlockType, rows: Floats, importances: Floats, directions: Directions) -> Bytes:
    """Encode rows with corrections for the errors of earlier columns, by what an importance matrix holds.

    The second moments of the inputs are taken as diag(v) + A Aᵀ: beyond a few directions A, of which one is their mean,
    columns vary independently of each other. Of what earlier columns were rounded by, a row then owes one number a
    direction.

    Args:
        kind: One of the types of `LEVELS`.
        rows: float32 `(R, columns)`.
        importances: float32 `(columns,)`, the mean squares of the inputs.
        directions: Of these inputs.

    Returns:
        uint8 `(R, row bytes)`, which depend on the arguments alone, not on the processor; each row on itself.

    Raises:
        BlockError: A value is not finite.
    """
    one = codec(kind.name)
    encode = one.searched or one.encode
    assert encode is not None
    if not directions.values.any():
        return encode(rows, importances)
    return _encode(kind, rows, importances, encode, _ByDirections(directions, len(rows)))


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


class _ByDirections:
    """Corrections by a few directions of the inputs (`quant.kernels.directions`)."""

    def __init__(self, directions: Directions, rows: int) -> None:
        self.of = directions
        self.owed = np.zeros((directions.values.shape[1], rows))

    def ahead(self, start: int, stop: int) -> Floats | None:
        from ggferry.quant.kernels.directions import ahead_by_directions

        if not start:
            return None
        found = np.empty((stop - start, self.owed.shape[1]), np.float32)
        own = self.of.values[start:stop], self.of.variances[start:stop]
        ahead_by_directions(*own, self.of.inverses[start // COLUMNS], self.owed, found)
        return found

    def round(self, start: int, original: Floats, scales: tuple[Any, ...], codes: Bytes, errors: Floats) -> None:
        from ggferry.quant.kernels.directions import round_columns_by_directions

        stop = start + len(original)
        own = self.of.values[start:stop], self.of.gains[start:stop]
        round_columns_by_directions(original, *scales[:3], *own, *scales[3:], self.owed, codes, errors)


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
