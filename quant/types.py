"""Block types: how a run of elements is laid out in bytes.

A tensor row of `n` elements is `n / elements` blocks one after the other, each block being its fields in order; a few
types have members once a row before its blocks, or the blocks of several rows in one. Sizes are computed from the
fields and never typed by hand, because such numbers drift.

Source of the facts: ggml's `ggml-common.h` / `ggml.c` type traits for everything with a GGUF id,
docs/formats/ggml-era.md "Block eras" for the eras that never reached GGUF.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

from ggferry.support.heavy import np
from ggferry.support.places import caller
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    Bytes = np.ndarray[Any, np.dtype[np.uint8]]
    Floats = np.ndarray[Any, np.dtype[np.float32]]

_ITEM_BYTES = {"bf16": 2, "u1": 1, "i1": 1} | {f"{kind}{size}": size for kind in "uif" for size in (2, 4, 8)}
EXPANSIONS = ("f16", "f32", "q8_0")
"""Types that `--expand` may name for blocks that GGUF cannot hold."""
STOCK, SEARCH, FEEDBACK = ROUNDINGS = ("stock", "search", "feedback")
"""How values are rounded: as llama.cpp does; by an importance matrix with `Codec.searched`, where a type has that; by
the inputs of a matrix with `quant.rounding.feedback`."""


class BlockError(ValueError):
    """A request that no block of this type can satisfy.

    Such are a row that is not whole blocks, an unknown type, and a value that cannot be encoded. Callers that know the
    file make one of `formats.errors` of it.
    """


@dataclass(frozen=True, slots=True)
class Field:
    """A member of a block.

    Attributes:
        name: As in ggml's struct.
        dtype: numpy-style type without byte order (`f2`, `u1`, …), or `bf16`.
        count: Number of items.
    """

    name: str
    dtype: str
    count: int = 1

    @property
    def item_bytes(self) -> int:
        """Bytes of an item."""
        return _ITEM_BYTES[self.dtype]

    @property
    def nbytes(self) -> int:
        """Bytes of all items."""
        return self.item_bytes * self.count


@dataclass(frozen=True, slots=True)
class BlockType:
    """The byte layout of a tensor type.

    Attributes:
        name: Name of the type.
        elements: Elements in a block.
        fields: Members of a block, in order.
        ggml_id: The id in GGUF files; None for the eras that GGUF never held.
        planar: Whether a row stores all of field 0, then all of field 1, … instead of block by block (GGML files of
            10–17 March 2023).
        quantized: Whether values were rounded to fit the type.
        header: Members that come once a row, before its blocks.
        interleaved: Rows whose blocks are stored in one another; `fields` and `header` are those of so many rows.
    """

    name: str
    elements: int
    fields: tuple[Field, ...]
    ggml_id: int | None = None
    planar: bool = False
    quantized: bool = True
    header: tuple[Field, ...] = ()
    interleaved: int = 1
    block_bytes: int = field(init=False, repr=False, compare=False)
    """Bytes of one block of one row."""
    header_bytes: int = field(init=False, repr=False, compare=False)
    """Bytes before the blocks of one row."""

    def __post_init__(self) -> None:
        for name, members in (("block_bytes", self.fields), ("header_bytes", self.header)):
            size, rest = divmod(sum(member.nbytes for member in members), self.interleaved)
            if rest:
                raise BlockError(f"{self.name}: members that are not the same for {self.interleaved} rows")
            object.__setattr__(self, name, size)

    @property
    def whole_rows(self) -> bool:
        """Whether a row, or the rows that are interleaved, cannot be cut between blocks."""
        return self.planar or bool(self.header) or self.interleaved > 1

    def row_bytes(self, columns: int) -> int:
        """Return the bytes of a row of `columns` elements. Raises BlockError when the row is not whole blocks."""
        blocks, rest = divmod(columns, self.elements)
        if rest:
            raise BlockError(f"a row of {columns} elements is not a multiple of {self.name}'s block of {self.elements}")
        return self.header_bytes + blocks * self.block_bytes

    def nbytes(self, shape: tuple[int, ...]) -> int:
        """Return the bytes of a whole tensor of `shape` (outermost first; the last axis is the row).

        Raises BlockError when a row is not whole blocks, or a matrix is not whole groups of interleaved rows.
        """
        rows = 1
        if (shape[-2] if len(shape) > 1 else 1) % self.interleaved:
            raise BlockError(f"a matrix of shape {shape} has no whole groups of {self.name}'s {self.interleaved} rows")
        for size in shape[:-1]:
            rows *= size
        return rows * self.row_bytes(shape[-1] if shape else 1)

    def __str__(self) -> str:
        return self.name


def table(text: str, **common: int) -> dict[str, BlockType]:
    """Return the block types that lines `NAME ID ELEMENTS FIELD:DTYPE[*COUNT] …` describe (ID `-`: no GGUF id).

    Members before a `/` come once a row. `common`: attributes of all of them.

    The grammar is in docs/tables.md. Raises BlockError, with file, line and word, for any other line.
    """
    types: dict[str, BlockType] = {}
    for line in filter(str.strip, text.splitlines()):
        try:
            parsed = _block_type(line.split(), common)
            if parsed.name in types:
                raise ValueError(f"duplicate block type: {parsed.name}")
        except ValueError as error:
            raise BlockError(f"{caller().of(line)}: {error}") from None
        types[parsed.name] = parsed
    return types


_FIELD = re.compile(r"([a-z]\w*):([a-z]\w*?)(?:\*(\d+))?")


def _block_type(words: list[str], common: Mapping[str, Any]) -> BlockType:
    """Return the type a line describes. Raises ValueError, whose message ends with the word that is wrong."""
    if len(words) < 4:
        raise ValueError(f"not NAME ID ELEMENTS FIELD:DTYPE…: {' '.join(words)}")
    name, ggml_id, elements, *items = words
    if not re.fullmatch(r"[A-Z]\w*", name):
        raise ValueError(f"not a name for a block type: {name}")
    if ggml_id != "-" and not ggml_id.isdecimal():
        raise ValueError(f"not a GGUF id, or '-' for none: {ggml_id}")
    if not elements.isdecimal() or int(elements) < 1:
        raise ValueError(f"not a number of elements: {elements}")
    fields: dict[str, Field] = {}
    once = items.index("/") if "/" in items else 0
    for item in items[:once] + items[once + bool(once) :]:
        member = _field(item)
        if member.name in fields:
            raise ValueError(f"duplicate field: {item}")
        fields[member.name] = member
    members, number = tuple(fields.values()), None if ggml_id == "-" else int(ggml_id)
    return BlockType(name, int(elements), members[once:], number, header=members[:once], **common)


def _field(item: str) -> Field:
    parts = _FIELD.fullmatch(item)
    if not parts or parts[3] == "0":
        raise ValueError(f"not FIELD:DTYPE or FIELD:DTYPE*COUNT: {item}")
    if parts[2] not in _ITEM_BYTES:
        raise ValueError(f"no such dtype (known are {', '.join(_ITEM_BYTES)}): {parts[2]}")
    return Field(parts[1], parts[2], int(parts[3] or 1))
