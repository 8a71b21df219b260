"""The choice of types for a size, against every choice there is."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence

import pytest

from ggferry.quant.recipes import allocate as module
from ggferry.quant.recipes.allocate import Candidate, allocate, bounds, pareto


def tensors(seed: int, count: int = 3, unit: int = 144) -> dict[str, list[Candidate]]:
    """Return random tensors of three types each."""
    draw = random.Random(seed)
    return {
        f"t{number}": [Candidate(draw.randint(1, 12) * unit, draw.random(), kind) for kind in ("A", "B", "C")]
        for number in range(count)
    }


def least(candidates: Mapping[str, Sequence[Candidate]], nbytes: int) -> float:
    """Return the least error among all choices that fit."""
    choices = itertools.product(*candidates.values())
    return min(sum(each.error for each in some) for some in choices if sum(each.nbytes for each in some) <= nbytes)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("unit", [1, 144])
def test_the_choice_is_the_best_of_all(seed: int, unit: int) -> None:
    candidates = tensors(seed, unit=unit)
    low, high = bounds(candidates)
    before = float("inf")
    for nbytes in range(low, high + unit, unit):
        found = allocate(candidates, nbytes)
        error = sum(each.error for each in found.values())
        assert sum(each.nbytes for each in found.values()) <= nbytes
        assert error == pytest.approx(least(candidates, nbytes), abs=1e-12)
        assert error <= before + 1e-12
        before = error
    assert error == pytest.approx(sum(min(each.error for each in some) for some in candidates.values()))


@pytest.mark.parametrize("seed", range(10))
def test_units_larger_than_the_sizes_ask_for_stay_within_them(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_UNITS", 16)
    candidates = tensors(seed, count=6, unit=7)
    low, high = bounds(candidates)
    for nbytes in range(low, high + 1, 5):
        found = allocate(candidates, nbytes)
        size = sum(each.nbytes for each in found.values())
        assert size <= nbytes
        for name, each in found.items():  # nothing that is left would pay for another step
            better = [other for other in pareto(candidates[name]) if other.nbytes > each.nbytes]
            assert all(size - each.nbytes + other.nbytes > nbytes for other in better)


def test_what_is_larger_and_no_better_is_no_candidate() -> None:
    front = pareto([Candidate(4, 0.5, "A"), Candidate(6, 0.5, "B"), Candidate(8, 0.1, "C"), Candidate(8, 0.2, "D")])
    assert [each.type for each in front] == ["A", "C"]


def test_too_few_bytes_are_refused_and_no_tensors_are_no_choice() -> None:
    candidates = tensors(1)
    low, _ = bounds(candidates)
    with pytest.raises(ValueError, match=f"at least {low}"):
        allocate(candidates, low - 1)
    assert allocate({}, 5) == {} and bounds({}) == (0, 0)
