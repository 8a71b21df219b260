"""Differences in steps are the differences of the whole, and what lies outside is found where it is first."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggferry.quant.accuracy.bounds import Limits, narrowing_bound
from ggferry.quant.accuracy.differences import APART, STEP, differences
from ggferry.quant.codec import codec, codecs
from ggferry.quant.kernels import Compiled

SIZES = st.sampled_from([0, 1, 32, STEP - 32, STEP, STEP + 1, 3 * STEP + 64])


def unbounded(expected: np.ndarray, here: slice) -> None:
    return None


@settings(max_examples=20, deadline=None)
@given(size=SIZES, seed=st.integers(0, 99), equal=st.booleans())
def test_sums_and_largest(size: int, seed: int, equal: bool) -> None:
    rng = np.random.default_rng(seed)
    a = rng.standard_normal(size).astype(np.float32)
    b = a.copy() if equal else (a + rng.standard_normal(size) * 1e-3).astype(np.float32)
    found = differences(a.reshape(1, -1), b.reshape(1, -1), unbounded)
    delta = (b - a).astype(np.float64)
    assert found.error == pytest.approx((delta**2).sum(), rel=1e-12)
    assert found.power == pytest.approx((a.astype(np.float64) ** 2).sum(), rel=1e-12)
    assert found.largest == np.abs(delta).max(initial=0)
    assert found.outside is None


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0"])
@pytest.mark.parametrize("at", [0, STEP - 1, STEP, 2 * STEP + 77])
@pytest.mark.parametrize("value", ["beyond", np.nan, np.inf, -np.inf])
def test_the_first_outside_is_found(kind: str, at: int, value: float | str) -> None:
    expected = np.random.default_rng(at).standard_normal((3, STEP)).astype(np.float32)
    encoded = codec(kind).encode(expected, None)
    found = codec(kind).decode(encoded, STEP)

    def bound(x: np.ndarray, here: slice) -> np.ndarray | None:
        return narrowing_bound(kind, x)

    assert differences(expected, found, bound).outside is None
    found.reshape(-1)[at] = expected.reshape(-1)[at] + 1 if value == "beyond" else value
    found.reshape(-1)[at + 5 :: 64] += 9
    assert differences(expected, found, bound).outside == at


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_outside_without_a_bound(value: float) -> None:
    expected = np.ones((2, STEP), np.float32)
    found = expected.copy()
    found[1, 5] = value
    assert differences(expected, found, unbounded).outside == STEP + 5


def test_the_bound_of_blocks_is_that_of_the_largest_of_each() -> None:
    values = np.random.default_rng(3).standard_normal((5, 320)).astype(np.float32)
    shares = {one.type: one.accuracy.bound.of_block for one in codecs().values() if one.accuracy.bound is not None}
    assert any(shares.values())
    for kind, elements, share in ((kind.name, kind.elements, share) for kind, share in shares.items() if share):
        bound = narrowing_bound(kind, values)
        assert bound is not None and bound.shape == values.shape
        largest = np.abs(values).reshape(-1, elements).max(axis=1)
        assert np.allclose(bound.reshape(-1, elements), share * 1.001 * largest[:, None] + 2.0**-18)


@pytest.mark.parametrize("kind", ["Q4_0", "F16", "BF16", "Q8_0", "F32"])
@pytest.mark.parametrize("size", [0, 32, 96, STEP - 32, STEP, 3 * STEP + 64, 8 * STEP, 17 * STEP + 4128])
def test_compiled_numbers_are_those_of_the_reference(kind: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last bit: receipts must not tell which of the two has run."""
    run = APART.load()
    a = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    for b in (a.copy(), codec(kind).decode(codec(kind).encode(a[None], None), size)[0]):
        expected = differences(a, b, lambda x, here: narrowing_bound(kind, x))
        monkeypatch.setattr(Compiled, "after", lambda self, elements: run if self is APART else None)
        assert differences(a, b, Limits(kind)) == expected
        if size and kind != "Q4_0":  # without a bound
            kept = b.copy()
            kept[-1] += 1
            outside = differences(a, kept, Limits(kind)).outside
            monkeypatch.undo()
            assert outside == differences(a, kept, lambda x, here: narrowing_bound(kind, x)).outside == size - 1
        monkeypatch.undo()


def test_given_limits_and_what_is_not_finite_are_found_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    run = APART.load()
    monkeypatch.setattr(Compiled, "after", lambda self, elements: run if self is APART else None)
    a = np.random.default_rng(0).standard_normal(STEP + 40).astype(np.float32)
    b, limits = a + np.float32(1e-3), np.full(a.size, 2e-3, np.float32)
    assert differences(a, b, Limits("Q4_0", limits)).outside is None
    limits[STEP + 39] = 0
    assert differences(a, b, Limits("Q4_0", limits)).outside == STEP + 39
    for bad in (np.nan, np.inf):
        for at in (0, STEP + 7, STEP + 39):
            c = b.copy()
            c[at] = bad
            assert differences(a, c, Limits("Q4_0")).outside == at
