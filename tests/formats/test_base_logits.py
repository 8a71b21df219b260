"""Files of a base's predictions: what is written is read, and every byte that is wrong is named."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggferry.formats.base_logits import BaseLogits, pack, unpack, write_head
from ggferry.formats.errors import (
    BadValueError,
    GgferryError,
    OutOfRangeError,
    TrailingBytesError,
    TruncatedError,
    UnknownFormatError,
)

CONTEXT, CHUNKS = 8, 2
TOKENS = [1, 2, 3, 4, 0, 4, 3, 2, 1, 0, 2, 4, 1, 3, 0, 2]


def whole(vocabulary: int = 5) -> bytes:
    file = io.BytesIO()
    write_head(file, CONTEXT, vocabulary, TOKENS)
    for number in range(CHUNKS):
        logits = np.random.default_rng(number).normal(0, 9, (3, vocabulary)).astype(np.float32)
        file.write(pack(logits).tobytes())
    return file.getvalue()


@pytest.mark.parametrize("vocabulary", [5, 6])
def test_what_is_written_is_read(vocabulary: int, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(whole(vocabulary))
    with BaseLogits(str(tmp_path / "a")) as file:
        found = (file.context, file.vocabulary, file.chunks, file.rows, file.tokens)
        assert found == (CONTEXT, vocabulary, CHUNKS, 3, TOKENS)
        for number in range(CHUNKS):
            logits = np.random.default_rng(number).normal(0, 9, (3, vocabulary))
            shifted = logits - logits.max(1, keepdims=True)
            expected = np.maximum(shifted, -16) - np.log(np.exp(shifted).sum(1, keepdims=True))
            assert np.abs(unpack(file.chunk(number), vocabulary) - expected).max() < 16 / 65535
            assert (unpack(file.chunk(number), vocabulary).argmax(1) == logits.argmax(1)).all()


def test_rows_without_any_difference_have_no_scale() -> None:
    packed = pack(np.full((1, 4), 3, np.float32))
    assert np.allclose(unpack(packed, 4), -np.log(4)) and not packed[:, 4:].any()


def changed(at: int, form: str, *values: float) -> bytes:
    data = bytearray(whole())
    struct.pack_into(form, data, at, *values)
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (b"", UnknownFormatError, "base logits"),
        (b"_logitz_" + whole()[8:], UnknownFormatError, "base logits"),
        (changed(8, "<i", 0), OutOfRangeError, "tokens of a chunk"),
        (changed(8, "<i", 1 << 30), OutOfRangeError, "tokens of a chunk"),
        (changed(12, "<i", -5), OutOfRangeError, "vocabulary"),
        (changed(16, "<i", 0), OutOfRangeError, "chunks"),
        (changed(16, "<i", (1 << 31) - 1), TruncatedError, "chunks of 8 tokens"),
        (changed(20, "<i", 5), OutOfRangeError, "token 0"),
        (whole()[:-1], TruncatedError, "chunks of 8 tokens"),
        (whole() + b"\0", TrailingBytesError, "last chunk"),
    ],
)
def test_a_wrong_head_is_named(data: bytes, error: type[Exception], words: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(error, match=words):
        BaseLogits(str(tmp_path / "a"))


@pytest.mark.parametrize("numbers", [(np.nan, 0), (np.inf, 0), (-1e-4, 0), (1, 0), (1e-4, -np.inf)])
def test_a_scale_that_no_logits_give_is_named(numbers: tuple[float, float], tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(changed(20 + 4 * len(TOKENS), "<2f", *numbers))
    with BaseLogits(str(tmp_path / "a")) as file, pytest.raises(BadValueError, match="row 0 of chunk 0"):
        file.chunk(0)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(whole()) - 1), st.integers(0, 255))
def test_any_byte_ends_in_an_error_of_ours_or_in_finite_numbers(at: int, value: int) -> None:
    import tempfile

    data = bytearray(whole())
    data[at] = value
    with tempfile.NamedTemporaryFile() as named:
        named.write(bytes(data))
        named.flush()
        try:
            with BaseLogits(named.name) as file:
                for number in range(file.chunks):
                    assert np.isfinite(unpack(file.chunk(number), file.vocabulary)).all()
        except GgferryError:
            pass
