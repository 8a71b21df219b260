"""The contract of every block type, and the table of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from functools import cache
from typing import TYPE_CHECKING, Any

from ggferry.quant.blocks import Affine, Decoder, check_rows
from ggferry.quant.kernels import Compiled, Encoder
from ggferry.quant.types import SEARCH, STOCK, BlockError, BlockType
from ggferry.support.heavy import np
from ggferry.support.records import dataclass
from ggferry.support.registry import scan

if TYPE_CHECKING:
    from ggferry.quant.types import Bytes, Floats


@dataclass(frozen=True, slots=True)
class Repack:
    """How blocks of an era become blocks of the current `target` type without conversion to floats.

    Attributes:
        target: Name of the current type.
        apply: `apply(rows, columns)` takes uint8 `(R, source row bytes)` and returns uint8 `(R, target row bytes)` and
            the number of blocks whose value changed (a float32 scale that is not exactly a float16); 0 means equal in
            value.
    """

    target: str
    apply: Callable[[Bytes, int], tuple[Bytes, int]]


LLAMA_CPP = "llama.cpp"
IK_LLAMA_CPP = "ik_llama.cpp"
"""The fork of llama.cpp with block types of its own."""

LARGEST_LEVEL = 128
SUBNORMAL_SCALE = 2.0**-25 * LARGEST_LEVEL
"""A scale below the normal range of float16 is off by up to 2^-25, whatever its size, times the level it multiplies."""


@dataclass(frozen=True, slots=True)
class Bound:
    """How far rounding to nearest can move a value x. All zero: every float32 is kept.

    Attributes:
        of_value: Times |x|.
        of_block: Times the largest |x| of its block (instead of `of_value`).
        least: Added, for results and block scales that are subnormal.
    """

    of_value: float = 0.0
    of_block: float = 0.0
    least: float = 0.0


@dataclass(frozen=True, slots=True)
class Accuracy:
    """What rounding to a type may cost: numbers that are derived, or measured and measured again by tests.

    The defaults are those of types of two bits and fewer with a float16 scale. Their blocks may lie as far from their
    values as zeros do, and the floor is the smallest step of the scale times the largest level.

    Attributes:
        band: Least and greatest relative RMS error of ordinary weights (`quant.accuracy.bands`); None: nothing is
            rounded.
        block_limit: The largest relative RMS error of a block that rounding explains.
        row_limit: The same of a row.
        floor: The least value that the type's scale can represent (`quant.accuracy.likeness`).
        bound: Bound of a single value (`quant.accuracy.bounds`); None where the type's arithmetic gives none.
    """

    band: tuple[float, float] | None = None
    block_limit: float = 1.15
    row_limit: float = 1.05
    floor: float = 2.0**-24 * LARGEST_LEVEL
    bound: Bound | None = None


@dataclass(frozen=True, slots=True)
class Codec:
    """What can be done with one block type. All bytes are little-endian; rows are independent of each other.

    Attributes:
        type: The block type.
        decode: `decode(rows, columns)`: uint8 `(R, row_bytes)` → float32 `(R, columns)`, bit-equal to the
            dequantize_row of the program that defined the type. The readable reference, in numpy.
        compiled: The same compiled, for `values`; None where there is none.
        rounding: The compiled rounding that `encode` uses where it can.
        encode: `encode(values, weights)`: float32 `(R, columns)` and importances float32 `(columns,)` or None → uint8
            `(R, row_bytes)`, byte-equal to llama.cpp's portable build. Raises BlockError naming the row of a NaN or
            infinity.
        repack: How blocks of this type become blocks of its successor.
        searched: What encodes with `SEARCH`: as `encode`, with importances, to blocks whose weighted error is never
            larger; None where that is `encode`.
        needs_imatrix: Whether encoding without importances gives garbage.
        searches: Whether encoding is a search, which takes many times as long as decoding.
        accuracy: What rounding to it may cost.
        file_type: The `general.file_type` that means mostly this type, when nothing else is known.
        suspicious: Field → which of its items `(…, count)` may make a value NaN or infinite, for fields that are not
            plain floats.
        runtime: The program that reads GGUF files with this type; of types without a GGUF id, none does.
    """

    type: BlockType
    decode: Callable[[Bytes, int], Floats]
    encode: Callable[[Floats, Floats | None], Bytes] | None = None
    repack: Repack | None = None
    needs_imatrix: bool = False
    searches: bool = False
    accuracy: Accuracy = Accuracy()
    file_type: int | None = None
    suspicious: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    compiled: Compiled | None = None
    rounding: Compiled | None = None
    searched: Encoder | None = None
    runtime: str = LLAMA_CPP

    def values(self, rows: Bytes, columns: int) -> Floats:
        """Return what `decode` returns, bit for bit, by the compiled decoder where there is one and much to do."""
        run = self.compiled.after(rows.size // self.type.block_bytes * self.type.elements) if self.compiled else None
        if run is None:
            return self.decode(rows, columns)
        check_rows(self.type, rows, columns)
        found: Floats = np.empty((len(rows), columns), np.float32)
        if found.size and run(np.ascontiguousarray(rows).reshape(-1), found.reshape(-1), columns):
            return found
        return self.decode(rows, columns)

    def prefetch(self, elements: int) -> None:
        """Announce that so many elements are going to be decoded, so that the decoder is loaded meanwhile."""
        if self.compiled is not None:
            self.compiled.after(elements)

    def expect_encoding(self, elements: int, weighted: bool, rounding: str = STOCK) -> None:
        """Announce that so many elements are going to be encoded, with importances or without, likewise."""
        if self.rounding is not None:
            self.rounding.after(elements)
        encode = self.searched if weighted and rounding == SEARCH and self.searched is not None else self.encode
        if isinstance(encode, Encoder):
            encode.prefetch(self.type.elements, weighted)


@cache
def codecs() -> dict[str, Codec]:
    """Return every codec by type name."""
    table: dict[str, Codec] = {}
    for family in scan("ggferry.quant.codecs", "CODECS"):
        for codec in family:
            if codec.type.name in table:
                raise RuntimeError(f"two codecs claim {codec.type.name}")
            table[codec.type.name] = codec
    return table


@cache
def types_by_id() -> dict[int, BlockType]:
    """Return the block types by GGUF id."""
    return {c.type.ggml_id: c.type for c in codecs().values() if c.type.ggml_id is not None}


def types_of_forks(kinds: Iterable[BlockType]) -> dict[str, tuple[str, ...]]:
    """Return which of these types llama.cpp does not read in a GGUF file: by the program that does, their names."""
    found: dict[str, list[str]] = {}
    for name in sorted({kind.name for kind in kinds if kind.ggml_id is not None}):
        runtime = codec(name).runtime
        if runtime != LLAMA_CPP:
            found.setdefault(runtime, []).append(name)
    return {runtime: tuple(names) for runtime, names in found.items()}


def codec(name: str) -> Codec:
    """Return the codec of a type name, in any case. Raises BlockError for an unknown name."""
    try:
        return codecs()[name.upper()]
    except KeyError:
        raise BlockError(f"unknown tensor type {name!r}; known: {', '.join(sorted(codecs()))}") from None


def affine_of(name: str) -> Affine:
    """Return the levels and coefficients by which a type's blocks are decoded, of types that are level × scale + shift.

    Raises BlockError for another type.
    """
    decode = codec(name).decode
    if isinstance(decode, Decoder) and isinstance(decode.unpack, Affine):
        return decode.unpack
    raise BlockError(f"{name} blocks are not levels times a scale")


def block_type(name: str) -> BlockType:
    """Return the block type of a name, in any case. Raises BlockError for an unknown name."""
    return codec(name).type
