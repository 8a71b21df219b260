"""The bands of relative RMS error, measured again."""

from __future__ import annotations

import numpy as np
import pytest

from ggferry.quant.accuracy.expected_error import TOLERANCE, beyond_band
from ggferry.quant.codec import codec, codecs

ROWS, COLUMNS = 64, 4096
FEW_LEVELS = {"Q1_0": 2, "Q2_0": 3, "TQ1_0": 3, "TQ2_0": 3}
SLOW = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")
BANDS = {name: one.accuracy.band for name, one in codecs().items() if one.accuracy.band is not None}
ROUNDED = [name for name in BANDS if name not in FEW_LEVELS]
EVERY = [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in ROUNDED]


def relative_rms(name: str, values: np.ndarray, weights: np.ndarray | None) -> float:
    kind = codec(name)
    exact = values.astype(np.float64)
    error = kind.decode(kind.encode(values, weights), COLUMNS) - exact
    return float(np.sqrt((error**2).sum() / (exact**2).sum()))


@pytest.fixture(scope="module")
def rows() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(11)
    drawn = {"normal": rng.standard_normal((ROWS, COLUMNS)), "heavy": rng.standard_t(3, (ROWS, COLUMNS))}
    drawn["importance"] = np.exp(rng.normal(0, 1.5, COLUMNS))
    return {name: values.astype(np.float32) for name, values in drawn.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_bands_are_what_is_measured(name: str, rows: dict[str, np.ndarray]) -> None:
    needs = codec(name).needs_imatrix
    flat = np.ones(COLUMNS, np.float32) if needs else None
    found = [relative_rms(name, rows["normal"], flat), relative_rms(name, rows["heavy"], flat)]
    if codec(name).type.quantized:
        found.append(relative_rms(name, rows["heavy"], rows["importance"]))
    assert (min(found), max(found)) == pytest.approx(BANDS[name], rel=0.01)


@pytest.mark.parametrize("name", FEW_LEVELS)
def test_types_of_few_levels_hold_weights_of_few_levels(name: str, rows: dict[str, np.ndarray]) -> None:
    rng = np.random.default_rng(12)
    levels = rng.choice([-1, 1] if FEW_LEVELS[name] == 2 else [-1, 0, 1], (ROWS, COLUMNS))
    values = (levels * rng.uniform(0.001, 0.1, (ROWS, 1))).astype(np.float32)
    assert BANDS[name][0] <= relative_rms(name, values, None) <= BANDS[name][1]
    assert beyond_band(name, relative_rms(name, rows["normal"], None))


def test_every_type_that_rounds_has_a_band() -> None:
    rounding = {name for name, kind in codecs().items() if kind.encode is not None and kind.type.ggml_id is not None}
    assert rounding - set(BANDS) == {"F32"}
    assert set(BANDS) <= rounding


def test_what_lies_beyond() -> None:
    assert not beyond_band("Q4_K", BANDS["Q4_K"][1])
    assert not beyond_band("Q4_K", 0.0)
    assert beyond_band("Q4_K", BANDS["Q4_K"][1] * TOLERANCE * 1.01)
    assert beyond_band("Q4_K", float("inf"))
    assert not beyond_band("F32", 1.0)
