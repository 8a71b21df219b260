"""Rounding with feedback: held against the textbook's algorithm and against what it is for, the matrix's outputs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggferry.quant.blocks import ValueRefused
from ggferry.quant.codec import codec
from ggferry.quant.levels import LEVELS
from ggferry.quant.rounding.directions import (
    VARIANCE,
    Directions,
    directions,
    directions_of_some,
    mean_of_matrices,
    signs,
)
from ggferry.quant.rounding.feedback import COLUMNS, encode_by_directions, encode_with_feedback
from ggferry.quant.rounding.second_moments import DAMPING, correction_factors

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


def sketch_of(inputs: Any, count: int) -> Any:
    """Return what an importance matrix holds: the means of (x Ω)ᵀ x."""
    exact = inputs.astype(float)
    return ((exact @ signs(inputs.shape[1], count)).T @ exact / len(inputs)).astype(np.float32)


def test_signs_are_bits_of_splitmix64() -> None:
    """The first numbers of the published generator, begun at 0 (its C code is in every language's library)."""
    numbers = (0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F)
    expected = [[1.0 if number >> bit & 1 else -1.0 for bit in range(64)] for number in numbers]
    assert np.array_equal(signs(3, 64), expected) and np.array_equal(signs(9, 64)[:3, :5], np.array(expected)[:, :5])


@pytest.mark.parametrize("rank", [1, 3, 8])
def test_a_sketch_gives_covariances_of_its_rank_again(rank: int) -> None:
    """And directions beyond the rank are next to nothing, the rounding of float32."""
    random = np.random.default_rng(9)
    inputs = random.normal(size=(500, rank)) @ random.normal(size=(rank, 200)) + random.normal(size=200)
    means = inputs.mean(0)
    found = directions(means.astype(np.float32), sketch_of(inputs, 8))
    assert found.shape == (200, 9) and np.array_equal(found[:, 0], means.astype(np.float32))
    covariances = np.cov(inputs.T, bias=True)
    assert np.abs(found[:, 1:] @ found[:, 1:].T - covariances).max() < 1e-4 * np.abs(covariances).max()
    assert (np.abs(found).max(0) > 0.01 * np.abs(found).max()).sum() == 1 + rank


def test_a_part_of_the_inputs_varies_as_all_do_by_its_own_variances() -> None:
    """Exactly where a part is all inputs, each column times a number; a column that never varied has none."""
    random = np.random.default_rng(4)
    inputs = random.normal(size=(400, 6)) @ random.normal(size=(6, 64)) + random.normal(size=64)
    inputs[:, 5] = 2
    scales = random.uniform(0.5, 2, size=64)
    part = (inputs - inputs.mean(0)) * scales + random.normal(size=64)
    part[:, 5] = 2
    squares, means = squares_and_means(part)
    of_all = inputs.mean(0), np.square(inputs).mean(0)
    found = directions_of_some(means, squares, *of_all, directions(of_all[0], sketch_of(inputs, 8)))
    assert found.shape == (64, 9) and np.array_equal(found[:, 0], means)
    covariances = np.cov(part.T, bias=True)
    assert np.abs(found[:, 1:] @ found[:, 1:].T - covariances).max() < 1e-4 * np.abs(covariances).max()
    sums = np.array([[1, 2, 2**25], [3, 4, 1]], np.float32)
    assert np.array_equal(mean_of_matrices(sums, 4), [1, 1.5, (2**25 + 1) / 4])


def test_larger_sketches_explain_more(moved_inputs: Any) -> None:
    """Nyström's approximation lies below the covariances, and comes nearer with every direction."""
    means, covariances = moved_inputs.mean(0, dtype=float), np.cov(moved_inputs.T.astype(float), bias=True)
    left = []
    for count in (1, 4, 16, 64):
        found = directions(means.astype(np.float32), sketch_of(moved_inputs, count))[:, 1:]
        rest = covariances - found @ found.T
        assert np.linalg.eigvalsh(rest)[0] > -1e-4 * np.linalg.norm(covariances, 2)
        left.append(rest.trace())
    assert left == sorted(left, reverse=True) and left[-1] < 0.3 * covariances.trace()


@pytest.mark.parametrize("count", [0, 8])
def test_levels_by_directions_are_those_of_gptq(count: int, moved_inputs: Any) -> None:
    """The textbook chooses the same levels for H = diag(v) + A Aᵀ, but between two levels."""
    width = 32
    own = moved_inputs[:, :width]
    squares, means = squares_and_means(own)
    found_directions = directions(means, sketch_of(own, count) if count else None)
    low_rank = found_directions @ found_directions.T
    moments = np.diag(np.maximum(squares - low_rank.diagonal(), 0)) + low_rank
    moments += VARIANCE * squares.mean(dtype=float) * np.eye(width)
    moments -= DAMPING / (1 + DAMPING) * moments.diagonal().mean() * np.eye(width)  # which gptq adds again
    weights = np.random.default_rng(7).normal(size=(50, width)).astype(np.float32)
    one = codec("Q8_0")
    blocks = encode_by_directions(one.type, weights, squares, Directions(squares, found_directions))
    scales = blocks[:, :2].copy().view(np.float16).astype(float)[:, 0]
    found = one.values(blocks, width)
    other = sum(
        int((np.abs(found[row] - gptq(weights[row : row + 1], moments, scale, -128, 127)[0]) > scale / 2).sum())
        for row, scale in enumerate(scales)
    )
    plain = one.encode(weights, squares) if one.encode else blocks
    assert other <= 2 < int((found != one.values(plain, width)).sum())


@pytest.mark.parametrize("name", sorted(LEVELS))
def test_products_change_less_by_directions(name: str, moved_inputs: Any, weights: Any) -> None:
    """By means less than by none, by a sketch less still; also where rows are encoded one by one: the same bytes."""
    one, (squares, means) = codec(name), squares_and_means(moved_inputs)
    assert one.encode is not None
    both = [Directions(squares, directions(means, sketch)) for sketch in (None, sketch_of(moved_inputs, 16))]
    made = [encode_by_directions(one.type, weights, squares, each) for each in both]
    apart = [one.values(each, WIDTH) - weights for each in (one.encode(weights, squares), *made)]
    lost = [float(np.square(moved_inputs @ each.T).sum()) for each in apart]
    assert lost[1] < 0.9 * lost[0] and lost[2] < 0.8 * lost[1]
    single = [encode_by_directions(one.type, weights[n : n + 1], squares, both[1]) for n in range(len(weights))]
    assert np.array_equal(np.concatenate(single), made[1])


def test_inputs_without_means_leave_the_rows_to_the_encoder(weights: Any) -> None:
    one, squares = codec("Q4_K"), np.ones(WIDTH, np.float32)
    assert one.searched is not None
    found = encode_by_directions(
        one.type, weights, squares, Directions(squares, directions(np.zeros(WIDTH, np.float32), None))
    )
    assert np.array_equal(found, one.searched(weights, squares))


def test_what_contradicts_the_squares_does_no_harm(weights: Any) -> None:
    """μ² > the mean of squares, or a sketch of anything: a row is encoded plainly where it is led astray."""
    one, squares = codec("Q4_K"), np.full(WIDTH, 1e-6, np.float32)
    random = np.random.default_rng(3)
    wild = [random.normal(size=(5, WIDTH)).astype(np.float32) * np.float32(size) for size in (1, 1e30, -1e30)]
    for sketch in (None, *wild, np.full((3, WIDTH), 3e38, np.float32)):
        wrong = Directions(squares, directions(np.full(WIDTH, 1e6, np.float32), sketch))
        found = encode_by_directions(one.type, weights, squares, wrong)
        values = one.values(found, WIDTH)
        assert np.abs(values - weights).max() < 1 and np.isfinite(values).all()


ENCODED = """
import hashlib, sys
import numpy as np
from ggferry.quant.codec import codec
from ggferry.quant.kernels.common import LANES
from ggferry.quant.rounding.directions import Directions
from ggferry.quant.rounding.feedback import encode_by_directions

random = np.random.default_rng(3)
values = random.normal(size=(300, 6)) @ np.diag([3, 1, 1, 0.5, 0.2, 0.1])
squares = (values**2).sum(1).astype(np.float32) + 1
rows = random.normal(size=(131, 300 // 32 * 32)).astype(np.float32)
directions = Directions(squares[:288], np.ascontiguousarray(values[:288]))
blocks = encode_by_directions(codec("Q4_0").type, rows, squares[:288], directions)
print(LANES, hashlib.sha256(blocks.tobytes()).hexdigest())
"""


@pytest.mark.slow
def test_directions_give_the_same_bytes_with_the_registers_of_any_processor(tmp_path: Path) -> None:
    told = []
    for features in (None, ""):
        own = {} if features is None else {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": features}
        environment = {**os.environ, **own, "NUMBA_CACHE_DIR": str(tmp_path / str(features))}
        ended = subprocess.run([sys.executable, "-c", ENCODED], env=environment, capture_output=True, check=True)
        told.append(ended.stdout.split())
    assert told[1][0] == b"16" and told[0][1] == told[1][1]
