"""What every codec owes, whoever wrote it: parametrized over the registry, so a new type is tested on its first day."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ggferry.quant.accuracy.bad_values import LEAST_SUSPICIOUS
from ggferry.quant.accuracy.bounds import narrowing_bound
from ggferry.quant.accuracy.expected_error import TOLERANCE
from ggferry.quant.blocks import as_blocks
from ggferry.quant.codec import LLAMA_CPP, Codec, codec, codecs
from ggferry.quant.endian import swap
from ggferry.quant.types import BlockError

EVERY = pytest.mark.parametrize("one", codecs().values(), ids=lambda one: one.type.name)
ENCODING = pytest.mark.parametrize(
    "one", [c for c in codecs().values() if c.encode is not None], ids=lambda one: one.type.name
)
LAW = settings(max_examples=5, deadline=None)
COLUMNS = 512

HALF_STEP = {"F32": 0.0, "F16": 2.0**-11, "BF16": 2.0**-8}
"""Largest relative error of rounding to nearest, away from subnormals."""

ROW_RMS = {
    "Q8_0": 0.006,
    "Q6_K": 0.02,
    "Q5_K": 0.04,
    "Q5_1": 0.042,
    "Q5_0": 0.048,
    "Q4_K": 0.08,
    "Q4_1": 0.085,
    "Q4_0": 0.095,
    "IQ4_NL": 0.083,
    "IQ4_XS": 0.088,
    "NVFP4": 0.11,
    "MXFP4": 0.13,
    "Q3_K": 0.17,
    "IQ3_S": 0.19,
    "IQ3_XXS": 0.21,
    "IQ2_S": 0.28,
    "IQ2_XS": 0.34,
    "Q2_K": 0.33,
    "IQ2_XXS": 0.39,
    "IQ1_M": 0.51,
    "IQ1_S": 0.54,
    "Q1_0": 0.68,
    "Q2_0": 0.8,
    "TQ1_0": 0.9,
    "TQ2_0": 0.9,
}
"""Relative RMS error that no Gaussian row of `gaussian` exceeds: the worst row measured, and a tenth of it. Ternary
types are for ternary weights; of a Gaussian they keep only what is over half its largest value. Of a type that is not
listed: what its own band allows."""
LEAST_SCALE = {"NVFP4": 2.0**-5}
"""Rows scaled below this lie under the type's block scales: NVFP4 has E4M3 numbers, none less than 2⁻⁹."""


def draw_rows(data: st.DataObject, one: Codec, rows: int, columns: int) -> np.ndarray:
    return data.draw(hnp.arrays(np.uint8, (rows, one.type.row_bytes(columns))))


def bits(values: np.ndarray) -> bytes:
    """The values' bits, any NaN being any other."""
    return np.where(np.isnan(values), np.float32(np.nan), values).tobytes()


@EVERY
def test_the_name_finds_the_codec_and_the_fields_make_the_size(one: Codec) -> None:
    kind = one.type
    assert codec(kind.name.lower()) is one
    assert kind.name == kind.name.upper()
    assert len({field.name for field in kind.fields}) == len(kind.fields) > 0
    assert kind.interleaved * kind.block_bytes == sum(field.nbytes for field in kind.fields) > 0
    assert kind.interleaved * kind.header_bytes == sum(field.nbytes for field in kind.header)
    assert kind.row_bytes(6 * kind.elements) == kind.header_bytes + 6 * kind.block_bytes
    parts = as_blocks(kind, np.zeros((4 * kind.interleaved, kind.row_bytes(6 * kind.elements)), np.uint8))
    assert sum(array.nbytes for array in parts.values()) == 4 * kind.interleaved * kind.row_bytes(6 * kind.elements)


@EVERY
@LAW
@given(data=st.data())
def test_any_bytes_decode_to_float32_of_the_shape(one: Codec, data: st.DataObject) -> None:
    columns = one.type.elements * data.draw(st.integers(1, 5))
    rows = draw_rows(data, one, data.draw(st.integers(0, 3)) * one.type.interleaved, columns)
    before = rows.tobytes()
    rows.setflags(write=False)
    with np.errstate(all="raise"):
        values = one.decode(rows, columns)
    assert (values.dtype, values.shape, values.flags.c_contiguous) == (np.float32, (len(rows), columns), True)
    assert values.flags.writeable
    assert not np.shares_memory(values, rows)
    assert rows.tobytes() == before


@EVERY
@LAW
@given(data=st.data())
def test_rows_are_independent(one: Codec, data: st.DataObject) -> None:
    columns, count = 2 * one.type.elements, one.type.interleaved
    rows = draw_rows(data, one, 4 * count, columns)
    order = data.draw(st.permutations(range(4)))
    values = one.decode(rows, columns)

    def groups(array: np.ndarray, which: object) -> np.ndarray:
        return array.reshape(4, count, -1)[which].reshape(-1, array.shape[1])

    assert bits(one.decode(groups(rows, order), columns)) == bits(groups(values, order))
    assert bits(one.decode(groups(rows, slice(1, None, 2)), columns)) == bits(groups(values, slice(1, None, 2)))
    if not one.type.whole_rows:
        beside = np.concatenate([rows[:2], rows[2:]], axis=1)
        assert bits(one.decode(beside, 2 * columns)) == bits(np.concatenate([values[:2], values[2:]], axis=1))


