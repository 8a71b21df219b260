"""The directions in which the inputs of a matrix vary most, from what an importance matrix holds of them.

The second moments of the inputs are H = S + μᵀμ, with their means μ and their covariances S. An importance matrix has
the diagonal of H, the means, and a sketch Σ xᵀx Ω of a few random combinations Ω of columns. Y = S Ω gives Nyström's
approximation Y (ΩᵀY)⁻¹ Yᵀ of S, which holds the directions of the largest variances; what it lacks is taken to lie on
the diagonal. So H is about diag(v) + A Aᵀ with few columns A, μ among them.

A sketch, unlike principal directions, can be added up over chunks, texts and files.
Source: Williams and Seeger, Using the Nyström Method to Speed Up Kernel Machines, 2000; Halko, Martinsson, Tropp,
0909.4061.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ggferry.support.heavy import np

if TYPE_CHECKING:
    from ggferry.quant.types import Floats

VARIANCE = 0.001
"""Share of the mean second moment that is added to variances about directions: of 0.1, 0.01 and 0.001 the least gave
the least divergence (SmolLM2, Q4_K, by means alone: 0.867, 0.840 and 0.833 times that without corrections)."""
STEP = 256
"""Columns that are rounded at once."""
MOST = 64
"""Directions of a sketch: signs are bits of one number a column."""
_STEP, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def signs(columns: int, count: int) -> Any:
    """Return Ω of a sketch: float64 `(columns, count)` of 1 and −1; the first columns of one of more.

    Entry (c, i) is 1 where bit i of the c-th number of SplitMix64 (Steele, Lea, Flood, 2014), begun at 0, is set.
    """
    with np.errstate(over="ignore"):
        mixed = np.arange(1, columns + 1, dtype=np.uint64) * np.uint64(_STEP)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(_FIRST)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(_SECOND)
        mixed ^= mixed >> np.uint64(31)
    bits = (mixed[:, None] >> np.arange(count, dtype=np.uint64)) & np.uint64(1)
    return bits.astype(np.float64) * 2 - 1


def directions(means: Floats, sketch: Floats | None) -> Any:
    """Return A of second moments diag(v) + A Aᵀ, float64 `(columns, 1 + count)`: the means, then what a sketch gives.

    Args:
        means: float32 `(columns,)`, of the inputs x.
        sketch: float32 `(count, columns)`, the means of (x Ω)ᵀ x with Ω of `signs`; None for the means alone.

    Returns:
        The same on any processor.
    """
    own = means.astype(np.float64)[:, None]
    if sketch is None:
        return own
    from ggferry.quant.kernels.directions import directions_of_sketch

    omega = signs(len(own), len(sketch))
    centered = np.ascontiguousarray(sketch.T, np.float64) - own * np.cumsum(own * omega, axis=0)[-1]
    directions_of_sketch(centered, omega)
    return np.concatenate([own, centered], axis=1)


def mean_of_matrices(sums: Floats, count: int) -> Any:
    """Return the means over all matrices, float64 `(columns,)`, of sums of each, float32 `(matrices, columns)`."""
    return np.cumsum(sums, axis=0, dtype=np.float64)[-1] / count


def directions_of_some(means: Floats, squares: Floats, all_means: Any, all_squares: Any, together: Any) -> Any:
    """Return A for a part of the inputs of which a sketch was made, as experts read, float64 `(columns, 1 + count)`.

    They are taken to vary together as all inputs do, each column by its own variance.

    Args:
        means: float32 `(columns,)`, of the part.
        squares: Likewise, of squares.
        all_means: float64 `(columns,)`, of all inputs.
        all_squares: Likewise, of squares.
        together: What `directions` gives of all inputs.
    """
    own = means.astype(np.float64)
    spread, whole = np.maximum(squares - own * own, 0), all_squares - all_means * all_means
    scale = np.sqrt(np.divide(spread, whole, where=whole > 0, out=np.zeros_like(whole)))
    return np.concatenate([own[:, None], together[:, 1:] * scale[:, None]], axis=1)


class Directions:
    """Second moments diag(v) + A Aᵀ of what a matrix is multiplied with, and how later columns correct earlier ones.

    Attributes:
        values: float64 `(columns, directions)`, A.
        variances: float64 `(columns,)`, v.
        gains: float64 `(columns, directions)` (`quant.kernels.directions.gains_of_directions`).
        inverses: float64 `(steps, directions, directions)`, likewise.
    """

    def __init__(self, squares: Floats, values: Any) -> None:
        """Take the mean squares of the inputs, float32 `(columns,)`, and A as `directions` returns it."""
        from ggferry.quant.kernels.directions import gains_of_directions

        columns, count = values.shape
        explained = np.cumsum(values * values, axis=1)[:, -1]
        power = np.cumsum(squares, dtype=np.float64)[-1] / squares.size
        self.values = values
        self.variances: Any = np.maximum(squares - explained, 0) + VARIANCE * power
        self.gains: Any = np.empty((columns, count))
        self.inverses: Any = np.empty((-(-columns // STEP), count, count))
        gains_of_directions(self.variances, values, STEP, self.gains, self.inverses)
