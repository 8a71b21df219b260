"""Read GGUF v1, v2 and v3, in either byte order, whole or split into shards.

Structure: the GGUF specification ("File Structure"). In v1, counts, lengths and dimensions are u32; everything else is
as in v2, padding included (llama.cpp 6381d4e11 … #2821; ggml f03d74aa). Nothing here reads tensor data.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Mapping, Sequence
from typing import NoReturn

from ggferry.formats import limits
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import (
    CorruptError,
    DuplicateError,
    EncodingError,
    InconsistentError,
    MissingError,
    OutOfRangeError,
    OverlapError,
    ShapeError,
    TrailingBytesError,
    TruncatedError,
    UnknownFormatError,
    UnsupportedTypeError,
    UnsupportedVersionError,
)
from ggferry.formats.fields import Cursor, Struct
from ggferry.formats.files.local_files import read_start
from ggferry.formats.files.sources import Source, open_source
from ggferry.formats.gguf.metadata import MetadataReader
from ggferry.formats.gguf.shards import open_shards, shard_number, shortened
from ggferry.formats.gguf.tensor_lines import LARGEST_LINE, TensorLine, TensorLines, tensor_of
from ggferry.formats.gguf.values import (
    ALIGNMENT_KEY,
    COUNT_CODES,
    DEFAULT_ALIGNMENT,
    Value,
    ValueType,
    align,
    is_alignment,
)
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.formats.reader import (
    HEAD_BYTES,
    Container,
    HeaderLayout,
    Kind,
    Match,
    Reader,
    container_by_magic,
    describe,
)
from ggferry.formats.tensor_table import TensorTable
from ggferry.quant.codec import types_by_id
from ggferry.quant.types import BlockError

MAGIC = b"GGUF"
LLAMAFILES = (b"MZqFpD", b"jartsr")
"""How programs of Cosmopolitan begin that have a zip archive behind them (`gguf.llamafile`)."""
COUNTS = {
    version: Struct(
        f"GGUF v{version} header",
        f"""
        tensor_count      {code} 0..MAX_GGUF_TENSORS tensors in this file
        metadata_kv_count {code} 0..MAX_KV           metadata keys
        """,
    )
    for version, code in ((1, "u32"), (2, "i64"), (3, "i64"))  # i64 as gguf.cpp reads them: -1 is shown as such
}
ERAS = {
    1: "the first GGUF of August 2023; llama.cpp reads it no more since November 2023 (#3901)",
    2: "GGUF of September and October 2023",
    3: "GGUF since October 2023",
}
REMOVED_TYPES = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}


def probe(head: bytes, path: str, size: int) -> Match | None:
    """Claim files that begin with the magic, in any case or cut within it; `open` then says what is wrong."""
    if head[:4] == MAGIC and len(head) >= 8:
        return Match("gguf", _version_of(head[4:8])[0])
    if head and (head[:4].upper() == MAGIC or MAGIC.startswith(head[:4])):
        return Match("gguf")
    return Match("gguf") if head.startswith(LLAMAFILES) or _is_stored(head, path) else None


def _is_stored(head: bytes, path: str) -> bool:
    """Return whether `path` is a manifest of Ollama's, or its store: either stands for a GGUF file among its blobs."""
    if head:
        return head.lstrip()[:1] == b"{" and b'"schemaVersion"' in head and b"vnd.ollama.image." in head
    return all(os.path.isdir(os.path.join(path, name)) for name in ("manifests", "blobs"))


def open_gguf(path: str, layouts: Sequence[HeaderLayout] = ()) -> Checkpoint:
    """Open the checkpoint at `path`; given any shard of a split model, open all its shards as one.

    Metadata values are `formats.gguf.values.Value`. Raises NotFoundError (also for an absent shard),
    UnsupportedVersionError, UnsupportedTypeError or a CorruptError.
    """
    if not path.endswith(".gguf"):
        head = read_start(path, HEAD_BYTES) if os.path.isfile(path) else b""
        if _is_stored(head, path):
            from ggferry.formats.ollama.model import open_model

            return open_model(path, parse)
        if head.startswith(LLAMAFILES):
            from ggferry.formats.gguf.llamafile import open_inside

            return open_inside(path, parse)
    number = shard_number(path)
    found = parse(open_source(path), number)
    count = found.metadata.get("split.count")
    if count is not None and count.data not in (0, 1):  # llama-gguf-split --merge leaves 0
        return open_shards(found, number, parse)
    if number:  # a name like a shard's, and nothing in the file that says so
        found.close()
        return parse(open_source(path))
    return found


