"""Rounding with feedback: held against the textbook's algorithm and against what it is for, the matrix's outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ggferry.quant.blocks import ValueRefused
from ggferry.quant.codec import codec
from ggferry.quant.feedback import COLUMNS, DAMPING, VARIANCE, correction_factors, encode_by_means, encode_with_feedback
from ggferry.quant.levels import LEVELS

WIDTH = 2 * COLUMNS


@pytest.fixture(scope="module")
def inputs() -> Any:
    """Inputs whose columns depend on each other, as those of a model do."""
    random = np.random.default_rng(5)
    mixing = random.normal(size=(WIDTH, WIDTH)) * (0.98 ** np.arange(WIDTH))[:, None]
    return (random.normal(size=(2000, WIDTH)) @ mixing).astype(np.float32)


@pytest.fixture(scope="module")
def weights() -> Any:
    return np.random.default_rng(6).normal(size=(9, WIDTH)).astype(np.float32)


def test_factors_are_those_of_the_moments(inputs: Any) -> None:
    """U D Uᵀ gives the damped moments again."""
    moments = inputs.T @ inputs
    factors = correction_factors(moments)
    assert factors is not None and np.array_equal(factors.diagonal(), np.ones(WIDTH)) and not np.tril(factors, -1).any()
    damped = moments.astype(float) + DAMPING * moments.diagonal().mean() * np.eye(WIDTH)
    inner = np.linalg.solve(factors.astype(float), np.linalg.solve(factors.astype(float), damped).T)
    off = inner - np.diag(inner.diagonal())
    assert np.abs(off).max() < 1e-4 * np.abs(inner).max()


def test_nothing_to_go_by() -> None:
    assert correction_factors(np.zeros((4, 4), np.float32)) is None
    assert correction_factors(np.full((4, 4), np.nan, np.float32)) is None


def test_moments_of_fewer_inputs_than_columns_have_factors(inputs: Any) -> None:
    few = inputs[:3]
    factors = correction_factors(few.T @ few)
    assert factors is not None and np.isfinite(factors).all()


def gptq(weights: Any, moments: Any, scale: float, low: int, high: int) -> Any:
    """Return what Algorithm 1 of Frantar et al., 2210.17323, makes of rows with one scale, by the inverse of H."""
    damped = moments.astype(float) + DAMPING * moments.diagonal().mean() * np.eye(len(moments))
    upper = np.linalg.cholesky(np.linalg.inv(damped)).T
    left, found = weights.astype(float).copy(), np.empty(weights.shape)
    for k in range(weights.shape[1]):
        found[:, k] = np.clip(np.rint(left[:, k] / scale), low, high) * scale
        error = (left[:, k] - found[:, k]) / upper[k, k]
        left[:, k:] -= error[:, None] * upper[k, k:]
    return found


def test_levels_are_those_of_gptq(inputs: Any) -> None:
    """With the scales that the blocks have got, the textbook chooses the same levels.

    But where a value lies between two levels: the corrections are sums in another order.
    """
    width = 32
    moments = inputs[:, :width].T @ inputs[:, :width]
    weights = np.random.default_rng(7).normal(size=(50, width)).astype(np.float32)
    factors = correction_factors(moments)
    assert factors is not None
    one = codec("Q8_0")
    blocks = encode_with_feedback(one.type, weights, None, factors)
    scales = blocks[:, :2].copy().view(np.float16).astype(float)[:, 0]
    found = one.values(blocks, width)
    for row, scale in enumerate(scales):
        expected = gptq(weights[row : row + 1], moments, scale, -128, 127)[0]
        assert np.abs(expected - found[row]).max() <= 1.01 * scale
        assert (np.abs(expected - found[row]) < 0.01 * scale).mean() > 0.9


@pytest.mark.parametrize("kind", sorted(LEVELS))
def test_outputs_come_nearer(kind: str, inputs: Any, weights: Any) -> None:
    """The error of what the matrix computes is less than half of the encoder's, by the same importances."""
    one, moments = codec(kind), inputs.T @ inputs
    factors, squares = correction_factors(moments), moments.diagonal() / np.float32(len(inputs))
    assert factors is not None and one.encode is not None
    found = encode_with_feedback(one.type, weights, squares, factors)
    assert found.shape == (9, one.type.row_bytes(WIDTH))
    errors = [
        np.square((one.values(blocks, WIDTH) - weights) @ inputs.T).mean()
        for blocks in (found, one.encode(weights, np.ascontiguousarray(squares)))
    ]
    assert errors[0] < 0.5 * errors[1]


