"""`--rounding search`: never further from the values than llama.cpp's bytes, and in blocks that anybody reads."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from ggferry.quant.codec import codec, codecs
from ggferry.quant.encode_rows import encode_rows
from ggferry.quant.kernels.common import in_threads
from ggferry.quant.types import SEARCH, BlockError
from tests.helpers.encoder_inputs import COLUMNS, bell, cases, importances

SEARCHED = sorted(name for name, one in codecs().items() if one.searched is not None)
TYPES = pytest.mark.parametrize("name", SEARCHED)
FACTOR = {"Q2_K": 1, "Q4_0": 0}
"""Of the mean square of a block of 256 in its weights; that of the row counts once for Q4_0."""


def weights_of(name: str, values: np.ndarray, importance: np.ndarray) -> np.ndarray:
    """Return the weights of llama.cpp's search as float64."""
    squares = values.astype(np.float64) ** 2
    if name == "Q4_0":
        mean = squares.mean(1, keepdims=True)
    else:
        factor = FACTOR.get(name, 2)
        mean = np.repeat(factor * squares.reshape(len(values), -1, 256).mean(2), 256, axis=1)
    return np.asarray(importance * np.sqrt(mean + squares))


def errors(name: str, values: np.ndarray, importance: np.ndarray, rows: np.ndarray) -> np.ndarray:
    off = codec(name).decode(rows, values.shape[1]).astype(np.float64) - values
    return np.asarray((weights_of(name, values, importance) * off**2).sum(1))


@pytest.mark.slow
@TYPES
def test_no_row_is_further_from_its_values_than_llama_cpps(name: str) -> None:
    one = codec(name)
    assert one.searched is not None and one.encode is not None
    better = 0
    for title, values in cases().items():
        for label, importance in importances().items():
            if importance is None:
                continue
            try:
                stock = one.encode(values, importance)
            except BlockError:
                with pytest.raises(BlockError):
                    one.searched(values, importance)
                continue
            before = errors(name, values, importance, stock)
            after = errors(name, values, importance, one.searched(values, importance))
            room = 1e-5 * before + 1e-6 * (weights_of(name, values, importance) * values.astype(np.float64) ** 2).sum(1)
            assert (after <= before + room).all(), (title, label)
            better += int((after < before).sum())
    assert better > 100


@pytest.mark.sampled(1)
@TYPES
def test_gguf_reads_what_is_written(name: str) -> None:
    one, importance = codec(name), importances()["squares"]
    assert one.searched is not None and importance is not None
    rows = one.searched(bell(31, 8, COLUMNS), importance)
    theirs = gguf.dequantize(rows, gguf.GGMLQuantizationType[name])
    assert np.array_equal(theirs, one.decode(rows, COLUMNS))


@pytest.mark.sampled(1)
@TYPES
def test_rows_and_threads_are_independent(name: str) -> None:
    one, importance = codec(name), importances()["squares"]
    assert one.searched is not None and importance is not None
    values = bell(32, 37, COLUMNS)
    rows = one.searched(values, importance)
    for threads in (2, 3):
        assert np.array_equal(in_threads(one.searched, values, importance, threads), rows)
    assert np.array_equal(one.searched(values[5:6], importance), rows[5:6])
    assert not np.array_equal(rows, one.encode(values, importance) if one.encode else None)


@TYPES
def test_zeros_stay_zeros_and_what_is_no_number_is_refused(name: str) -> None:
    one, importance = codec(name), importances()["squares"]
    assert one.searched is not None and importance is not None
    assert not one.decode(one.searched(np.zeros((2, COLUMNS), np.float32), importance), COLUMNS).any()
    values = bell(33, 4, COLUMNS)
    values[3, 300] = np.nan
    with pytest.raises(BlockError, match="row 3"):
        one.searched(values, importance)


@TYPES
def test_without_importances_the_bytes_are_llama_cpps(name: str) -> None:
    one, values = codec(name), bell(34, 3, COLUMNS)
    assert one.encode is not None
    rows = encode_rows(one.type, values, None, 0, values.shape, SEARCH)
    assert np.array_equal(rows, one.encode(values, None))