def parse(source: Source, file: int = 0) -> Checkpoint:
    """Return the checkpoint in one file, whose spans carry the number `file`. Closes `source` when it raises."""
    try:
        return _Parser(source).checkpoint(file)
    except BaseException:
        source.close()
        raise


class _Parser:
    def __init__(self, source: Source) -> None:
        self.notes: list[str] = []
        self.alignment = DEFAULT_ALIGNMENT
        self.version, big_endian = _version(source)
        self.cursor = Cursor(source, 8, big_endian)
        self.count_code = COUNT_CODES[self.version]
        self.header: JSONObject = {"version": self.version, **COUNTS[self.version].read(self.cursor)}
        if big_endian and self.version < 3:
            self.notes.append(f"big-endian, which GGUF v{self.version} does not provide for")

    def checkpoint(self, file: int) -> Checkpoint:
        cursor = self.cursor
        keys = MetadataReader(cursor, self.count_code)
        metadata = keys.read(self.header["metadata_kv_count"])
        self.header["metadata_offsets"] = keys.offsets
        self.notes += keys.notes
        self.alignment = self.declared_alignment(metadata)
        self.header["tensor_info_offset"] = cursor.offset
        table, places, spans = self.table()
        start = self.data_offset(bool(places))
        self.header["data_offset"] = start
        self.check_spans(table, places, spans, start)
        self.check_architecture(metadata, bool(places) and not file)
        if keys.mixed_case:
            self.notes.append(f"metadata keys that are not lower case: {shortened(keys.mixed_case)}")
        if keys.undecodable:
            self.notes.append(f"not UTF-8, kept byte for byte: {shortened(keys.undecodable)}")
        big = cursor.big_endian
        tensors = TensorTable(places, lambda place: tensor_of(table, place, file, start, big), table.name)
        return Checkpoint(
            container="gguf",
            version=self.version,
            files=(cursor.source,),
            tensors=tensors,
            header=self.header,
            metadata=metadata,
            era=ERAS[self.version],
            big_endian=big,
            alignment=self.alignment,
            notes=tuple(self.notes),
        )

    def declared_alignment(self, metadata: Mapping[str, Value]) -> int:
        value = metadata.get(ALIGNMENT_KEY)
        if value is None:
            return DEFAULT_ALIGNMENT
        at = self.header["metadata_offsets"][ALIGNMENT_KEY]
        if value.type is not ValueType.UINT32:
            raise self.cursor.error(
                OutOfRangeError, f"type of {ALIGNMENT_KEY}", at, found=value.type.name, expected=ValueType.UINT32.name
            )
        alignment = int(value.data)
        if not is_alignment(alignment) or alignment > limits.MAX_ALIGNMENT:
            expected = f"a power of two or a multiple of 8, at most {limits.MAX_ALIGNMENT}"
            raise self.cursor.error(OutOfRangeError, ALIGNMENT_KEY, at, found=alignment, expected=expected)
        if alignment % 8 or alignment & (alignment - 1):
            rule = "the specification wants a multiple of 8" if alignment % 8 else "ggml wants a power of two"
            self.notes.append(f"alignment {alignment}: {rule}")
        return alignment

    def table(self) -> tuple[TensorLines, array[int], list[tuple[int, int]]]:
        """Return the tensor table, where in its bytes each line begins, and offset and size of each tensor's data."""
        cursor, count = self.cursor, self.header["tensor_count"]
        smallest = 25 if self.version == 1 else 33  # name of one byte, one dimension
        cursor.require(count * smallest, f"{count} lines of the tensor table")
        start = cursor.offset
        raw = cursor.source.read(start, min(count * LARGEST_LINE, cursor.remaining))
        table = TensorLines(raw, self.version, cursor.big_endian)
        names: set[str] = set()
        places, spans, at = array("I"), list[tuple[int, int]](), 0
        for number in range(count):
            row = table.row(at) or self.refused(number, start + at)
            if row.name in names:
                raise cursor.error(DuplicateError, f"tensor name {row.name!r} a second time", start + at)
            names.add(row.name)
            places.append(at)
            spans.append((row.offset, row.type.nbytes(row.shape)))
            at = row.end
        table.raw = raw[:at]
        cursor.skip(at, "the tensor table")
        return table, places, spans

    def refused(self, number: int, at: int) -> NoReturn:
        """Read line `number`, which is at `at`, field by field, and raise the error of the first that is wrong."""
        cursor = self.cursor = Cursor(self.cursor.source, at, self.cursor.big_endian)
        what = f"tensor {number} {self.tensor_name(number)!r}"
        n_dims = cursor.integer("u32", f"{what}: number of dimensions", 1, limits.MAX_DIMS)
        code = self.count_code
        ne = [cursor.integer(code, f"{what}: dimension {i}", 1, limits.MAX_DIM) for i in range(n_dims)]
        place = cursor.offset
        type_id = cursor.integer("u32", f"{what}: type")
        kind = types_by_id().get(type_id)
        if kind is None:
            raise self.unknown_type(what, type_id, place)
        if kind.whole_rows and ne[0] > limits.MAX_WHOLE_ROW:
            message = f"{what}: elements of a row of {kind}, which is read whole"
            raise cursor.error(OutOfRangeError, message, at, found=ne[0], expected=f"at most {limits.MAX_WHOLE_ROW}")
        try:
            kind.nbytes(tuple(reversed(ne)))
        except BlockError as error:
            raise cursor.error(ShapeError, f"{what}: {error}", at) from None
        cursor.integer("u64", f"{what}: offset")
        raise cursor.error(CorruptError, what, at)

    def tensor_name(self, number: int) -> str:
        cursor, at = self.cursor, self.cursor.offset
        what = f"name of tensor {number}"
        raw = cursor.take(cursor.integer(self.count_code, f"length of the {what}", 1, limits.MAX_GGUF_NAME), what)
        try:
            name = raw.decode()
        except UnicodeDecodeError:
            name = ""
        if not name.isprintable() or not name:
            raise cursor.error(EncodingError, what, at, found=raw, expected="printable UTF-8")
        return name

    def unknown_type(self, what: str, type_id: int, at: int) -> UnsupportedTypeError:
        if type_id not in REMOVED_TYPES:
            return self.cursor.error(
                UnsupportedTypeError, f"{what}: type", at, found=type_id, expected="one of ggml's types"
            )
        return self.cursor.error(
            UnsupportedTypeError,
            f"{what}: type {REMOVED_TYPES[type_id]} was removed from ggml",
            at,
            found=type_id,
            hint="quantize the original model again",
        )

    def data_offset(self, has_data: bool) -> int:
        """Return where the data section begins, after the padding.

        Without tensors a file may end before it (gguf-py).
        """
        start = align(self.cursor.offset, self.alignment)
        size = start - self.cursor.offset
        if not has_data:
            size = min(size, self.cursor.remaining)
        if any(self.cursor.take(size, "the padding behind the tensor table")):
            self.notes.append("the padding behind the tensor table is not zero")
        return start

    def check_spans(self, table: TensorLines, places: Sequence[int], spans: list[tuple[int, int]], start: int) -> None:
        """Check that the tensors, each padded, cover the data section without overlap, gap or remainder."""
        order = sorted(range(len(spans)), key=spans.__getitem__)
        if any(number != row for number, row in enumerate(order)):
            self.notes.append("the tensor table is not in the order of the data, which ggml refuses")
        size, end, last = self.cursor.source.size, 0, -1
        for number in order:
            offset, nbytes = spans[number]
            if offset != end:
                before = "the start of the data" if last < 0 else repr(table.known(places[last]).name)
                raise self.misplaced(table.known(places[number]), places[number], end, before)
            if start + offset + nbytes > size:
                message = f"the file ends inside tensor {table.known(places[number]).name!r}"
                at = min(start + offset, size)
                raise self.cursor.error(TruncatedError, message, at, f"{size - at} bytes", f"{nbytes} bytes")
            end, last = align(offset + nbytes, self.alignment), number
        if size > start + end:
            message, found = "bytes that no tensor claims", f"{size - start - end} bytes"
            raise self.cursor.error(TrailingBytesError, message, start + end, found, "the end of the file")
        if order and size < start + end:
            self.notes.append("the padding behind the last tensor is missing")

    def misplaced(self, row: TensorLine, place: int, end: int, before: str) -> OverlapError:
        if row.offset % self.alignment:
            fault = f"is not aligned to {self.alignment}"
        else:
            fault = f"overlaps {before}" if row.offset < end else f"leaves a gap behind {before}"
        message, at = f"data of tensor {row.name!r} {fault}: offset", self.header["tensor_info_offset"] + place
        return self.cursor.error(OverlapError, message, at, found=row.offset, expected=end)

    def check_architecture(self, metadata: Mapping[str, Value], required: bool) -> None:
        """Check the key that the specification requires; files that are no model (imatrix) and later shards lack it."""
        value = metadata.get("general.architecture")
        if value is not None and value.type is not ValueType.STRING:
            at = self.header["metadata_offsets"]["general.architecture"]
            found = value.type.name
            raise self.cursor.error(OutOfRangeError, "type of general.architecture", at, found, ValueType.STRING.name)
        other = metadata.get("general.type", Value(ValueType.STRING, "model")).data != "model"
        later = metadata.get("split.no", Value(ValueType.UINT16, 0)).data != 0
        if value is None and required and not other and not later:
            raise self.cursor.error(MissingError, "no general.architecture: nothing says what model this is", 8)


