"""Blocks of an era as today's blocks: equal in value where the scales allow, and equal in bytes to what the later
quantizer wrote from the same weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ggferry.quant.blocks import TILE_ELEMENTS, as_blocks
from ggferry.quant.codec import LLAMA_CPP, block_type, codec, codecs
from ggferry.quant.types import BlockError

TARGETS = {
    "Q4_0_PLANAR": "Q4_0",
    "Q4_1_PLANAR": "Q4_1",
    "Q4_0_V1": "Q4_0",
    "Q4_1_V1": "Q4_1",
    "Q5_0_V1": "Q5_0",
    "Q5_1_V1": "Q5_1",
    "Q8_0_V1": "Q8_0",
    "Q4_0_V2": "Q4_0",
    "Q4_1_V2": "Q4_1",
}
COLUMNS = 96


def test_these_repack_and_no_other() -> None:
    assert {name: c.repack.target for name, c in codecs().items() if c.repack and c.runtime == LLAMA_CPP} == TARGETS


def scales_of(name: str, rows: np.ndarray) -> dict[str, np.ndarray]:
    """The float fields of a type as writable views."""
    return {field: array for field, array in as_blocks(block_type(name), rows).items() if array.dtype.kind == "f"}


def random_rows(name: str, rows: int, columns: int, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    data = generator.integers(0, 256, (rows, block_type(name).row_bytes(columns)), dtype=np.uint8)
    for array in scales_of(name, data).values():
        array[...] = generator.normal(0, 1e-2, array.shape)
    return data


def decoded(name: str, rows: np.ndarray, columns: int = COLUMNS) -> np.ndarray:
    return codec(name).decode(rows, columns)


@pytest.mark.parametrize("name", TARGETS)
def test_exact_scales_give_equal_values(name: str) -> None:
    rows = random_rows(name, 5, COLUMNS)
    for array in scales_of(name, rows).values():
        array[...] = array.astype(np.float16)
    before = rows.copy()
    repacked, inexact = codec(name).repack.apply(rows, COLUMNS)
    assert inexact == 0
    assert repacked.shape == (5, block_type(TARGETS[name]).row_bytes(COLUMNS))
    assert np.array_equal(decoded(TARGETS[name], repacked).view(np.uint32), decoded(name, rows).view(np.uint32))
    assert np.array_equal(rows, before)


@pytest.mark.parametrize("name", [name for name in TARGETS if not name.startswith("Q5")])
def test_inexact_scales_are_counted_and_bounded(name: str) -> None:
    rows = random_rows(name, 7, COLUMNS)
    repacked, inexact = codec(name).repack.apply(rows, COLUMNS)
    fields = scales_of(name, rows).values()
    wrong = np.any([array.astype(np.float16) != array for array in fields], axis=0)
    assert inexact == wrong.sum() > 15
    levels = {"Q4_0": 8, "Q4_1": 15, "Q8_0": 128}[TARGETS[name]]
    bound = sum(np.abs(array[..., 0]) * factor for array, factor in zip(fields, order(name, levels), strict=True))
    error = np.abs(decoded(TARGETS[name], repacked).astype(np.float64) - decoded(name, rows))
    assert np.all(error.reshape((*bound.shape, 32)).max(axis=-1) <= bound * 2.0**-11 * (1 + 1e-3))


def order(name: str, levels: int) -> tuple[int, ...]:
    """The largest factor of each float field: a level for d, 1 for m."""
    return tuple(1 if field == "m" else levels for field in scales_of(name, random_rows(name, 1, 32)))


@settings(max_examples=60, deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(TARGETS)))
def test_any_finite_block_keeps_its_levels(data: st.DataObject, name: str) -> None:
    """With scales of 1 and mins of 0 a decoded value is its level: it survives whatever the bytes."""
    kind = block_type(name)
    rows = data.draw(hnp.arrays(np.uint8, (2, kind.row_bytes(64))))
    for field, array in scales_of(name, rows).items():
        array[...] = field == "d"
    repacked, inexact = codec(name).repack.apply(rows, 64)
    assert inexact == 0
    assert np.array_equal(decoded(TARGETS[name], repacked, 64), decoded(name, rows, 64))


@settings(max_examples=100, deadline=None)
@given(
    scale=st.floats(width=32, allow_nan=False, allow_infinity=False),
    name=st.sampled_from(["Q4_0_V1", "Q4_1_PLANAR", "Q8_0_V1", "Q4_1_V2"]),
    field=st.sampled_from(["d", "m"]),
)
def test_a_scale_is_exact_counted_or_refused(scale: float, name: str, field: str) -> None:
    if field == "m" and "_1" not in name:
        field = "d"
    rows = np.zeros((3, block_type(name).row_bytes(64)), np.uint8)
    scales_of(name, rows)[field].reshape(3, 2)[1, 1] = scale
    if abs(scale) >= 65520:
        with pytest.raises(BlockError, match=f"^row 1: {field} of a {name} block is .*: not a finite float16"):
            codec(name).repack.apply(rows, 64)
        return
    repacked, inexact = codec(name).repack.apply(rows, 64)
    assert inexact == (float(np.float16(scale)) != scale)
    assert scales_of(TARGETS[name], repacked)[field].reshape(3, 2)[1, 1] == np.float16(scale)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", TARGETS)
def test_scales_that_are_no_numbers_are_refused(name: str, value: float) -> None:
    rows = random_rows(name, 4, COLUMNS)
    scales_of(name, rows)["d"].reshape(4, 3)[2, 1] = value
    with pytest.raises(BlockError, match=rf"^row 2: d of a {name} block is {value}"):
        codec(name).repack.apply(rows, COLUMNS)


def test_a_flushed_scale_counts() -> None:
    rows = random_rows("Q8_0_V1", 1, 32)
    scales_of("Q8_0_V1", rows)["d"][...] = 1e-9
    repacked, inexact = codec("Q8_0_V1").repack.apply(rows, 32)
    assert inexact == 1
    assert not decoded("Q8_0", repacked, 32).any()


@pytest.mark.parametrize("name", ["Q4_0_PLANAR", "Q4_1_V1"])
def test_tiles_leave_no_seam(name: str) -> None:
    columns = 96 * 32
    rows = random_rows(name, TILE_ELEMENTS // columns * 2 + 1, columns)
    whole, inexact = codec(name).repack.apply(rows, columns)
    single = [codec(name).repack.apply(rows[i : i + 1], columns) for i in range(len(rows))]
    assert np.array_equal(whole, np.concatenate([one for one, _ in single]))
    assert inexact == sum(count for _, count in single)
    empty, none = codec(name).repack.apply(rows[:0], columns)
    assert (len(empty), none) == (0, 0)


LATER = [
    ("ggjt1-20230511/q4_1.bin", {3: "Q4_1_V1"}, "ggjt3-20230520/q4_1.bin", {3: "Q4_1"}),
    ("ggjt1-20230511/q5_0.bin", {6: "Q5_0_V1"}, "ggjt3-20230821/q5_0.bin", {6: "Q5_0"}),
    ("ggjt1-20230428/q5_1.bin", {7: "Q5_1_V1"}, "ggjt3-20230821/q5_1.bin", {7: "Q5_1"}),
    ("ggjt1-20230511/q8_0.bin", {8: "Q8_0_V1"}, "ggjt3-20230821/q8_0.bin", {8: "Q8_0"}),
    ("ggjt2-20230519/q4_0.bin", {2: "Q4_0_V2"}, "ggjt3-20230821/q4_0.bin", {2: "Q4_0"}),
]
"""The same weights, quantized by llama.cpp before and after the layout changed."""


@pytest.mark.parametrize(("old", "old_codes", "new", "new_codes"), LATER)
def test_repacked_files_are_what_the_later_quantizer_wrote(
    old: str, old_codes: dict[int, str], new: str, new_codes: dict[int, str], fixtures: Path, llama_tensors
) -> None:
    plain, compared = {0: "F32"}, 0
    before = llama_tensors(fixtures / "legacy-llama" / old, plain | old_codes)
    after = llama_tensors(fixtures / "legacy-llama" / new, plain | new_codes)
    for (code, rows, columns), (_, expected, _) in zip(before, after, strict=True):
        if code in old_codes:
            repacked, _ = codec(old_codes[code]).repack.apply(rows, columns)
            assert np.array_equal(repacked, expected)
            compared += 1
    assert compared == 16


@pytest.mark.parametrize(
    ("planar", "codes", "interleaved", "later"),
    [
        ("ggml-20230310-planar/q4_0.bin", {2: "Q4_0_PLANAR"}, "ggml-20230320/q4_0.bin", {2: "Q4_0_V1"}),
        ("ggml-20230315/q4_1.bin", {3: "Q4_1_PLANAR"}, "ggmf1-20230330/q4_1.bin", {3: "Q4_1_V1"}),
    ],
)
def test_planar_and_interleaved_files_of_the_same_weights_become_the_same(
    planar: str, codes: dict[int, str], interleaved: str, later: dict[int, str], fixtures: Path, llama_tensors
) -> None:
    files = ((planar, codes), (interleaved, later))
    walks = [llama_tensors(fixtures / "legacy-llama" / file, {0: "F32"} | names) for file, names in files]
    for (code, one, columns), (_, other, _) in zip(*walks, strict=True):
        if code:
            first, second = (
                codec(codes[code]).repack.apply(one, columns),
                codec(later[code]).repack.apply(other, columns),
            )
            assert np.array_equal(first[0], second[0])
            assert first[1] == second[1] > 0


def test_q4_0_of_f16_weights_after_25_april_loses_nothing(fixtures: Path, llama_tensors) -> None:
    """d = (an f16 weight) / −8 is a float16: the repacked file decodes to the very same values."""
    file = fixtures / "legacy-llama/ggjt1-20230428/q4_0.bin"
    for code, rows, columns in llama_tensors(file, {0: "F32", 2: "Q4_0_V1"}):
        if code == 2:
            repacked, inexact = codec("Q4_0_V1").repack.apply(rows, columns)
            assert inexact == 0
            assert np.array_equal(decoded("Q4_0", repacked, columns), decoded("Q4_0_V1", rows, columns))
