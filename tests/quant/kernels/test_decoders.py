"""Compiled decoders and roundings give the bits of the numpy ones, whatever the bytes are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ggferry.quant.blocks import as_blocks
from ggferry.quant.codec import LLAMA_CPP, Codec, codecs
from ggferry.quant.codecs.packed import unpack_stream
from ggferry.quant.codecs.plain import ENCODE, NARROW
from ggferry.quant.kernels import Compiled

COMPILED = [one for one in codecs().values() if one.compiled is not None]
PLAIN = {"F32", "F64", "I8", "I16", "I32", "I64", "BOOL", "U8", "U16", "U32", "U64", "F8_E8M0"}
"""One conversion of numpy's each."""

HALVES = [0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0xFBFF, 0x3C00, 0xA42D]
ENDLESS_HALVES = [0x7C00, 0xFC00, 0x7C01, 0xFE00, 0x7D55, 0xFFFF]
SINGLES = [0, 0x80000000, 1, 0x807FFFFF, 0x7F7FFFFF, 0xFF7FFFFF, 0x7E000000, 0x3F800000]
ENDLESS_SINGLES = [0x7F800000, 0xFF800000, 0x7F800001, 0xFFC00001, 0x7FABCDEF]


def adversarial(one: Codec, rows: int, columns: int, endless: bool) -> np.ndarray:
    """Random bytes whose scales are zeros, subnormals, the largest; with `endless` also infinities and any NaNs."""
    generator = np.random.default_rng(len(one.type.name) + rows)
    data = generator.integers(0, 256, (rows, one.type.row_bytes(columns)), np.uint8)
    for array in as_blocks(one.type, data).values():
        if array.dtype.kind == "f" and array.dtype.itemsize in (2, 4):
            chosen: Any = HALVES if array.dtype.itemsize == 2 else SINGLES
            chosen = chosen + (ENDLESS_HALVES if array.dtype.itemsize == 2 else ENDLESS_SINGLES) * endless
            picks = np.array(chosen, f"<u{array.dtype.itemsize}").view(array.dtype)
            array[...] = picks[generator.integers(0, len(picks), array.shape)]
    return data


def through(one: Codec, rows: np.ndarray, columns: int, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """What `Codec.values` gives once the kernel is there."""
    assert one.compiled is not None
    run = one.compiled.load()
    monkeypatch.setattr(Compiled, "after", lambda self, elements: run)
    return one.values(rows, columns)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("one", COMPILED, ids=lambda one: one.type.name)
def test_every_bit_is_the_reference_s(one: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = 3 * max(one.type.elements, 16) if one.type.elements > 1 else 37
    for endless in (False, True):
        rows = adversarial(one, 90, columns, endless)
        rows.setflags(write=False)
        assert through(one, rows, columns, monkeypatch).tobytes() == one.decode(rows, columns).tobytes()
    noise = np.random.default_rng(5).integers(0, 256, (60, one.type.row_bytes(columns)), np.uint8)
    for row in noise:
        assert through(one, row[None], columns, monkeypatch).tobytes() == one.decode(row[None], columns).tobytes()
    assert through(one, noise[:0], columns, monkeypatch).shape == (0, columns)


@pytest.mark.parametrize("one", COMPILED, ids=lambda one: one.type.name)
def test_finite_scales_are_decoded_by_the_kernel_itself(one: Codec, blocks: Any) -> None:
    """Else the test above would compare the reference with itself."""
    assert one.compiled is not None
    columns = 4 * max(one.type.elements, 8)
    rows = blocks["finite"](one.type, 8, columns)
    found = np.empty(8 * columns, np.float32)
    assert one.compiled.load()(rows.reshape(-1), found, columns)
    assert found.tobytes() == one.decode(rows, columns).tobytes()


def test_every_block_type_has_one() -> None:
    ours = [one for one in codecs().values() if one.runtime == LLAMA_CPP]
    assert {one.type.name for one in ours if one.compiled is None} == PLAIN


@pytest.mark.parametrize("name", NARROW)
def test_rounding_gives_the_reference_s_bits(name: str) -> None:
    """Every exponent, ties, subnormals, signs, and lengths that are not whole registers."""
    high = np.arange(1 << 16, dtype=np.uint32) << 16
    bits = np.concatenate([high | low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0x1000, 0x3000, 0x2FFF)])
    values = bits.view(np.float32)
    values = values[np.abs(values) < (65520.0 if name == "F16" else float.fromhex("0x1.ffp127"))]
    for some in (values, values[:5], values[7:30], values[:0]):
        found = np.empty(2 * some.size, np.uint8)
        assert NARROW[name].load()(some, found, 0)
        assert found.tobytes() == ENCODE[name](some[None], None).tobytes()
    expected = (
        values.astype(np.float16) if name == "F16" else (values.view(np.uint32) + 0x7FFF + (high_bit(values)) >> 16)
    )
    assert found_all(name, values) == expected.astype(expected.dtype if name == "F16" else np.uint16).tobytes()


def high_bit(values: np.ndarray) -> np.ndarray:
    odd: np.ndarray = values.view(np.uint32) >> 16 & 1
    return odd


def found_all(name: str, values: np.ndarray) -> bytes:
    found = np.empty(2 * values.size, np.uint8)
    NARROW[name].load()(values, found, 0)
    return found.tobytes()


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf, 3.4e38, -3.4e38])
@pytest.mark.parametrize("at", [0, 15, 16, 34])
def test_rounding_leaves_what_has_no_number_to_the_reference(name: str, bad: float, at: int) -> None:
    values = np.ones(35, np.float32)
    values[at] = bad
    assert not NARROW[name].load()(values, np.empty(70, np.uint8), 0)


@pytest.mark.parametrize("bits", range(1, 9))
def test_packed_integers_are_unpacked_alike(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = np.random.default_rng(bits).integers(0, 256, (5, 96), np.uint8)
    count = 96 * 8 // bits - 1
    reference = unpack_stream(packed, bits, count)
    from ggferry.quant.codecs.packed import STREAM

    run = STREAM.load()
    monkeypatch.setattr(Compiled, "after", lambda self, elements: run)
    assert np.array_equal(unpack_stream(packed, bits, count), reference)


def test_a_kernel_that_differs_is_not_used() -> None:
    """A compiler that is wrong on some machine costs time, not values."""
    one = Compiled("ggferry.quant.kernels.decode_simple", "q4_0", agrees=lambda run: False)
    assert one.if_possible() is None
    assert one.after(1 << 40) is None


def test_little_work_loads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Callable[[], None]] = []
    monkeypatch.setattr("ggferry.quant.kernels._in_background", asked.append)
    one = Compiled("ggferry.quant.kernels.decode_simple", "q4_0")
    for _ in range(3):
        assert one.after(1 << 20) is None
    assert not asked
    one.after(1 << 26)
    one.after(1 << 26)
    assert asked == [one.if_possible]
    asked[0]()
    assert one.after(1) is not None