def test_rows_do_not_depend_on_each_other(inputs: Any, weights: Any) -> None:
    one, factors = codec("Q4_K").type, correction_factors(inputs.T @ inputs)
    assert factors is not None
    whole = encode_with_feedback(one, weights, None, factors)
    scale = codec("Q4_K").values(whole, WIDTH)
    parts = np.concatenate([encode_with_feedback(one, part, None, factors) for part in np.split(weights, 3)])
    apart = np.abs(codec("Q4_K").values(parts, WIDTH) - scale)
    assert (apart > 0).mean() < 0.05  # products of other shapes are summed in another order


def test_a_value_that_is_not_finite_is_named(inputs: Any, weights: Any) -> None:
    factors = correction_factors(inputs.T @ inputs)
    assert factors is not None
    wrong = weights.copy()
    wrong[2, 300] = np.nan
    with pytest.raises(ValueRefused) as refused:
        encode_with_feedback(codec("Q4_K").type, wrong, None, factors)
    assert (refused.value.row, refused.value.column) == (2, 300)


def test_a_row_that_corrections_lead_astray_is_rounded_without_them(weights: Any) -> None:
    """Factors that no moments have: each error comes back twice as large."""
    one, factors = codec("Q4_K"), np.triu(np.full((WIDTH, WIDTH), -2, np.float32), 1) + np.eye(WIDTH, dtype=np.float32)
    assert one.encode is not None
    found = encode_with_feedback(one.type, weights, None, factors)
    np.testing.assert_array_equal(found, one.encode(weights, None))


@pytest.fixture(scope="module")
def moved_inputs(inputs: Any) -> Any:
    """Inputs whose columns have means of their own."""
    return inputs + np.random.default_rng(8).normal(size=WIDTH).astype(np.float32) * inputs.std(axis=0)


def squares_and_means(inputs: Any) -> tuple[Any, Any]:
    return np.square(inputs, dtype=np.float64).mean(0).astype(np.float32), inputs.mean(0, dtype=np.float64).astype(
        "<f4"
    )


def test_levels_by_means_are_those_of_gptq(moved_inputs: Any) -> None:
    """The textbook chooses the same levels for H = diag(variances) + μᵀμ, but between two levels."""
    width = 32
    squares, means = squares_and_means(moved_inputs[:, :width])
    mean = means.astype(float)
    moments = np.diag(np.maximum(squares - mean**2, 0)) + np.outer(mean, mean)
    moments += VARIANCE * squares.mean(dtype=float) * np.eye(width)
    moments -= DAMPING / (1 + DAMPING) * moments.diagonal().mean() * np.eye(width)  # which gptq adds again
    weights = np.random.default_rng(7).normal(size=(50, width)).astype(np.float32)
    one = codec("Q8_0")
    blocks = encode_by_means(one.type, weights, squares, means)
    scales = blocks[:, :2].copy().view(np.float16).astype(float)[:, 0]
    found = one.values(blocks, width)
    other = sum(
        int((np.abs(found[row] - gptq(weights[row : row + 1], moments, scale, -128, 127)[0]) > scale / 2).sum())
        for row, scale in enumerate(scales)
    )
    plain = one.encode(weights, squares) if one.encode else blocks
    assert other <= 2 < int((found != one.values(plain, width)).sum())


@pytest.mark.parametrize("name", sorted(LEVELS))
def test_products_change_less_by_means(name: str, moved_inputs: Any, weights: Any) -> None:
    """Also where rows are encoded one by one, which gives the same bytes."""
    one, (squares, means) = codec(name), squares_and_means(moved_inputs)
    assert one.encode is not None
    blocks = encode_by_means(one.type, weights, squares, means)
    apart = [one.values(each, WIDTH) - weights for each in (one.encode(weights, squares), blocks)]
    lost = [float(np.square(moved_inputs @ each.T).sum()) for each in apart]
    assert lost[1] < 0.9 * lost[0]
    single = [encode_by_means(one.type, weights[n : n + 1], squares, means) for n in range(len(weights))]
    assert np.array_equal(np.concatenate(single), blocks)


def test_inputs_without_means_leave_the_rows_to_the_encoder(weights: Any) -> None:
    one, squares = codec("Q4_K"), np.ones(WIDTH, np.float32)
    assert one.searched is not None
    found = encode_by_means(one.type, weights, squares, np.zeros(WIDTH, np.float32))
    assert np.array_equal(found, one.searched(weights, squares))


def test_means_that_contradict_their_squares_do_no_harm(weights: Any) -> None:
    """μ² > the mean of squares: no file of ours says so, and a row is encoded plainly where it is led astray."""
    one, squares = codec("Q4_K"), np.full(WIDTH, 1e-6, np.float32)
    found = one.values(encode_by_means(one.type, weights, squares, np.full(WIDTH, 1e6, np.float32)), WIDTH)
    assert np.abs(found - weights).max() < 1 and np.isfinite(found).all()
