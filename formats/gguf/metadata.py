"""Read the metadata of a GGUF file: keys and typed values, each within the caps of `formats.limits`."""

from __future__ import annotations

import re

from ggferry.formats import limits
from ggferry.formats.errors import DuplicateError, EncodingError, OutOfRangeError
from ggferry.formats.fields import Cursor, size_of
from ggferry.formats.gguf.packed_values import Flags, Numbers, Text, Texts, is_utf8
from ggferry.formats.gguf.values import KEY_PATTERN, NUMBER_CODES, Value, ValueType

LONG = 1 << 14  # bytes of a text that stays packed: chat templates are shorter, a tokenizer.json is not

_KEY = re.compile(KEY_PATTERN)


class MetadataReader:
    """Read keys and values with the file's cursor; counts and lengths are numbers of `count_code`.

    Attributes:
        offsets: Byte at which each key begins.
        notes: What a user should know.
        undecodable: Keys of texts that are not UTF-8.
        mixed_case: Keys that are not in lower case.
    """

    def __init__(self, cursor: Cursor, count_code: str) -> None:
        self.cursor, self.count_code = cursor, count_code
        self.offsets: dict[str, int] = {}
        self.notes: list[str] = []
        self.undecodable: list[str] = []
        self.mixed_case: list[str] = []
        self.nested = 0

    def read(self, count: int) -> dict[str, Value]:
        """Return `count` keys and their values; the cursor is at the first key."""
        self.cursor.require(count * (size_of(self.count_code) + 1 + 4 + 1), f"{count} metadata keys")
        found: dict[str, Value] = {}
        for _ in range(count):
            at = self.cursor.offset
            key = self.key()
            if key in found:
                raise self.cursor.error(DuplicateError, f"metadata key {key!r} a second time", at)
            self.offsets[key] = at
            found[key] = self.value(key, self.value_type(f"type of {key!r}"))
        return found

    def key(self) -> str:
        cursor = self.cursor
        at = cursor.offset
        size = cursor.integer(self.count_code, "length of a metadata key", 1, limits.MAX_KEY)
        raw = self.take(size, "a metadata key")
        key = raw.decode("ascii", "replace")
        if not _KEY.fullmatch(key):
            raise cursor.error(EncodingError, "metadata key", at, found=raw, expected="lower_snake_case.parts in ASCII")
        if key != key.lower():
            self.mixed_case.append(key)
        return key

    def value_type(self, what: str) -> ValueType:
        at = self.cursor.offset
        number = self.cursor.integer("u32", what)
        try:
            return ValueType(number)
        except ValueError:
            raise self.cursor.error(OutOfRangeError, what, at, found=number, expected="0..12") from None

    def value(self, key: str, kind: ValueType, depth: int = 0) -> Value:
        cursor = self.cursor
        if kind in NUMBER_CODES:
            return Value(kind, cursor.number(NUMBER_CODES[kind], f"value of {key!r}"))
        if kind is ValueType.BOOL:
            return Value(kind, self.flags(key, 1).all()[0])
        if kind is ValueType.STRING:
            return Value(kind, self.text(key))
        if depth == limits.MAX_ARRAY_DEPTH:
            raise cursor.error(OutOfRangeError, f"nesting of arrays in {key!r}", found=depth + 1, expected=f"≤ {depth}")
        return self.array_of(key, depth + 1)

    def array_of(self, key: str, depth: int) -> Value:
        cursor = self.cursor
        items = self.value_type(f"element type of {key!r}")
        count = cursor.integer(self.count_code, f"length of {key!r}", 0, limits.MAX_ARRAY)
        if items in NUMBER_CODES:
            code = NUMBER_CODES[items]
            raw = self.take(count * size_of(code), f"elements of {key!r}")
            return Value(ValueType.ARRAY, Numbers(raw, code, cursor.big_endian), items)
        if items is ValueType.BOOL:
            return Value(ValueType.ARRAY, self.flags(key, count), items)
        if items is ValueType.STRING:
            return Value(ValueType.ARRAY, self.texts(key, count), items)
        return Value(ValueType.ARRAY, self.arrays(key, count, depth), items)

    def arrays(self, key: str, count: int, depth: int) -> tuple[Value, ...]:
        if depth == 1:
            self.notes.append(f"{key!r} is an array of arrays: the specification allows it, llama.cpp refuses it")
        self.cursor.require(count * (4 + size_of(self.count_code)), f"elements of {key!r}")
        self.nested += count
        if self.nested > limits.MAX_NESTED:
            limit = f"≤ {limits.MAX_NESTED} in a file"
            raise self.cursor.error(OutOfRangeError, f"arrays in {key!r}", found=self.nested, expected=limit)
        return tuple([self.value(key, ValueType.ARRAY, depth) for _ in range(count)])

    def take(self, size: int, what: str) -> bytes:
        """Return the next `size` bytes, if they may still belong to a header.

        Raises OutOfRangeError, TruncatedError.
        """
        found, limit = self.cursor.offset + size, limits.MAX_GGUF_HEADER
        if found > limit:
            self.cursor.require(size, what)
            raise self.cursor.error(
                OutOfRangeError, f"size of the header, with {what}", found=found, expected=f"≤ {limit}"
            )
        return self.cursor.take(size, what)

    def flags(self, key: str, count: int) -> Flags:
        at = self.cursor.offset
        raw = self.take(count, f"value of {key!r}")
        if raw.translate(None, b"\0\1"):
            index = next(i for i, byte in enumerate(raw) if byte > 1)
            raise self.cursor.error(
                OutOfRangeError, f"boolean in {key!r}", at + index, found=raw[index], expected="0 or 1"
            )
        return Flags(raw)

    def text(self, key: str) -> str | Text:
        """Return a string, packed if it is long."""
        what = f"value of {key!r}"
        size = self.cursor.integer(self.count_code, f"length of {what}", 0, limits.MAX_STRING)
        raw = self.take(size, what)
        if not is_utf8(raw):
            self.undecodable.append(key)
        return Text(raw) if size > LONG else Text(raw).all()

    def texts(self, key: str, count: int) -> Texts:
        room = limits.MAX_GGUF_HEADER - self.cursor.offset
        raw, short = self.cursor.string_run(count, self.count_code, f"element of {key!r}", limits.MAX_STRING, room)
        found = Texts(raw, count, self.count_code, self.cursor.big_endian)
        if not found.are_utf8(short):
            self.undecodable.append(key)
        return found
