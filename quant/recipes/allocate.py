"""Choose a type for each tensor so that all fit into a number of bytes and the total error is least.

A knapsack with one choice a tensor, solved exactly by dynamic programming in units of bytes. Matrices of one model have
few shapes, so their sizes have a large common divisor, and the units are exact. Where the units have to be larger than
it, sizes are rounded up to them, which never exceeds the bytes, and what is left is filled afterwards.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ggferry.support.heavy import np

CELLS = 1 << 26
"""Most cells of the table of decisions, a byte each."""
MOST_UNITS = 1 << 18


class Candidate(NamedTuple):
    """A type that a tensor may have.

    Attributes:
        nbytes: Its bytes in that type.
        error: What the type costs.
        type: The name of the type.
    """

    nbytes: int
    error: float
    type: str


def pareto(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates that no smaller one equals or betters, the smallest first."""
    found: list[Candidate] = []
    for each in sorted(candidates):
        if not found or each.error < found[-1].error:
            if found and found[-1].nbytes == each.nbytes:
                continue
            found.append(each)
    return found


def bounds(candidates: Mapping[str, Sequence[Candidate]]) -> tuple[int, int]:
    """Return the fewest bytes of all tensors together, and the bytes beyond which none lowers the error."""
    fronts = [pareto(each) for each in candidates.values()]
    return sum(front[0].nbytes for front in fronts), sum(front[-1].nbytes for front in fronts)


def allocate(candidates: Mapping[str, Sequence[Candidate]], nbytes: int) -> dict[str, Candidate]:
    """Return the candidate of each tensor with which the total error is least in at most so many bytes.

    Args:
        candidates: The types that each tensor may have, by its name; none without any.
        nbytes: The most bytes of all together.

    Raises:
        ValueError: The smallest candidates are larger.
    """
    fronts = {name: pareto(each) for name, each in candidates.items()}
    room = nbytes - sum(front[0].nbytes for front in fronts.values())
    if room < 0:
        raise ValueError(f"{nbytes} bytes; at least {nbytes - room}")
    unit = _unit(list(fronts.values()))
    chosen = _best(fronts, unit, room)
    return _filled(fronts, chosen, nbytes)


def _unit(fronts: Sequence[Sequence[Candidate]]) -> int:
    """Return the bytes of a unit, which depends on the tensors alone: so more bytes never hold a worse choice."""
    sizes = Counter(tuple(each.nbytes - front[0].nbytes for each in front[1:]) for front in fronts)
    every = math.gcd(*(size for each in sizes for size in each))
    common = math.gcd(*(size for each, count in sizes.items() if count > 1 for size in each))
    whole = sum(each[-1] * count for each, count in sizes.items() if each)
    most = max(1, min(MOST_UNITS, CELLS // max(1, len(fronts))))
    fitting = [size for size in (every, common) if size and whole // size <= most]
    return fitting[0] if fitting else max(1, -(-whole // most))


def _best(fronts: Mapping[str, Sequence[Candidate]], unit: int, room: int) -> dict[str, int]:
    """Return the number of the best candidate of each tensor, where `room` bytes are shared in whole units."""
    costs = {name: [-(-(each.nbytes - front[0].nbytes) // unit) for each in front] for name, front in fronts.items()}
    units = min(room // unit, sum(cost[-1] for cost in costs.values()))
    least: Any = np.zeros(units + 1)
    decided: dict[str, Any] = {}
    for name, front in fronts.items():
        errors: Any = np.full(units + 1, np.inf)
        picks: Any = np.zeros(units + 1, np.uint8)
        for number, (cost, each) in enumerate(zip(costs[name], front, strict=True)):
            if cost > units:
                break
            found = least[: units + 1 - cost] + each.error
            better = found < errors[cost:]
            errors[cost:][better] = found[better]
            picks[cost:][better] = number
        least, decided[name] = errors, picks
    chosen, left = {}, units
    for name in reversed(list(fronts)):
        chosen[name] = int(decided[name][left])
        left -= costs[name][chosen[name]]
    return chosen


def _filled(fronts: Mapping[str, Sequence[Candidate]], chosen: dict[str, int], nbytes: int) -> dict[str, Candidate]:
    """Return the choice with the bytes that rounding left spent, each time where a byte lowers the error most."""
    left = nbytes - sum(front[chosen[name]].nbytes for name, front in fronts.items())
    while True:
        steps = [
            ((now.error - each.error) / (each.nbytes - now.nbytes), name, number, each.nbytes - now.nbytes)
            for name, front in fronts.items()
            for now in (front[chosen[name]],)
            for number, each in enumerate(front[chosen[name] + 1 :], chosen[name] + 1)
            if each.nbytes - now.nbytes <= left
        ]
        if not steps:
            return {name: front[chosen[name]] for name, front in fronts.items()}
        _, name, number, cost = max(steps, key=lambda step: (step[0], step[1]))
        chosen[name] = number
        left -= cost