def _version_of(raw: bytes) -> tuple[int, bool]:
    """Return the version, and whether its bytes are big-endian.

    This decides as gguf.cpp and gguf-py do: no version reaches 2^16, so sixteen low bits of zero are the high bits in
    the other byte order.
    """
    swapped = raw[:2] == b"\0\0" and raw != b"\0\0\0\0"
    return int.from_bytes(raw, "big" if swapped else "little"), swapped


def _is_unfinished(path: str, magic: bytes) -> bool:
    from ggferry.formats.files.patched_start import is_unfinished  # with all that writes files

    return is_unfinished(path, magic)


def _version(source: Source) -> tuple[int, bool]:
    cursor = Cursor(source)
    magic = source.read(0, min(4, source.size))
    if magic != MAGIC and _is_unfinished(source.path, magic):
        hint = "ggferry edit FILE --recover finishes it"
        raise cursor.error(InconsistentError, "an edit of it was interrupted", hint=hint)
    if magic != MAGIC and not MAGIC.startswith(magic):
        other = container_by_magic(magic)
        found = f"the magic of {other.label}" if other else describe(source.read(0, min(64, source.size)), source.path)
        raise cursor.error(UnknownFormatError, "not a GGUF file", found=found, expected="the magic GGUF")
    cursor.skip(4, "the magic")
    version, swapped = _version_of(cursor.take(4, "the version"))
    if version not in COUNTS:
        raise cursor.error(UnsupportedVersionError, "GGUF version", 4, found=version, expected="1, 2 or 3")
    return version, swapped


# The reversed magic: no program reads such a file, but it is a model, and the error should say so.
CONTAINERS = (Container("gguf", "GGUF", Kind.GGUF, (MAGIC, MAGIC[::-1]), tuple(COUNTS)),)

SPEC = Reader("gguf", probe, open_gguf, CONTAINERS, (".gguf", ".llamafile"))
