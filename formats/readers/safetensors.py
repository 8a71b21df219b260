"""safetensors: a length, a JSON table, the data. Every byte of the data belongs to exactly one tensor.

Source of the rules: the format's README and `safetensors/src/tensor.rs` 0.8. Refused here though the official library
reads it: a key twice, entries with unknown or array-shaped fields, empty names. Leading whitespace, which the README
forbids and the library accepts, is accepted and told.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ggferry.formats.checkpoint import Checkpoint, Span, TensorRef
from ggferry.formats.errors import (
    EncodingError,
    InconsistentError,
    OutOfRangeError,
    OverlapError,
    ShapeError,
    TrailingBytesError,
    TruncatedError,
    UnsupportedTypeError,
)
from ggferry.formats.folder import (
    claim,
    configuration,
    locate,
    looks_foreign,
    refuse_container,
    refuse_foreign,
    sidecars,
)
from ggferry.formats.json_text import BOM, parse_json
from ggferry.formats.limits import MAX_DIM, MAX_JSON, MAX_NAME, MAX_RANK, MAX_TENSORS
from ggferry.formats.reader import HEAD_BYTES, HeaderLayout, Match, Reader
from ggferry.formats.shard_index import join_files, read_index
from ggferry.formats.sources import Source, open_source
from ggferry.quant.codec import block_type

CONTAINER = "safetensors"
PREFIX = 8  # bytes of the header's length, u64 little-endian
WHITESPACE = " \t\r\n"

# The format's names are ours.
TYPES = frozenset(
    {"BOOL", "U8", "I8", "U16", "I16", "F16", "BF16", "U32", "I32", "F32", "U64", "I64", "F64", "F8_E4M3", "F8_E5M2"}
)
NOT_CARRIED = frozenset({"F4", "F6_E2M3", "F6_E3M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "C64"})
FIELDS = frozenset({"dtype", "shape", "data_offsets"})


@dataclass(frozen=True, slots=True)
class _Table:
    """What one file's header says."""

    tensors: dict[str, TensorRef]
    metadata: Mapping[str, str]
    notes: tuple[str, ...]


def probe(head: bytes, path: str, size: int) -> Match | None:
    """Claims folders of safetensors, their index, files by content, and `.safetensors` that are nothing else."""
    if size == 0 and os.path.isdir(path):
        return None if claim(path, CONTAINER) is None else Match(CONTAINER)
    if path.endswith(".safetensors.index.json"):
        return Match(CONTAINER)
    length = int.from_bytes(head[:PREFIX], "little")
    plausible = 2 <= length <= min(size - PREFIX, MAX_JSON)
    if plausible and head[PREFIX:].lstrip(WHITESPACE.encode()).startswith((b'{"', b"{}")):
        return Match(CONTAINER)
    if path.lower().endswith(".safetensors") and not looks_foreign(head, path):
        return Match(CONTAINER)
    return None


def open_checkpoint(path: str, layouts: Sequence[HeaderLayout] = ()) -> Checkpoint:
    """The checkpoint at `path`: a file, a shard (all of its model is opened), an index, or a folder.

    Raises NotFoundError, UnknownFormatError, UnsupportedTypeError, and every CorruptError.
    """
    weights = locate(path, CONTAINER)
    refuse_container(weights, CONTAINER)
    index = None if weights.index is None else read_index(weights.index)
    files = tuple(open_source(f, weights.folder) for f in (weights.files if index is None else index.files))
    tables = [read_table(source, number) for number, source in enumerate(files)]
    tensors, told = join_files([(f.path, t.tensors) for f, t in zip(files, tables, strict=True)], index)
    beside = sidecars(weights)
    config, remarks = configuration(weights, beside)
    header: dict[str, Any] = {"metadata": dict(tables[0].metadata)}
    if index is not None:
        header["index"] = dict(index.metadata)
    notes = (*weights.notes, *(note for table in tables for note in table.notes), *told, *remarks)
    return Checkpoint(
        CONTAINER, None, files, tensors, header, config, era="since September 2022", notes=notes, sidecars=beside
    )


