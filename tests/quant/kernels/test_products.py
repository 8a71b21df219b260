"""Rows times a matrix: the compiled products against numpy's in float64."""

from __future__ import annotations

import numpy as np
import pytest

from ggferry.converters.forward.weights import PRODUCTS


@pytest.fixture(scope="module")
def run() -> object:
    return PRODUCTS.load()


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 6, 7, 22, 300])
@pytest.mark.parametrize("rows", [1, 3, 4, 9])
def test_products_are_those_of_float64(run: object, tokens: int, rows: int) -> None:
    rng = np.random.default_rng(tokens * 100 + rows)
    for columns in (16, 48, 784, 2048):
        x, w = (rng.standard_normal((count, columns), np.float32) for count in (tokens, rows))
        out = np.full((tokens, rows + 5), 7, np.float32)
        run(x, w, out, 2)  # type: ignore[operator]
        expected = x.astype(np.float64) @ w.T.astype(np.float64)
        assert np.abs(out[:, 2 : 2 + rows] - expected).max() <= 2e-6 * columns**0.5
        assert (out[:, :2] == 7).all() and (out[:, 2 + rows :] == 7).all()


def test_a_sum_does_not_depend_on_what_is_computed_with_it(run: object) -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal((count, 256), np.float32) for count in (13, 11))
    whole, single = np.empty((13, 11), np.float32), np.empty((1, 1), np.float32)
    run(x, w, whole, 0)  # type: ignore[operator]
    for token in range(13):
        for row in range(11):
            run(x[token : token + 1], w[row : row + 1], single, 0)  # type: ignore[operator]
            assert single[0, 0] == whole[token, row]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_shows(run: object, bad: float) -> None:
    x, w, out = np.ones((2, 32), np.float32), np.ones((5, 32), np.float32), np.empty((2, 5), np.float32)
    w[3, 17] = bad
    run(x, w, out, 0)  # type: ignore[operator]
    assert not np.isfinite(out[:, 3]).any() and np.isfinite(np.delete(out, 3, 1)).all()
