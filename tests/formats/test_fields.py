"""The cursor and the struct tables against Python's struct module and against cuts at every byte."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggferry.formats.errors import MissingError, OutOfRangeError, TableError, TruncatedError, UsageError
from ggferry.formats.fields import CODES, Cursor, Struct


class Bytes:
    """A Source over bytes that remembers how much was asked for."""

    path = "memory.bin"

    def __init__(self, data: bytes) -> None:
        self.data, self.size, self.reads = data, len(data), []

    def read(self, offset: int, size: int) -> bytes:
        assert 0 <= offset <= offset + size <= self.size
        self.reads.append(size)
        return self.data[offset : offset + size]

    def read_into(self, offset: int, buffer: memoryview) -> None:
        buffer[:] = self.read(offset, len(buffer))

    def close(self) -> None:
        pass


HEADER = Struct(
    "header",
    """
    magic    bytes[4]            four letters
    # the int32 fields
    n_vocab  i32  1..MAX_VOCAB   tokens
    n_embd   i32  1..0x1000    width
    ftype    u32                 type of most tensors
    scale    f32  0.5..2.5       a factor
    far      i64  ..-1           always negative
    """,
)
VALUES = {"magic": b"abcd", "n_vocab": 32000, "n_embd": 4096, "ftype": 2, "scale": 1.5, "far": -9}


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("code", CODES)
def test_number_agrees_with_struct(code: str, big: bool) -> None:
    form = (">" if big else "<") + CODES[code]
    data = bytes(range(200, 200 + struct.calcsize(form)))
    cursor = Cursor(Bytes(b"xx" + data * 3), 2, big)
    assert cursor.number(code, "n") == struct.unpack(form, data)[0]
    assert cursor.numbers(code, 2, "n") == struct.unpack(form[0] + 2 * form[1], data * 2)
    assert cursor.remaining == 0 and cursor.offset == 2 + 3 * len(data)


def test_truncation_names_path_offset_and_field() -> None:
    cursor = Cursor(Bytes(b"\1\0\0\0\7"))
    assert cursor.number("u32", "count") == 1
    with pytest.raises(TruncatedError) as caught:
        cursor.number("u64", "length")
    assert caught.value.path == "memory.bin" and caught.value.offset == 4 and "length" in str(caught.value)
    assert cursor.take(1, "rest") == b"\7"


def test_sizes_are_checked_before_anything_is_read() -> None:
    source = Bytes(bytes(10))
    cursor = Cursor(source)
    for ask in (lambda: cursor.take(1 << 62, "data"), lambda: cursor.numbers("u64", 1 << 60, "array")):
        with pytest.raises(TruncatedError):
            ask()
    with pytest.raises(TruncatedError):
        cursor.strings(1 << 60, "u64", "token", 10)
    with pytest.raises(TruncatedError):
        cursor.skip(11, "data")
    with pytest.raises(OutOfRangeError):
        cursor.take(-1, "data")
    assert source.reads == []


def test_a_sequential_reader_holds_windows_not_the_file() -> None:
    source = Bytes(bytes(40 << 20))
    cursor = Cursor(source)
    while cursor.remaining:
        cursor.take(min(777, cursor.remaining), "piece")
    assert max(source.reads) <= 4 << 20 and sum(source.reads) == source.size
    skipping = Bytes(bytes(40 << 20))
    cursor = Cursor(skipping)
    cursor.number("u8", "first")
    cursor.skip((40 << 20) - 2, "tensor data")
    assert cursor.take(1, "last") == b"\0" and sum(skipping.reads) <= 1 << 17


def test_end_bounds_the_cursor() -> None:
    cursor = Cursor(Bytes(b"abcdef"), 1, end=3)
    assert cursor.take(2, "piece") == b"bc"
    with pytest.raises(TruncatedError):
        cursor.take(1, "piece")


@given(
    st.lists(st.tuples(st.binary(max_size=40), st.integers(-128, 127)), max_size=50), st.integers(1, 64), st.booleans()
)
def test_strings_of_any_size_over_any_window_edge(items: list[tuple[bytes, int]], window: int, big: bool) -> None:
    mark = ">" if big else "<"
    plain = b"".join(struct.pack(f"{mark}I", len(s)) + s for s, _ in items)
    scored = b"".join(struct.pack(f"{mark}I", len(s)) + s + struct.pack("b", n) for s, n in items)
    cursor = Cursor(Bytes(plain + scored), big_endian=big)
    cursor._window = window
    assert cursor.strings(len(items), "u32", "token", 40) == [s for s, _ in items]
    cursor._window = window
    assert cursor.strings_with(len(items), "u32", "i8", "token", 40) == ([s for s, _ in items], [n for _, n in items])
    assert cursor.remaining == 0


def test_a_string_beyond_its_limit_names_its_index_and_offset() -> None:
    data = struct.pack("<I3sI", 3, b"abc", 99) + bytes(99)
    with pytest.raises(OutOfRangeError) as caught:
        Cursor(Bytes(data)).strings(2, "u32", "token", 50)
    assert (caught.value.offset, caught.value.found, caught.value.expected) == (7, 99, "0..50")
    assert "token 1" in caught.value.message
    with pytest.raises(TruncatedError, match="token 1"):
        Cursor(Bytes(data[:-1])).strings(2, "u32", "token", 100)


@pytest.mark.parametrize("big", [False, True])
def test_struct_writes_what_it_reads(big: bool) -> None:
    data = HEADER.pack(VALUES, big)
    assert data == struct.pack(f"{'>' if big else '<'}4siiIfq", *VALUES.values())
    assert len(data) == HEADER.size == 28
    assert HEADER.read(Cursor(Bytes(data), big_endian=big)) == VALUES


def test_struct_cut_at_every_byte() -> None:
    data = HEADER.pack(VALUES)
    for size in range(len(data)):
        with pytest.raises(TruncatedError, match="header"):
            HEADER.read(Cursor(Bytes(data[:size])))


@pytest.mark.parametrize(
    ("name", "value", "offset"),
    [
        ("n_vocab", 0, 4),
        ("n_vocab", (1 << 22) + 1, 4),
        ("n_embd", 4097, 8),
        ("scale", 2.75, 16),
        ("scale", float("nan"), 16),
        ("far", 0, 20),
    ],
)
def test_a_value_outside_its_range_is_refused_both_ways(name: str, value: float, offset: int) -> None:
    with pytest.raises(OutOfRangeError) as caught:
        HEADER.pack({**VALUES, name: value})
    assert caught.value.offset == offset and name in str(caught.value)
    data = struct.pack("<4siiIfq", *{**VALUES, name: value}.values())
    with pytest.raises(OutOfRangeError) as caught:
        HEADER.read(Cursor(Bytes(b"zz" + data), 2))
    assert (caught.value.path, caught.value.offset) == ("memory.bin", offset + 2)
    assert caught.value.expected and name in str(caught.value)
    assert "!" in HEADER.explain(data)


def test_pack_refuses_what_the_table_does_not_hold() -> None:
    with pytest.raises(UsageError, match="n_head"):
        HEADER.pack({**VALUES, "n_head": 1})
    with pytest.raises(MissingError, match="ftype"):
        HEADER.pack({k: v for k, v in VALUES.items() if k != "ftype"})
    with pytest.raises(OutOfRangeError, match="ftype"):
        HEADER.pack({**VALUES, "ftype": 1 << 32})
    with pytest.raises(OutOfRangeError, match="magic"):
        HEADER.pack({**VALUES, "magic": b"abc"})


def test_explain_shows_offset_hex_name_value() -> None:
    lines = HEADER.explain(HEADER.pack(VALUES), 0x100).splitlines()
    assert len(lines) == len(HEADER.members)
    assert lines[1].split()[:6] == ["0x00000104", "00", "7d", "00", "00", "n_vocab"]
    assert "32000" in lines[1] and lines[1].endswith("tokens")
    assert "2 of 4 bytes missing" in HEADER.explain(b"abcd\1\2")


LINES = {
    "a i33 x": "i33",
    "a bytes[0] x": "bytes[0]",
    "a bytes[x] x": "bytes[x]",
    "a bytes[4] 1..2 x": "1..2",
    "a i32 1..NOT_A_LIMIT": "NOT_A_LIMIT",
    "a i32 1..x": "x",
    "a i32 9..1": "9..1",
    "a i32 1.9 x": "1.9",
    "a i32 [1..9] x": "[1",
    "a i32\na i32": "a",
    "a-b i32": "a-b",
    "a": "",
}


@pytest.mark.parametrize("line", LINES)
def test_a_bad_table_fails_when_it_is_written(line: str) -> None:
    with pytest.raises(TableError) as caught:
        Struct("bad", line)
    assert caught.value.found == LINES[line] and str(caught.value.path).startswith(f"{__file__}:")
