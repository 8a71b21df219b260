"""Arrays of zarr, version 2, in a store: their descriptions, and the boxes that their chunks are.

Source: Zarr storage specification version 2 (zarr-specs, `docs/v2/v2.0.rst`), and tensorstore's driver `zarr` for
bfloat16. Chunks that go beyond the array are whole all the same.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, NamedTuple

from ggferry.formats.errors import (
    CorruptError,
    EncodingError,
    MissingError,
    OutOfRangeError,
    UnsupportedError,
    UnsupportedTypeError,
)
from ggferry.formats.limits import MAX_DIM, MAX_PIECES, MAX_RANK
from ggferry.quant.codec import block_type
from ggferry.quant.types import BlockType

DESCRIPTION, LATER = "/.zarray", "/zarr.json"
MAX_DESCRIPTION = 1 << 16  # bytes; orbax writes two hundred
_TYPES = {
    "bfloat16": "BF16",
    "<f2": "F16",
    "<f4": "F32",
    "<f8": "F64",
    "|i1": "I8",
    "<i2": "I16",
    "<i4": "I32",
    "<i8": "I64",
    "|u1": "U8",
    "<u2": "U16",
    "<u4": "U32",
    "<u8": "U64",
}


class Chunk(NamedTuple):
    """A box of an array: the key of its value, where it begins, and what of it is inside the array."""

    key: str
    at: tuple[int, ...]
    shape: tuple[int, ...]


class Array(NamedTuple):
    """An array: its type and shape, the shape of every chunk, and whether zstd compressed these."""

    name: str
    type: BlockType
    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    compressed: bool
    separator: str

    @property
    def chunk_bytes(self) -> int:
        """Bytes of an expanded chunk."""
        return prod(self.chunk) * self.type.block_bytes

    def chunks(self) -> Iterator[Chunk]:
        """Yield the chunks in the order of the array."""
        counts = [-(-size // step) for size, step in zip(self.shape, self.chunk, strict=True)]
        for place in itertools.product(*map(range, counts)):
            at = tuple(number * step for number, step in zip(place, self.chunk, strict=True))
            shape = tuple(min(step, size - begin) for step, size, begin in zip(self.chunk, self.shape, at, strict=True))
            yield Chunk(f"{self.name}/{self.separator.join(map(str, place)) or '0'}", at, shape)


def read_array(name: str, text: bytes, path: str) -> Array:
    """Return the array that a description says.

    Raises EncodingError, MissingError, OutOfRangeError, UnsupportedTypeError, and UnsupportedError for other
    compressions, filters and orders.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise EncodingError(f"description of {name!r} is no JSON", path=path) from None
    if not isinstance(found, dict):
        raise CorruptError(f"description of {name!r}", path=path, found=type(found).__name__)
    if found.get("zarr_format") != 2:
        raise UnsupportedError("zarr of another version", path=path, found=found.get("zarr_format"), expected=2)
    if found.get("order", "C") != "C" or found.get("filters"):
        raise UnsupportedError(f"filters or the order of {name!r}", path=path, found=found.get("order"))
    shape, chunk = (_sizes(found, key, name, path) for key in ("shape", "chunks"))
    if len(shape) != len(chunk) or 0 in chunk:
        raise OutOfRangeError(f"chunks of {name!r}", path=path, found=chunk)
    count = prod(-(-size // step) for size, step in zip(shape, chunk, strict=True))
    if count > MAX_PIECES:
        raise OutOfRangeError(f"number of chunks of {name!r}", path=path, found=count, expected=f"≤ {MAX_PIECES}")
    kind = found.get("dtype")
    if not isinstance(kind, str) or kind not in _TYPES:
        raise UnsupportedTypeError(f"type of {name!r}", path=path, found=kind)
    separator = found.get("dimension_separator", ".")
    if separator not in (".", "/"):
        raise CorruptError(f"names of the chunks of {name!r}", path=path, found=separator)
    return Array(name, block_type(_TYPES[kind]), shape, chunk, _is_compressed(found, name, path), separator)


def _is_compressed(found: Mapping[str, Any], name: str, path: str) -> bool:
    declared = found.get("compressor")
    if declared is None:
        return False
    kind = declared.get("id") if isinstance(declared, dict) else declared
    if kind != "zstd":
        raise UnsupportedError(f"compression of {name!r}", path=path, found=kind, expected="zstd, or none")
    return True


def _sizes(found: Mapping[str, Any], key: str, name: str, path: str) -> tuple[int, ...]:
    value = found.get(key)
    if not isinstance(value, list):
        raise MissingError(f"{key} of {name!r}", path=path)
    if len(value) > MAX_RANK or any(type(one) is not int or not 0 <= one <= MAX_DIM for one in value):
        raise OutOfRangeError(f"{key} of {name!r}", path=path, found=value[:8])
    return tuple(value)
