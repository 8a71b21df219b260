"""Read safetensors: a length, a JSON table, the data. Every byte of the data belongs to exactly one tensor.

Source of the rules: the format's README and `safetensors/src/tensor.rs` 0.8. The official library reads some files that
are refused here: those with duplicate keys, entries with unknown or array-shaped fields, or empty names. Leading white
space, which the README forbids and the library accepts, is accepted and reported.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypedDict

from ggferry.formats.checkpoint import Checkpoint, Span, TensorRef
from ggferry.formats.checkpoint_folder.folder import (
    claim,
    locate,
    looks_foreign,
    refuse_container,
    refuse_foreign,
)
from ggferry.formats.checkpoint_folder.shard_index import join_files, read_index
from ggferry.formats.checkpoint_folder.sidecars import configuration, sidecars
from ggferry.formats.errors import (
    DuplicateError,
    EncodingError,
    InconsistentError,
    OutOfRangeError,
    OverlapError,
    ShapeError,
    TrailingBytesError,
    TruncatedError,
    UnsupportedTypeError,
)
from ggferry.formats.files.sources import Source, open_source
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.formats.json_files.parse import SPACE, pattern
from ggferry.formats.json_files.text import BOM
from ggferry.formats.json_files.walk import Walk
from ggferry.formats.limits import (
    MAX_DIM,
    MAX_HEADERS,
    MAX_JSON,
    MAX_METADATA,
    MAX_METADATA_KEYS,
    MAX_NAME,
    MAX_RANK,
    MAX_TENSORS,
)
from ggferry.formats.reader import HEAD_BYTES, Container, HeaderLayout, Kind, Match, Reader, WeightsName
from ggferry.formats.tensor_table import TensorTable
from ggferry.quant.codec import block_type
from ggferry.quant.types import BlockType
from ggferry.support.records import dataclass

CONTAINER = "safetensors"
SUFFIXES = (".safetensors",)
PREFIX = 8  # bytes of the header's length, u64 little-endian
WHITESPACE = " \t\r\n"

# The format's names are ours.
TYPES = frozenset(
    {
        "BOOL",
        "U8",
        "I8",
        "U16",
        "I16",
        "F16",
        "BF16",
        "U32",
        "I32",
        "F32",
        "U64",
        "I64",
        "F64",
        "F8_E4M3",
        "F8_E5M2",
        "F8_E8M0",
    }
)
NOT_CARRIED = frozenset({"F4", "F6_E2M3", "F6_E3M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "C64"})
FIELDS = frozenset({"dtype", "shape", "data_offsets"})
METADATA = "__metadata__"
MAX_LINE = 1 << 14  # bytes of a tensor's fields: 64 axes and two offsets of 20 digits each are 1,500

_SIZE = b"(?:0|[1-9][0-9]{0,19})"
_PLAIN = (
    rb'~"([^"\\\x00-\x1f]{1,NAME})"~:~\{~"dtype"~:~"([A-Z0-9_]+)"~,~"shape"~:~\[~((?:#(?:~,~#){0,AXES}+)?+)~\]~,'
    rb'~"data_offsets"~:~\[~(#)~,~(#)~\]~\}'.replace(b"NAME", b"%d" % MAX_NAME)
    .replace(b"AXES", b"%d" % (MAX_RANK - 1))
    .replace(b"~", SPACE)
    .replace(b"#", _SIZE)
)
"""A line as `safetensors` itself and every other known writer writes it: `~` is white space, `#` a number."""


class _Place(TypedDict):
    """Where an error is."""

    path: str
    offset: int


class _Line(NamedTuple):
    """What the header states of one tensor; `behind` is the place after its line."""

    name: str
    type: BlockType
    shape: tuple[int, ...]
    begin: int
    end: int
    behind: int


@dataclass(frozen=True, slots=True)
class _Table:
    """What the header of one file states."""

    tensors: TensorTable
    metadata: Mapping[str, str]
    nbytes: int
    notes: tuple[str, ...]


def probe(head: bytes, path: str, size: int) -> Match | None:
    """Claim folders of safetensors, indices, files by their content, and `.safetensors` files that are nothing else."""
    if size == 0 and os.path.isdir(path):
        return None if claim(path, CONTAINER) is None else Match(CONTAINER)
    if path.endswith(".safetensors.index.json"):
        return Match(CONTAINER)
    length = int.from_bytes(head[:PREFIX], "little")
    plausible = 2 <= length <= min(size - PREFIX, MAX_JSON)
    if plausible and head[PREFIX:].lstrip(WHITESPACE.encode()).startswith((b'{"', b"{}")):
        return Match(CONTAINER)
    if path.lower().endswith(SUFFIXES) and not looks_foreign(head, path):
        return Match(CONTAINER)
    return None


def open_checkpoint(path: str, layouts: Sequence[HeaderLayout] = ()) -> Checkpoint:
    """Open the checkpoint at `path`: a file, a shard (its whole model is opened), an index, or a folder.

    Raises NotFoundError, UnknownFormatError, UnsupportedTypeError, and every CorruptError.
    """
    weights = locate(path, CONTAINER)
    refuse_container(weights, CONTAINER)
    index = None if weights.index is None else read_index(weights.index)
    files = tuple(open_source(f, weights.folder) for f in (weights.files if index is None else index.files))
    tables = list(_tables(files))
    tensors, index_notes = join_files([(f.path, t.tensors) for f, t in zip(files, tables, strict=True)], index)
    beside = sidecars(weights)
    config, caveats = configuration(weights, beside)
    header: JSONObject = {"metadata": {key: text for table in reversed(tables) for key, text in table.metadata.items()}}
    if index is not None:
        header["index"] = dict(index.metadata)
    notes = (*weights.notes, *(note for table in tables for note in table.notes), *index_notes, *caveats)
    return Checkpoint(
        CONTAINER, None, files, tensors, header, config, era="since September 2022", notes=notes, sidecars=beside
    )


def _tables(files: Sequence[Source]) -> Iterator[_Table]:
    """Yield what the headers state, one after another. Raises OutOfRangeError where they are too much together."""
    tensors, nbytes = 0, 0
    for number, source in enumerate(files):
        table = read_table(source, number)
        tensors, nbytes = tensors + len(table.tensors), nbytes + table.nbytes
        for what, found, most in (
            ("number of tensors", tensors, MAX_TENSORS),
            ("bytes of headers", nbytes, MAX_HEADERS),
        ):
            if found > most:
                raise OutOfRangeError(f"{what} in all files", path=source.path, found=found, expected=f"≤ {most}")
        yield table


def read_table(source: Source, file: int = 0) -> _Table:
    """Return the tensors of one file in the order of their bytes. Reads the header only."""
    if source.size < PREFIX:
        raise TruncatedError(
            "the file is too short for a safetensors header", path=source.path, offset=0, found=source.size
        )
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
    header = _Header(text, source.path)
    header.read()
    notes = () if text.startswith(b"{") else (f"{source.path}: whitespace before the header, against the format",)
    data = PREFIX + length
    places = header.in_order()
    header.check_cover(places, source.size - data)

    def ref(row: int) -> TensorRef:
        line = header.line(header.places[row])
        return TensorRef(line.name, line.type, line.shape, (Span(file, data + line.begin, line.shape),))

    def name(row: int) -> str:
        return header.name(header.places[row])

    return _Table(TensorTable(places, ref, name), header.metadata, length, notes)


class _Header:
    """The JSON of a header, read line by line.

    Of a million lines nothing is kept but `places`, `begins` and `ends`: where each tensor's line is, and the range of
    its data.
    """

    def __init__(self, text: bytes, path: str) -> None:
        self.text, self.path = text, path
        self.walk = Walk(text, path, PREFIX)
        self.metadata: dict[str, str] = {}
        self.places, self.begins, self.ends = array("I"), array("Q"), array("Q")
        self._match = pattern(_PLAIN).match
        self.types = {name.encode(): block_type(name) for name in TYPES}

    def read(self) -> None:
        """Read every line once. Raises at the first that is wrong."""
        walk, names, has_metadata = self.walk, set[str](), False
        more = walk.enter("header")
        while more:
            place = walk.pos
            line = self._plain(place)
            if line is None or not _is_well(line):
                at, key = walk.key()
                if key == METADATA:
                    if has_metadata:
                        raise DuplicateError("duplicate JSON key", **self._place(at), found=key)
                    has_metadata = True
                    self._read_metadata(at)
                    more = walk.more()
                    continue
                line = self._careful(at, key)
            if line.name in names:
                raise DuplicateError("duplicate JSON key", **self._place(place), found=line.name)
            names.add(line.name)
            self._add(place, line)
            walk.pos = line.behind
            more = walk.more()
        walk.finish()

    def line(self, place: int) -> _Line:
        """Return the line at `place`, which `read` found to be valid."""
        line = self._plain(place)
        if line is None:
            self.walk.pos = place
            line = self._careful(*self.walk.key())
        return line

    def _plain(self, place: int) -> _Line | None:
        """Return the line at `place`, if it is written in the usual form."""
        match = self._match(self.text, place)
        if match is None:
            return None
        name, dtype, sizes, begin, end = match.groups()
        try:
            shape = tuple(map(int, sizes.split(b","))) if sizes else ()
            return _Line(name.decode(), self.types[dtype], shape, int(begin), int(end), match.end())
        except (KeyError, UnicodeDecodeError):
            return None

    def name(self, place: int) -> str:
        """Return the name in the line at `place`, which `read` found to be valid."""
        self.walk.pos = place
        return self.walk.key()[1]

    def _careful(self, at: int, name: str) -> _Line:
        """Read the rest of the line at `at`, whose key was read, field by field.

        Raises the error of the first that is wrong.
        """
        place = self._place(at)
        if not 0 < len(name.encode()) <= MAX_NAME:
            raise OutOfRangeError("length of a tensor's name", **place, expected=f"1 to {MAX_NAME} bytes")
        fields = self.walk.value(f"fields of {name[:80]!r}", MAX_LINE)
        if not isinstance(fields, dict) or fields.keys() != FIELDS:
            raise InconsistentError(f"fields of {name!r}", **place, found=fields, expected=sorted(FIELDS))
        kind = _type(name, fields["dtype"], place)
        shape = _sizes(f"shape of {name!r}", fields["shape"], place)
        if len(shape) > MAX_RANK or any(size > MAX_DIM for size in shape):
            raise OutOfRangeError(
                f"shape of {name!r}", **place, found=shape[:MAX_RANK], expected=f"≤ {MAX_RANK} axes of ≤ {MAX_DIM}"
            )
        offsets = _sizes(f"data_offsets of {name!r}", fields["data_offsets"], place)
        if len(offsets) != 2 or offsets[0] > offsets[1]:
            raise OutOfRangeError(f"data_offsets of {name!r}", **place, found=offsets, expected="[begin, end]")
        begin, end = offsets
        if kind.nbytes(shape) != end - begin:
            message = f"bytes of {name!r}, {kind} {list(shape)}"
            raise ShapeError(message, **place, found=end - begin, expected=kind.nbytes(shape))
        return _Line(name, kind, shape, begin, end, self.walk.pos)

    def _add(self, place: int, line: _Line) -> None:
        if len(self.places) >= MAX_TENSORS:
            raise OutOfRangeError("number of tensors", **self._place(place), expected=f"≤ {MAX_TENSORS}")
        if line.end >= 1 << 63:
            raise OverlapError(f"{line.name!r} ends beyond any file", **self._place(place), found=line.end)
        self.places.append(place)
        self.begins.append(line.begin)
        self.ends.append(line.end)

    def _read_metadata(self, at: int) -> None:
        """Read `__metadata__`, an object of strings or null."""
        walk, size = self.walk, 0
        if self.text.startswith(b"null", walk.pos):
            walk.pos += 4
            return
        for place, key, value in walk.pairs(METADATA, MAX_METADATA):
            size += len(key) + len(value)
            if size > MAX_METADATA or len(self.metadata) >= MAX_METADATA_KEYS:
                limit = f"≤ {MAX_METADATA_KEYS} keys in ≤ {MAX_METADATA} characters"
                raise OutOfRangeError(f"size of {METADATA}", **self._place(place), found=size, expected=limit)
            if key in self.metadata:
                raise DuplicateError("duplicate JSON key", **self._place(place), found=key)
            self.metadata[key] = value

    def in_order(self) -> Sequence[int]:
        """Return the numbers of the lines in the order of their data."""
        rows = range(len(self.places))
        pairs = zip(self.begins, self.ends, strict=True)
        if all(before <= after for before, after in pairwise(pairs)):
            return rows
        return array("I", sorted(sorted(rows, key=self.ends.__getitem__), key=self.begins.__getitem__))

    def check_cover(self, order: Sequence[int], held: int) -> None:
        """Check that each of the `held` bytes of data belongs to exactly one tensor: no gap, no overlap, no rest."""
        end, data = 0, PREFIX + len(self.text)
        for row in order:
            if (begin := self.begins[row]) != end:
                words = "begins inside another tensor" if begin < end else "leaves a hole before it"
                place = self.places[row]
                name = self.line(place).name
                raise OverlapError(f"{name!r} {words}", **self._place(place), found=begin, expected=end)
            end = self.ends[row]
        if end > held:
            message = "the file ends inside its tensors"
            raise TruncatedError(message, path=self.path, offset=data + held, found=held, expected=end)
        if end < held:
            message = "bytes follow the last tensor"
            raise TrailingBytesError(message, path=self.path, offset=data + end, found=held - end)

    def _place(self, at: int) -> _Place:
        """Return path and offset of the line at `at`, for an error."""
        head = self.text[at : at + 64]
        return {"path": self.path, "offset": PREFIX + at + len(head) - len(head.lstrip(b" \t\r\n"))}


def _is_well(line: _Line) -> bool:
    shape = line.shape
    if line.name == METADATA or (shape and max(shape) > MAX_DIM):
        return False
    return line.type.nbytes(shape) == line.end - line.begin


def _type(name: str, found: Any, place: Mapping[str, Any]) -> BlockType:
    if isinstance(found, str) and found in TYPES:
        return block_type(found)
    known = isinstance(found, str) and found in NOT_CARRIED
    words = "a type that ggferry does not carry" if known else "an unknown type"
    raise UnsupportedTypeError(f"{name!r} has {words}", **place, found=found, expected=sorted(TYPES))


def _sizes(what: str, found: Any, place: Mapping[str, Any]) -> tuple[int, ...]:
    if not isinstance(found, list) or not all(type(size) is int and size >= 0 for size in found):
        raise OutOfRangeError(what, **place, found=found, expected="a list of whole numbers ≥ 0")
    return tuple(found)


CONTAINERS = (
    Container(CONTAINER, "safetensors", Kind.TRAINING),
    Container("configuration", "configuration and tokenizer", Kind.TRAINING),  # such a folder without its weights
)
# Before pickles; a whole model before an adapter to another one.
WEIGHTS = (
    WeightsName(1, CONTAINER, "model", "safetensors"),
    WeightsName(2, CONTAINER, "consolidated", "safetensors"),
    WeightsName(5, CONTAINER, "adapter_model", "safetensors"),
)

SPEC = Reader(CONTAINER, probe, open_checkpoint, CONTAINERS, SUFFIXES, WEIGHTS, SUFFIXES)