def read_table(source: Source, file: int = 0) -> _Table:
    """The tensors of one file in the order of their bytes. Reads the header only."""
    if source.size < PREFIX:
        raise TruncatedError("no room for the header's length", path=source.path, offset=0, found=source.size)
    length = int.from_bytes(source.read(0, PREFIX), "little")
    if length > MAX_JSON or length > source.size - PREFIX:
        refuse_foreign(source.read(0, min(source.size, HEAD_BYTES)), source.path)
    if length > MAX_JSON:
        raise OutOfRangeError(
            "length of the header", path=source.path, offset=0, found=length, expected=f"≤ {MAX_JSON}"
        )
    if length > source.size - PREFIX:
        raise TruncatedError(
            "the file ends inside its header", path=source.path, offset=source.size, expected=f"{length} bytes"
        )
    text = source.read(PREFIX, length)
    if text.startswith(BOM):
        raise EncodingError("a byte-order mark before the header", path=source.path, offset=PREFIX)
    table = parse_json(text, source.path, PREFIX)
    if not isinstance(table, dict):
        raise InconsistentError("header", path=source.path, offset=PREFIX, found=type(table).__name__, expected="{…}")
    notes = () if text.startswith(b"{") else (f"{source.path}: whitespace before the header, against the format",)
    metadata = _metadata(table.pop("__metadata__", None), source.path)
    if len(table) > MAX_TENSORS:
        raise OutOfRangeError("number of tensors", path=source.path, found=len(table), expected=f"≤ {MAX_TENSORS}")
    entries = [_Entry(source.path, text, name, fields) for name, fields in table.items()]
    entries.sort(key=lambda entry: (entry.begin, entry.end))
    _check_cover(entries, source, PREFIX + length)
    tensors = {entry.name: entry.ref(file, PREFIX + length) for entry in entries}
    return _Table(tensors, metadata, notes)


def _metadata(found: Any, path: str) -> dict[str, str]:
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise InconsistentError("__metadata__", path=path, offset=PREFIX, found=found, expected="strings to strings")
    return found


class _Entry:
    """One line of the header, checked by itself."""

    def __init__(self, path: str, header: bytes, name: str, fields: Any) -> None:
        self.path, self.header, self.name = path, header, name
        if not 0 < len(name.encode()) <= MAX_NAME:
            raise OutOfRangeError("length of a tensor's name", **self.place(), expected=f"1 to {MAX_NAME} bytes")
        if not isinstance(fields, dict) or fields.keys() != FIELDS:
            raise InconsistentError(f"fields of {name!r}", **self.place(), found=fields, expected=sorted(FIELDS))
        self.type = self._type(fields["dtype"])
        shape = self._sizes("shape", fields["shape"])
        if len(shape) > MAX_RANK or any(size > MAX_DIM for size in shape):
            raise OutOfRangeError(
                f"shape of {name!r}", **self.place(), found=shape, expected=f"≤ {MAX_RANK} axes of ≤ {MAX_DIM}"
            )
        self.shape = shape
        offsets = self._sizes("data_offsets", fields["data_offsets"])
        if len(offsets) != 2 or offsets[0] > offsets[1]:
            raise OutOfRangeError(f"data_offsets of {name!r}", **self.place(), found=offsets, expected="[begin, end]")
        self.begin, self.end = offsets
        if self.type.nbytes(shape) != self.end - self.begin:
            raise ShapeError(
                f"bytes of {name!r}, {self.type} {list(shape)}",
                **self.place(),
                found=self.end - self.begin,
                expected=self.type.nbytes(shape),
            )

    def place(self) -> dict[str, Any]:
        """Path, and offset of the name where it stands plainly in the header."""
        return {"path": self.path, "offset": PREFIX + max(0, self.header.find(b'"' + self.name.encode() + b'"'))}

    def ref(self, file: int, data: int) -> TensorRef:
        return TensorRef(self.name, self.type, self.shape, (Span(file, data + self.begin, self.shape),))

    def _type(self, name: Any) -> Any:
        if isinstance(name, str) and name in TYPES:
            return block_type(name)
        known = isinstance(name, str) and name in NOT_CARRIED
        words = "a type that ggferry does not carry" if known else "an unknown type"
        raise UnsupportedTypeError(f"{self.name!r} has {words}", **self.place(), found=name, expected=sorted(TYPES))

    def _sizes(self, field: str, found: Any) -> tuple[int, ...]:
        if not isinstance(found, list) or not all(type(size) is int and size >= 0 for size in found):
            raise OutOfRangeError(
                f"{field} of {self.name!r}", **self.place(), found=found, expected="a list of whole numbers ≥ 0"
            )
        return tuple(found)


def _check_cover(entries: Sequence[_Entry], source: Source, data: int) -> None:
    """Every byte of the data belongs to exactly one tensor: no hole, no overlap, nothing before or behind."""
    end = 0
    for entry in entries:
        if entry.begin != end:
            words = "begins inside another tensor" if entry.begin < end else "leaves a hole before it"
            raise OverlapError(f"{entry.name!r} {words}", **entry.place(), found=entry.begin, expected=end)
        end = entry.end
    held = source.size - data
    if end > held:
        raise TruncatedError(
            "the file ends inside its tensors", path=source.path, offset=source.size, found=held, expected=end
        )
    if end < held:
        raise TrailingBytesError("bytes follow the last tensor", path=source.path, offset=data + end, found=held - end)


SPEC = Reader(CONTAINER, probe, open_checkpoint)