@EVERY
@LAW
@given(data=st.data())
def test_byte_order_is_an_involution_and_touches_nothing_else(one: Codec, data: st.DataObject) -> None:
    rows = draw_rows(data, one, 3 * one.type.interleaved, 4 * one.type.elements)
    other = swap(one.type, rows)
    assert np.array_equal(swap(one.type, other), rows)
    assert np.array_equal(np.sort(other, axis=None), np.sort(rows, axis=None))


@EVERY
def test_rows_of_the_wrong_size_are_refused(one: Codec) -> None:
    size = one.type.row_bytes(2 * one.type.elements)
    with pytest.raises(ValueError):
        one.decode(np.zeros((2, size + 1), np.uint8), 2 * one.type.elements)


@EVERY
def test_what_is_said_of_a_type_fits_it(one: Codec) -> None:
    """Numbers of a type that nothing is written in would be read by nobody; marks of a field that is not there too."""
    facts = one.accuracy
    assert set(one.suspicious) <= {field.name for field in one.type.fields if field.dtype not in LEAST_SUSPICIOUS}
    assert one.encode is not None or (facts.band, facts.bound, one.file_type) == (None, None, None)
    assert facts.band is None or 0 <= facts.band[0] <= facts.band[1] < facts.block_limit
    assert 0 < facts.row_limit <= facts.block_limit
    assert one.file_type is None or sum(other.file_type == one.file_type for other in codecs().values()) == 1


@EVERY
def test_repack_names_a_type_of_todays_with_blocks_of_the_same_elements(one: Codec) -> None:
    if one.repack is not None:
        target = codec(one.repack.target).type
        assert target.ggml_id is not None
        assert codec(target.name).runtime == LLAMA_CPP
        assert one.type.elements % target.elements == 0
        assert one.type.ggml_id is None or one.runtime != LLAMA_CPP


# Encoders


SCALES = np.geomspace(1e-3, 10, 6)


def gaussian() -> np.ndarray:
    """float32 `(6, COLUMNS)`: a row of each scale."""
    values = np.random.default_rng(7).standard_normal((len(SCALES), COLUMNS)) * SCALES[:, None]
    return values.astype(np.float32)


def importance(one: Codec) -> np.ndarray | None:
    return np.ones(COLUMNS, np.float32) if one.needs_imatrix else None


@ENCODING
def test_encoding_keeps_the_values_within_the_types_bound(one: Codec) -> None:
    values = gaussian()
    encoded = one.encode(values, importance(one))
    assert (encoded.dtype, encoded.shape) == (np.uint8, (len(values), one.type.row_bytes(COLUMNS)))
    error = one.decode(encoded, COLUMNS).astype(np.float64) - values
    bound = narrowing_bound(one.type.name, values)
    assert bound is None or np.all(np.abs(error) <= bound)
    if one.type.name in HALF_STEP:
        assert np.all(np.abs(error) <= np.abs(values) * HALF_STEP[one.type.name] + 2.0**-25)
    if one.type.quantized:
        relative = np.sqrt((error**2).sum(axis=1) / (values.astype(np.float64) ** 2).sum(axis=1))
        held = LEAST_SCALE.get(one.type.name, 0) <= SCALES
        assert held.sum() >= 3
        assert relative[held].max() < ROW_RMS.get(one.type.name, TOLERANCE * (one.accuracy.band or (0, 0))[1])
        assert relative.max() <= 1.0001


@pytest.mark.parametrize("name", ["TQ1_0", "TQ2_0", "Q2_0"])
def test_ternary_weights_come_back_as_they_were(name: str) -> None:
    values = np.random.default_rng(8).integers(-1, 2, (4, COLUMNS)).astype(np.float32) * np.float32(0.375)
    assert np.array_equal(codec(name).decode(codec(name).encode(values, None), COLUMNS), values)


@ENCODING
def test_encoded_rows_are_independent(one: Codec) -> None:
    values, weights = gaussian(), importance(one)
    encoded = one.encode(values, weights)
    assert np.array_equal(one.encode(values[::-1], weights), encoded[::-1])
    assert np.array_equal(one.encode(values[2:3], weights), encoded[2:3])
    assert one.encode(values[:0], weights).shape == (0, encoded.shape[1])


@ENCODING
def test_zeros_stay_zeros(one: Codec) -> None:
    encoded = one.encode(np.zeros((2, COLUMNS), np.float32), importance(one))
    assert not one.decode(encoded, COLUMNS).any()


@ENCODING
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_refused_by_row(one: Codec, value: float) -> None:
    values = gaussian()
    values[3, 300] = value
    with pytest.raises(BlockError, match="row 3"):
        one.encode(values, importance(one))


def test_the_registry_loads_no_numpy() -> None:
    """`inspect` asks for sizes: it must not pay for numpy."""
    program = (
        "import sys; from ggferry.quant.codec import codecs;"
        "import ggferry.quant.endian, ggferry.quant.accuracy.bad_values;"
        "assert len(codecs()) > 50; print('numpy._core' in sys.modules, 'torch' in sys.modules, 'numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", "False"]
