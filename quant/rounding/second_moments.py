"""Second moments of a matrix's inputs, and the factors by which errors of columns correct later ones."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ggferry.quant.kernels import ALIGNED, PRODUCTS
from ggferry.support.heavy import np, torch
from ggferry.support.threads import each

if TYPE_CHECKING:
    from ggferry.quant.types import Floats

DAMPING = 0.01
"""Share of the mean second moment that is added to each: directions that no input has stay near the weights."""
MOST_DAMPING = 8
"""How often ten times as much is tried where rounding keeps the moments from being positive definite."""
PANEL = 256
"""Columns of which the moments are computed at once."""
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
        stop = min(len(columns), start + PANEL)
        products(columns[:stop], columns[start:stop], found[:stop], start)
        found[start:stop, :start] = found[:start, start:stop].T  # sums of the same products in the same order

    each(range(0, len(inputs), TRANSPOSED), transpose, threads)
    each(reversed(range(0, len(columns), PANEL)), panel, threads)  # the largest first
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
