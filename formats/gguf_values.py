"""Typed metadata values of GGUF: what the reader yields, the converters make and the writer packs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any


class ValueType(IntEnum):
    """gguf_metadata_value_type of the specification."""

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


@dataclass(frozen=True, slots=True)
class Value:
    """One metadata value.

    `data` is an int, float, bool or str; for ARRAY a tuple of plain items of type `items`, or of `Value`s when
    `items` is ARRAY itself. Strings that are not UTF-8 are kept byte for byte through surrogate escapes.
    """

    type: ValueType
    data: Any
    items: ValueType | None = None


def u32(value: int) -> Value:
    return Value(ValueType.UINT32, int(value))


def f32(value: float) -> Value:
    return Value(ValueType.FLOAT32, float(value))


def boolean(value: bool) -> Value:
    return Value(ValueType.BOOL, bool(value))


def string(value: str) -> Value:
    return Value(ValueType.STRING, value)


def array(items: ValueType, data: Sequence[Any]) -> Value:
    return Value(ValueType.ARRAY, tuple(data), items)
