"""The contract every block type fulfils, and the table of all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from ggferry.quant.types import BlockError, BlockType
from ggferry.support.registry import scan

if TYPE_CHECKING:
    import numpy as np

    Bytes = np.ndarray[Any, np.dtype[np.uint8]]
    Floats = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, slots=True)
class Repack:
    """How blocks of an era become blocks of today's `target` type without going through floats.

    `apply(rows, columns)` takes uint8 `(R, source row bytes)` and returns uint8 `(R, target row bytes)` and the
    number of blocks whose value changed (a float32 scale that is not exactly a float16): 0 means equal in value.
    """

    target: str
    apply: Callable[[Bytes, int], tuple[Bytes, int]]


@dataclass(frozen=True, slots=True)
class Codec:
    """What can be done with one block type.

    `decode(rows, columns)`: uint8 `(R, row_bytes)` → float32 `(R, columns)`, bit-equal to the dequantize_row of the
    program that defined the type. `encode(values, weights)`: float32 `(R, columns)` and an importance vector float32
    `(columns,)` or None → uint8 `(R, row_bytes)`, byte-equal to llama.cpp's portable build; raises BlockError naming
    the row of a NaN or infinity. All little-endian; rows are independent of each other.
    """

    type: BlockType
    decode: Callable[[Bytes, int], Floats]
    encode: Callable[[Floats, Floats | None], Bytes] | None = None
    repack: Repack | None = None
    needs_imatrix: bool = False


@cache
def codecs() -> dict[str, Codec]:
    """Every codec by type name."""
    table: dict[str, Codec] = {}
    for family in scan("ggferry.quant.codecs", "CODECS"):
        for codec in family:
            if codec.type.name in table:
                raise RuntimeError(f"two codecs claim {codec.type.name}")
            table[codec.type.name] = codec
    return table


@cache
def types_by_id() -> dict[int, BlockType]:
    """Block types by GGUF id."""
    return {c.type.ggml_id: c.type for c in codecs().values() if c.type.ggml_id is not None}


def codec(name: str) -> Codec:
    """The codec of a type name, any case. Raises BlockError for a name nobody has."""
    try:
        return codecs()[name.upper()]
    except KeyError:
        raise BlockError(f"unknown tensor type {name!r}; known: {', '.join(sorted(codecs()))}") from None


def block_type(name: str) -> BlockType:
    return codec(name).type
