"""How far two arrays of values lie apart: sums and largest difference in one pass, in pieces that stay in the cache."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ggferry.quant.accuracy.bounds import OF_BLOCK, Limits
from ggferry.quant.kernels import Compiled
from ggferry.support.heavy import np

if TYPE_CHECKING:
    from ggferry.quant.types import Floats

STEP = 1 << 15
"""Values compared at a time, whole blocks of every type: what a step needs fits into the second-level cache."""

Bound = Callable[["Floats", slice], "Floats | None"]
"""Returns the largest |Δ| of each of some expected values (this slice of all); None where nothing bounds it."""


class Differences(NamedTuple):
    """How far two arrays lie apart.

    Attributes:
        error: Σ Δ².
        power: Σ expected².
        largest: max |Δ|.
        outside: Index of the first element that is not finite or lies beyond its bound; None where there is none.
    """

    error: float
    power: float
    largest: float
    outside: int | None = None


class _Scratch(threading.local):
    def __init__(self) -> None:
        self.delta = np.empty(STEP, np.float32)
        self.wide = np.empty(STEP, np.float64)


_scratch: _Scratch | None = None


def differences(expected: Floats, found: Floats, bound: Bound) -> Differences:
    """Compare float32 arrays of one shape; the sums are float64.

    `bound` as `Limits` lets a compiled loop do it, which gives the same numbers. It leaves to the one below what lies
    outside, to be found and named.
    """
    run = APART.after(expected.size) if isinstance(bound, Limits) else None
    if run is not None and isinstance(bound, Limits):
        apart = _compiled(run, expected, found, bound)
        if apart is not None:
            return apart
    return _by_steps(expected, found, bound)


def _compiled(run: Any, expected: Floats, found: Floats, limits: Limits) -> Differences | None:
    a, b = (np.ascontiguousarray(side).reshape(-1) for side in (expected, found))
    given, mode, factor, least, elements = limits.as_numbers()
    if mode == OF_BLOCK and (elements % 16 or a.size % elements):
        return None
    sums = np.empty((2, -(-a.size // STEP)))
    largest = float(run(a, b, given, mode, factor, least, elements, sums))
    return None if largest < 0 else Differences(math.fsum(sums[1]), math.fsum(sums[0]), largest)


def _by_steps(expected: Floats, found: Floats, bound: Bound) -> Differences:
    """Compare in steps that stay in the cache: the reference. Values that agree cost no more than reading them."""
    global _scratch
    _scratch = _scratch or _Scratch()
    a, b = expected.reshape(-1), found.reshape(-1)
    errors, powers, largest = [], [], 0.0
    for start in range(0, a.size, STEP):
        here = slice(start, min(start + STEP, a.size))
        x, y = a[here], b[here]
        delta, wide = _scratch.delta[: x.size], _scratch.wide[: x.size]
        np.subtract(y, x, out=delta)
        low, high = float(delta.min()), float(delta.max())  # NaN if any is
        powers.append(_power(x, wide))
        if low == high == 0.0:
            continue
        errors.append(_power(delta, wide))
        np.abs(delta, out=delta)
        limit = bound(x, here)
        beyond = None if limit is None else delta > limit
        if not -math.inf < low <= high < math.inf:
            wrong = ~np.isfinite(y)
            beyond = wrong if beyond is None else beyond | wrong
        if beyond is not None and beyond.any():
            return Differences(math.inf, math.inf, math.inf, start + int(beyond.argmax()))
        largest = max(largest, high, -low)
    return Differences(math.fsum(errors), math.fsum(powers), largest)


def _agrees(run: Any) -> bool:
    """Return whether the compiled comparison sums in the order of this machine's numpy."""
    noise = np.random.default_rng(0).standard_normal((2, 9 * STEP + 77), np.float32)
    limits = Limits("Q4_0")
    return _compiled(run, noise[0], noise[1], limits) == _by_steps(noise[0], noise[1], limits)


APART = Compiled("ggferry.quant.kernels.differences", "apart", "APART", _agrees)


def prefetch(elements: int) -> None:
    """Announce that so many elements are going to be compared, so that the compiled loop is loaded meanwhile."""
    APART.after(elements)


def _power(values: Floats, wide: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    """Return Σ values² in float64, without BLAS, which wakes all cores for a sum of this length."""
    np.copyto(wide, values)
    return float(np.einsum("i,i", wide, wide))
