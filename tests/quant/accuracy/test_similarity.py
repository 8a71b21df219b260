"""What counts as 'these values, rounded': whatever an encoder makes of them, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from ggferry.quant.accuracy.similarity import ALIKE, first_unlike, surely_alike
from ggferry.quant.codec import codec, codecs

COLUMNS, ROWS = 1024, 8
SLOW = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")
QUANTIZED = [name for name, one in codecs().items() if one.encode is not None and one.type.quantized]
EVERY = [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in QUANTIZED]
POSITION_MATTERS = [name for name in QUANTIZED if name not in ("Q1_0", "TQ1_0", "TQ2_0", "Q2_0")]


def distributions() -> Iterator[tuple[str, np.ndarray]]:
    rng = np.random.default_rng(3)
    shape = (ROWS, COLUMNS)
    yield "normal", rng.standard_normal(shape)
    yield "laplace", rng.laplace(size=shape)
    yield "t of 3", rng.standard_t(3, shape)
    yield "t of 2", rng.standard_t(2, shape)
    yield "uniform", rng.uniform(-1, 1, shape)
    yield "offset", rng.standard_normal(shape) * 0.2 + 1
    yield (
        "sub-blocks of other scales",
        rng.standard_normal(shape) * np.exp(rng.normal(0, 2, (ROWS, COLUMNS // 32))).repeat(32, 1),
    )
    yield "columns of other scales", rng.standard_normal(shape) * np.exp(rng.normal(0, 1, (1, COLUMNS)))


def encoded(name: str, values: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    one = codec(name)
    if weights is None and one.needs_imatrix:
        weights = np.ones(COLUMNS, np.float32)
    return one.decode(one.encode(values, weights), COLUMNS)


@pytest.mark.parametrize("name", EVERY)
def test_what_an_encoder_makes_is_like_its_source(name: str) -> None:
    importance = np.exp(np.random.default_rng(4).normal(0, 1.5, COLUMNS)).astype(np.float32)
    for kind, drawn in distributions():
        values = (drawn * 0.02).astype(np.float32)
        for weights in (None, importance):
            found = first_unlike(name, values, encoded(name, values, weights))
            assert found is None, (kind, weights is not None, found)


@pytest.mark.parametrize("name", [param for param in EVERY if param.values[0] in POSITION_MATTERS])
def test_what_stands_elsewhere_is_not(name: str) -> None:
    elements = codec(name).type.elements
    values = (np.random.default_rng(5).standard_normal((ROWS, COLUMNS)) * 0.02).astype(np.float32)
    right = encoded(name, values, None)
    rows, blocks, rotated, gone, smaller = (right.copy() for _ in range(5))
    rows[[2, 5]] = rows[[5, 2]]
    blocks[3, :elements], blocks[3, elements : 2 * elements] = right[3, elements : 2 * elements], right[3, :elements]
    rotated[4, :elements] = right[4, :elements][::-1]
    gone[6, -elements:] = 0
    smaller[:] = right * 0.01
    assert first_unlike(name, values, right) is None
    for wrong, row in ((rows, 2), (blocks, 3), (rotated, 4), (gone, 6)):
        found = first_unlike(name, values, wrong)
        assert found is not None and found.row == row
    if codec(name).accuracy.block_limit < 1:
        assert first_unlike(name, values, smaller) is not None


@pytest.mark.parametrize("name", ["Q4_0", "Q4_K", "Q8_0", "NVFP4"])
def test_values_below_every_scale_may_be_lost_but_not_invented(name: str) -> None:
    tiny = np.full((2, COLUMNS), 1e-9, np.float32)
    assert first_unlike(name, tiny, np.zeros_like(tiny)) is None
    assert first_unlike(name, tiny, np.full_like(tiny, 0.5)) is not None


@pytest.mark.parametrize("name", [param for param in EVERY if codec(param.values[0]).type.elements % 16 == 0])
def test_the_compiled_loop_passes_nothing_that_the_reference_refuses(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = ALIKE.load()
    rng = np.random.default_rng(6)
    values = (rng.standard_normal((ROWS, COLUMNS)) * 0.02).astype(np.float32)
    right, elements = encoded(name, values, None), codec(name).type.elements
    monkeypatch.setattr(type(ALIKE), "after", lambda self, elements: loop)
    sure = surely_alike(name, values, right)
    assert sure or codec(name).accuracy.block_limit > 0.9
    for scale in np.geomspace(1e-3, 10, 40):
        wrong = right.copy()
        wrong[5, elements : 2 * elements] += rng.standard_normal(elements).astype(np.float32) * np.float32(scale * 0.02)
        passed = surely_alike(name, values, wrong)
        with monkeypatch.context() as reference:
            reference.setattr(type(ALIKE), "after", lambda self, elements: None)
            assert not passed or first_unlike(name, values, wrong) is None
    for value in (np.nan, np.inf, 1e30):
        wrong = right.copy()
        wrong[7, 3] = value
        assert not surely_alike(name, values, wrong)
