"""Annotated hex dumps of headers: offset, bytes, name, value, meaning; from the tables that the readers read by."""

from __future__ import annotations

import json
from collections.abc import Iterator

from ggferry.converters.model_graph.open_checkpoint import header_layouts
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import UnsupportedError
from ggferry.formats.fields import Cursor, size_of
from ggferry.formats.files.sources import Source
from ggferry.formats.gguf.values import COUNT_CODES, NUMBER_CODES, ValueType
from ggferry.formats.readers.gguf import COUNTS
from ggferry.quant.codec import types_by_id

ITEMS = 4
"""Items of an array that are shown; the rest is one line."""
SHOWN = 48  # bytes of a text


def hex_lines(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield the lines of a dump of every file's header.

    Raises UnsupportedError for a container of which no table describes the bytes, TruncatedError.
    """
    for source in checkpoint.files:
        if len(checkpoint.files) > 1:
            yield f"{source.path}:"
        if checkpoint.container == "gguf":
            yield from _gguf(source, checkpoint.big_endian)
        elif checkpoint.container == "safetensors":
            yield from _safetensors(source)
        elif checkpoint.layout is not None and checkpoint.header:
            yield from _legacy(source, checkpoint)
        else:
            raise UnsupportedError(
                "--hex knows GGUF, safetensors and the GGML era", path=source.path, found=checkpoint.container
            )


def _line(at: int, raw: bytes, name: str, value: object, meaning: str = "") -> str:
    shown = raw.hex(" ") if len(raw) <= 8 else f"{raw[:7].hex(' ')} …"
    return f"{at:#010x}  {shown:<23}  {name:<16}  {value!s:<12}  {meaning}".rstrip()


def _legacy(source: Source, checkpoint: Checkpoint) -> Iterator[str]:
    layout = next(each for each in header_layouts() if each.name == checkpoint.layout)
    begin = 4 if checkpoint.container == "ggml" else 8
    yield _line(0, source.read(0, 4), "magic", repr(source.read(0, 4)[::-1].decode("latin-1")), checkpoint.container)
    if begin == 8:
        yield _line(4, source.read(4, 4), "version", int.from_bytes(source.read(4, 4), "little"))
    size = min(layout.header.size, source.size - begin)
    yield from layout.header.explain(source.read(begin, size), begin).splitlines()
    yield f"{begin + size:#010x}  the vocabulary and the tensors follow (--tensors)"


def _safetensors(source: Source) -> Iterator[str]:
    cursor = Cursor(source)
    length = int(cursor.number("u64", "length of the header"))
    yield _line(0, source.read(0, 8), "header_length", length, "u64: bytes of JSON that follow")
    raw = source.read(8, min(length, source.size - 8))
    try:
        entries = json.loads(raw)
    except (ValueError, RecursionError):
        entries = {}
    for name, entry in entries.items() if isinstance(entries, dict) else ():
        key = json.dumps(name).encode()
        at = raw.find(key)
        yield _line(8 + max(at, 0), key, "entry", _text(name), json.dumps(entry)[:SHOWN])
    yield f"{8 + length:#010x}  the data of the tensors"


def _gguf(source: Source, big_endian: bool) -> Iterator[str]:
    dump = _Gguf(source, big_endian)
    yield from dump.start()
    for number in range(dump.keys):
        yield from dump.key(number)
    for number in range(dump.tensors):
        yield from dump.tensor(number)
    yield f"{dump.cursor.offset:#010x}  padding, then the data of the tensors"


class _Gguf:
    """Walks a GGUF header that the reader has accepted."""

    def __init__(self, source: Source, big_endian: bool) -> None:
        order = "big" if big_endian else "little"
        self.source, self.big = source, big_endian
        self.version = int.from_bytes(source.read(4, 4), "big" if big_endian else "little")
        self.order, self.code = order, COUNT_CODES[self.version]
        self.cursor = Cursor(source, 8, big_endian)
        self.keys = self.tensors = 0

    def start(self) -> Iterator[str]:
        yield _line(0, self.source.read(0, 4), "magic", "'GGUF'")
        yield _line(4, self.source.read(4, 4), "version", self.version, f"{self.order}-endian")
        table = COUNTS[self.version]
        yield from table.explain(self.source.read(8, table.size), 8, self.big).splitlines()
        counts = table.read(self.cursor)
        self.keys, self.tensors = int(counts["metadata_kv_count"]), int(counts["tensor_count"])

    def number(self, code: str, name: str, meaning: str = "") -> tuple[int | float, str]:
        at = self.cursor.offset
        value = self.cursor.number(code, name)
        raw = self.source.read(at, size_of(code))
        return value, _line(at, raw, name, value, f"{code}{': ' if meaning else ''}{meaning}")

    def text(self, name: str, meaning: str = "") -> Iterator[str]:
        length, line = self.number(self.code, f"{name}: length", "bytes of text that follow")
        yield line
        at = self.cursor.offset
        raw = self.source.read(at, min(int(length), SHOWN))
        self.cursor.skip(int(length), name)
        more = f"… and {int(length) - SHOWN:,} bytes more" if length > SHOWN else meaning
        yield _line(at, raw, name, _text(raw.decode("utf-8", "replace")), more)

    def key(self, number: int) -> Iterator[str]:
        yield from self.text(f"key {number}")
        kind, line = self.number("u32", "type")
        yield f"{line}, {ValueType(int(kind)).name}"
        yield from self.value(ValueType(int(kind)))

    def value(self, kind: ValueType) -> Iterator[str]:
        if kind is ValueType.STRING:
            yield from self.text("value")
        elif kind is ValueType.ARRAY:
            yield from self.array()
        else:
            yield self.number(NUMBER_CODES.get(kind, "u8"), "value")[1]

    def array(self) -> Iterator[str]:
        kind, line = self.number("u32", "type of the items")
        yield f"{line}, {ValueType(int(kind)).name}"
        count, line = self.number(self.code, "number of items")
        yield line
        for _ in range(min(int(count), ITEMS)):
            yield from self.value(ValueType(int(kind)))
        left = int(count) - ITEMS
        if left > 0:
            at = self.cursor.offset
            self.skip(ValueType(int(kind)), left)
            yield f"{at:#010x}  … {left:,} items more, {self.cursor.offset - at:,} bytes"

    def skip(self, kind: ValueType, count: int) -> None:
        if kind is ValueType.STRING:
            left = self.cursor.remaining
            self.cursor.string_run(count, self.code, "an item", left, left)
        elif kind is ValueType.ARRAY:
            for _ in range(count):
                inner = ValueType(int(self.cursor.number("u32", "type")))
                self.skip(inner, int(self.cursor.number(self.code, "count")))
        else:
            self.cursor.skip(count * size_of(NUMBER_CODES.get(kind, "u8")), "items")

    def tensor(self, number: int) -> Iterator[str]:
        yield from self.text(f"tensor {number}")
        axes, line = self.number("u32", "axes")
        yield line
        for axis in range(int(axes)):
            yield self.number(self.code, f"ne[{axis}]", "innermost first")[1]
        kind, line = self.number("u32", "type")
        yield f"{line}, {types_by_id()[int(kind)].name}"
        yield self.number("u64", "offset", "from the start of the data")[1]


def _text(text: str) -> str:
    return repr(text[:SHOWN])
