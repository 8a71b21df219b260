"""Read the tensor records of a GGML-era file, which run from the vocabulary to the last byte and are counted nowhere.

A record has int32 axes, name length and type; the size of each axis (innermost first); the name; in GGJT and GGCC zeros
up to the next multiple of 32; and the data. Source: docs/formats/ggml-era.md "Records".
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ggferry.formats import limits
from ggferry.formats.checkpoint import Span, TensorRef
from ggferry.formats.errors import (
    AmbiguousError,
    CorruptError,
    DuplicateError,
    EncodingError,
    OutOfRangeError,
    OverlapError,
    ShapeError,
    TruncatedError,
)
from ggferry.formats.fields import Cursor
from ggferry.formats.files.sources import Source
from ggferry.formats.ggml.prelude import Prelude
from ggferry.formats.ggml.types import PLANAR, meanings
from ggferry.quant.codec import codecs
from ggferry.quant.types import BlockError

ALIGNMENT = {"ggml": 1, "ggmf": 1, "ggjt": 32, "ggcc": 32}
SAMPLE_TENSORS, SAMPLE_ROWS = 8, 8


class Record(NamedTuple):  # an archive has millions
    """A tensor record.

    Attributes:
        name: Name of the tensor.
        code: Its type code.
        shape: Elements along each axis, outermost first.
        at: Byte at which the record begins.
        data: Byte at which its data begins.
    """

    name: str
    code: int
    shape: tuple[int, ...]
    at: int
    data: int


class Records(dict[int, Record]):
    """The records read from one file, by the byte at which they begin.

    Every layout, and every meaning of the type codes, leads past the same records.

    Attributes:
        walks: The tensors that whole walks have found, by where they began and what they took codes and axes to mean.
        begin: Where the records begin under the layout at work; 0 before that is known.
    """

    def __init__(self) -> None:
        super().__init__()
        self.walks: dict[Hashable, Sequence[TensorRef]] = {}
        self.begin = 0


def read_records(source: Source, prelude: Prelude, seen: Records) -> tuple[list[TensorRef], list[str]]:
    """Return the tensors and notes for the user.

    The type codes are taken in the first meaning whose walk ends exactly at the last byte.

    Args:
        source: The file.
        prelude: What was read before the records.
        seen: Records of this file that were read under other layouts; new ones are added.

    Raises:
        CorruptError: No meaning of the type codes fits.
    """
    try:
        readings = meanings(prelude.version, prelude.layout, int(prelude.header.get("ftype", 0)))
    except ValueError as error:
        raise OutOfRangeError(
            f"{prelude.layout.header.name}.ftype: {error}", path=source.path, found=prelude.header["ftype"]
        ) from None
    first: CorruptError | None = None
    for codes, note in readings:
        try:
            walk = prelude.records, prelude.layout.axes, tuple(codes.items())
            if walk not in seen.walks:
                seen.walks[walk] = list(_walk(source, prelude, codes, seen))
            refs = [*seen.walks[walk]]
        except CorruptError as error:
            first = first or error
            continue
        return refs, [note] if note else []
    assert first is not None
    raise first


def with_planes(source: Source, prelude: Prelude, refs: list[TensorRef]) -> list[TensorRef]:
    """Return the tensors, with planar types for those stored in planes.

    Raises AmbiguousError where the scales do not decide.
    """
    if prelude.version != ("ggml", None):
        return refs
    table = codecs()
    planar = {name for name in prelude.layout.planar if _is_planar(source, refs, name)}
    return [replace(ref, type=table[PLANAR[ref.type.name]].type) if ref.type.name in planar else ref for ref in refs]


def _walk(source: Source, prelude: Prelude, codes: Mapping[int, str], records: Records) -> Iterator[TensorRef]:
    """Yield every record from the vocabulary to the last byte. Raises a CorruptError where the walk cannot go on."""
    table = codecs()
    alignment = ALIGNMENT[prelude.version[0]]
    seen: set[str] = set()
    offset = prelude.records
    while offset < source.size:
        record = records.get(offset)
        if record is None or record.code not in codes or len(record.shape) > prelude.layout.axes:
            record = records[offset] = _record(source, offset, codes, alignment, prelude.layout.axes)
        if record.name in seen:
            raise DuplicateError("duplicate tensor name", path=source.path, offset=offset, found=record.name)
        if len(seen) >= limits.MAX_GGML_TENSORS:
            raise OutOfRangeError("too many tensors", path=source.path, offset=offset, expected=limits.MAX_GGML_TENSORS)
        seen.add(record.name)
        kind = table[codes[record.code]].type
        try:
            size = kind.nbytes(record.shape)
        except BlockError as error:
            raise ShapeError(f"tensor {record.name!r}: {error}", path=source.path, offset=offset) from None
        if record.data + size > source.size:
            raise TruncatedError(
                f"the file ends inside tensor {record.name!r}",
                path=source.path,
                offset=record.data,
                found=f"{source.size - record.data} bytes",
                expected=f"{size} bytes",
            )
        yield TensorRef(record.name, kind, record.shape, (Span(0, record.data, record.shape),))
        offset = record.data + size


def _record(source: Source, offset: int, codes: Mapping[int, str], alignment: int, axes: int) -> Record:
    """Return the record at `offset`: read in one piece if it is valid, else field by field, to find what is wrong."""
    most = 12 + 4 * axes + limits.MAX_NAME + alignment
    return _plain(source.read(offset, min(most, source.size - offset)), offset, codes, alignment, axes) or _careful(
        source, offset, min(source.size, offset + most), codes, alignment, axes
    )


def _plain(head: bytes, offset: int, codes: Mapping[int, str], alignment: int, axes: int) -> Record | None:
    """Return the record at the beginning of `head`; None unless it is valid."""
    if len(head) < 12:
        return None
    dims, length, code = struct.unpack_from("<3i", head)
    if not (1 <= dims <= axes and 1 <= length <= limits.MAX_NAME and code in codes):
        return None
    begin = 12 + 4 * dims
    end = begin + length
    data = end + -(offset + end) % alignment
    if data > len(head) or any(head[end:data]):
        return None
    shape = struct.unpack_from(f"<{dims}i", head, 12)[::-1]
    try:
        name = head[begin:end].decode("utf-8")
    except UnicodeDecodeError:
        return None
    return Record(name, code, shape, offset, offset + data) if min(shape) > 0 else None


def _careful(source: Source, offset: int, end: int, codes: Mapping[int, str], alignment: int, axes: int) -> Record:
    """Do what `_plain` does, but raise a CorruptError naming the first field that is wrong."""
    cursor = Cursor(source, offset, end=end)
    dims = cursor.integer("i32", "a tensor's number of dimensions", 1, axes)
    length = cursor.integer("i32", "length of a tensor's name", 1, limits.MAX_NAME)
    at = cursor.offset
    code = cursor.integer("i32", "a tensor's type")
    if code not in codes:
        expected = ", ".join(f"{number} {name}" for number, name in sorted(codes.items()))
        raise OutOfRangeError("a tensor's type", path=source.path, offset=at, found=code, expected=expected)
    shape = tuple(cursor.integer("i32", "a tensor's dimension", 1, 2**31 - 1) for _ in range(dims))[::-1]
    at = cursor.offset
    try:
        name = cursor.take(length, "a tensor's name").decode("utf-8")
    except UnicodeDecodeError:
        raise EncodingError("a tensor's name is not UTF-8", path=source.path, offset=at) from None
    padding = -cursor.offset % alignment
    at = cursor.offset
    if any(cursor.take(padding, f"padding before tensor {name!r}")):
        raise OverlapError(f"padding before tensor {name!r} is not zero", path=source.path, offset=at)
    return Record(name, code, shape, offset, cursor.offset)


def _is_planar(source: Source, refs: Sequence[TensorRef], name: str) -> bool:
    """Return whether the tensors of type `name` are stored in planes instead of blocks.

    Read as blocks, 44–64 % of the scales of planar rows are absurd, and none of block rows. No scale is negative where
    planes occur. Source: docs/formats/ggml-era.md "Traps".
    """
    refs_of_type = [ref for ref in refs if ref.type.name == name]
    if not refs_of_type:
        return False
    absurd = total = 0
    for ref in refs_of_type[:: max(1, len(refs_of_type) // SAMPLE_TENSORS)]:
        data = source.read(ref.spans[0].offset, min(SAMPLE_ROWS, ref.rows) * ref.row_bytes)
        scales = [block[0] for block in struct.iter_unpack(f"<f{ref.type.block_bytes - 4}x", data)]
        absurd += sum(not (d == 0 or 1e-12 <= d <= 1e3) for d in scales)
        total += len(scales)
    share = absurd / total
    if 0.01 < share < 0.2:
        raise AmbiguousError(
            f"{name[:4]} rows read neither as blocks nor as planes",
            path=source.path,
            found=f"{absurd} absurd scales in {total} blocks",
        )
    return share >= 0.2
