"""Typed metadata values of GGUF: the reader returns them, the converters create them, the writer packs them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from ggferry.formats.gguf.packed_values import PACKED, Text

MAX_CHARACTER = 4  # bytes in UTF-8


class ValueType(IntEnum):
    """The gguf_metadata_value_type of the specification."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A metadata value.

    What a reader found may be packed (`formats.gguf.packed_values`): `data` unpacks it, once; `first` and `len` do not.

    Attributes:
        type: Its type in GGUF.
        data: An int, float, bool or str; for ARRAY a tuple of plain items of type `items`, or of `Value`s when `items`
            is ARRAY itself. Strings that are not UTF-8 are kept byte for byte by surrogate escapes.
        items: For ARRAY, the type of the items.
    """

    type: ValueType
    data: Any
    items: ValueType | None = None
    _packed: Any = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.data, PACKED):
            object.__setattr__(self, "_packed", self.data)
            object.__delattr__(self, "data")

    def __getattr__(self, name: str) -> Any:
        """Unpack `data`: Python calls this while the attribute is missing."""
        if name != "data":
            raise AttributeError(name)
        object.__setattr__(self, "data", self._packed.all())
        object.__setattr__(self, "_packed", None)
        return self.data

    def first(self, count: int) -> Any:
        """Return the first `count` items of an array; for a text, at least that many characters, if it has them."""
        if self._packed is None:
            return self.data[:count]
        return self._packed.first(MAX_CHARACTER * count if isinstance(self._packed, Text) else count)

    def __len__(self) -> int:
        """Return how many items an array has."""
        return len(self.data if self._packed is None else self._packed)

    def __bool__(self) -> bool:
        return True  # an empty array is a value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Value):
            return NotImplemented
        if (self.type, self.items) != (other.type, other.items):
            return False
        return (self._packed is not None and self._packed == other._packed) or bool(self.data == other.data)

    def __hash__(self) -> int:
        return hash((self.type, self.data, self.items))


def u32(value: int) -> Value:
    """Return a UINT32 value."""
    return Value(ValueType.UINT32, int(value))


def f32(value: float) -> Value:
    """Return a FLOAT32 value."""
    return Value(ValueType.FLOAT32, float(value))


def boolean(value: bool) -> Value:
    """Return a BOOL value."""
    return Value(ValueType.BOOL, bool(value))


def string(value: str) -> Value:
    """Return a STRING value."""
    return Value(ValueType.STRING, value)


def array(items: ValueType, data: Iterable[Any]) -> Value:
    """Return an ARRAY value with items of type `items`."""
    return Value(ValueType.ARRAY, tuple(data), items)


def i32(value: int) -> Value:
    """Return an INT32 value."""
    return Value(ValueType.INT32, int(value))


def u16(value: int) -> Value:
    """Return a UINT16 value."""
    return Value(ValueType.UINT16, int(value))


def u64(value: int) -> Value:
    """Return a UINT64 value."""
    return Value(ValueType.UINT64, int(value))


NUMBER_CODES = {
    ValueType.UINT8: "u8",
    ValueType.UINT16: "u16",
    ValueType.UINT32: "u32",
    ValueType.UINT64: "u64",
    ValueType.INT8: "i8",
    ValueType.INT16: "i16",
    ValueType.INT32: "i32",
    ValueType.INT64: "i64",
    ValueType.FLOAT32: "f32",
    ValueType.FLOAT64: "f64",
}
"""The value types that are plain numbers, as `formats.fields` codes."""
TYPE_NAMES = NUMBER_CODES | {ValueType.BOOL: "bool", ValueType.STRING: "str"}
"""Value types but arrays, as people write and read them; `[u32]` is an array."""

KEY_PATTERN = r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*"
"""Metadata keys that are read and written.

The specification wants lower_snake_case segments joined by dots. Keys of current architectures contain hyphens
(`gpt-oss.block_count`), and gguf-py keeps the upper case of chat template names (`tokenizer.chat_template.{name}`).
"""

DEFAULT_ALIGNMENT = 32
"""GGUF_DEFAULT_ALIGNMENT: the alignment where `general.alignment` is absent."""
ALIGNMENT_KEY = "general.alignment"

COUNT_CODES = {1: "u32", 2: "u64", 3: "u64"}
"""The type of every count, length and dimension by GGUF version; llama.cpp #2821 widened them in v2.

Tensor offsets are u64 and type numbers u32 in all three versions.
"""


def is_alignment(value: int) -> bool:
    """Return whether tensor data may be aligned to `value` bytes.

    The specification allows multiples of 8, ggml powers of two.
    """
    return value > 0 and (value % 8 == 0 or value & (value - 1) == 0)


def align(offset: int, alignment: int) -> int:
    """Return the next multiple of `alignment` at or after `offset`."""
    return -(-offset // alignment) * alignment
