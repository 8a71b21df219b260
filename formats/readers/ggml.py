"""GGML, GGMF and GGJT: the containers before GGUF.

Magic, version (not in GGML), int32 header fields shaped by the architecture, vocabulary, then tensor records until
the end of the file, with no count anywhere: a walk that does not end exactly at the last byte is not a reading of
the file. Source: facts/legacy-llama.md §2, the loaders and writers of llama.cpp at the commits named there.
"""

from __future__ import annotations

import fnmatch
import math
import os
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ggferry.formats import limits
from ggferry.formats.checkpoint import Checkpoint, Dropped, RawVocab, Span, TensorRef
from ggferry.formats.errors import (
    AmbiguousError,
    BadValueError,
    CorruptError,
    DuplicateError,
    EncodingError,
    GgferryError,
    InconsistentError,
    NotFoundError,
    OutOfRangeError,
    OverlapError,
    ShapeError,
    TruncatedError,
    UnexpectedTensorError,
    UnsupportedError,
)
from ggferry.formats.fields import Cursor
from ggferry.formats.ggml_types import ALTERNATIVES, PLANAR, TYPE_CODES, Version, era_of
from ggferry.formats.reader import HeaderLayout, Match, Reader
from ggferry.formats.sources import Source, open_source
from ggferry.quant.codec import codecs
from ggferry.quant.types import BlockError

MAGIC = {b"lmgg": "ggml", b"fmgg": "ggmf", b"tjgg": "ggjt", b"nsgg": "ggsn"}
"""The four bytes on disk: a little-endian u32 such as 0x67676d6c stands reversed."""
VERSIONS = {"ggml": (None,), "ggmf": (1,), "ggjt": (1, 2, 3)}
NOT_MODELS = {
    "ggsn": "a saved llama.cpp session (GGSN): the state of a conversation, not a model",
}
ALIGNMENT = {"ggml": 1, "ggmf": 1, "ggjt": 32}
SAMPLE_TENSORS, SAMPLE_ROWS = 8, 8


@dataclass(frozen=True, slots=True)
class Prelude:
    """What stands before the tensors: which layout, the header as found, the vocabulary, where records begin."""

    version: Version
    layout: HeaderLayout
    header: Mapping[str, Any]
    vocab: RawVocab
    records: int
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Record:
    """One tensor record: its type code, shape (outermost first) and where its data begins."""

    name: str
    code: int
    shape: tuple[int, ...]
    at: int
    data: int


def probe(head: bytes, path: str, size: int) -> Match | None:
    """Claims the four magics and the ones that mark byte-reversed files."""
    container = MAGIC.get(head[:4])
    if container is None:
        return Match("ggml-big-endian") if head[:4] in (b"ggml", b"ggmf", b"ggjt") else None
    version = struct.unpack("<i", head[4:8])[0] if container in ("ggmf", "ggjt") and len(head) >= 8 else None
    return Match(container, version)


def read(path: str, layouts: Sequence[HeaderLayout]) -> Checkpoint:
    """Open a file, or all parts of one that was split. `layouts`: the headers to try."""
    base, asked = _base_of(path)
    source = open_source(base)
    try:
        readings = _readings(source, layouts)
        checkpoint = _join_parts(base, readings, layouts)
    except BaseException:
        source.close()
        raise
    return replace(checkpoint, notes=(asked, *checkpoint.notes)) if asked else checkpoint


def _base_of(path: str) -> tuple[str, str]:
    """The first file of a split model, and a note when another part of it was named."""
    match = re.fullmatch(r"(.+)\.([1-9]\d?)", path)
    if match and os.path.isfile(match[1]):
        with open(match[1], "rb") as file:
            if file.read(4) in MAGIC:
                return match[1], f"{os.path.basename(path)} is part {match[2]} of {os.path.basename(match[1])}"
    return path, ""


def _readings(source: Source, layouts: Sequence[HeaderLayout]) -> Checkpoint:
    """The one layout under which the file reads to its last byte with that architecture's names."""
    version = _version(source)
    candidates = [layout for layout in layouts if version in layout.containers]
    found: list[Checkpoint] = []
    failures: list[tuple[int, GgferryError]] = []
    for layout in candidates:
        try:
            found.append(_read_as(source, version, layout))
        except CorruptError as error:
            failures.append((error.offset or 0, error))
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(str(checkpoint.layout) for checkpoint in found)
        raise AmbiguousError("several architectures fit these bytes", path=source.path, found=names, hint="--arch NAME")
    if not failures:
        raise UnsupportedError("no architecture is known for this container", path=source.path, found=version[0])
    # The layout that got furthest into the file is the one whose complaint means something.
    raise max(failures, key=lambda failure: failure[0])[1]


def _version(source: Source) -> Version:
    cursor = Cursor(source)
    magic = cursor.take(4, "the magic number")
    container = MAGIC.get(magic)
    if container is None:
        raise UnsupportedError(
            "byte-reversed magic: written by a big-endian machine, which no program of that time could read back",
            path=source.path, offset=0, found=magic,
        )  # fmt: skip
    if container in NOT_MODELS:
        raise UnsupportedError(f"this is {NOT_MODELS[container]}", path=source.path, offset=0)
    if container == "ggml":
        return container, None
    version = cursor.integer("i32", f"{container} version")
    if version not in VERSIONS[container]:
        expected = " or ".join(map(str, VERSIONS[container]))
        raise OutOfRangeError(
            f"{container} version that never existed", path=source.path, offset=4, found=version, expected=expected
        )
    return container, version


def _read_as(source: Source, version: Version, layout: HeaderLayout) -> Checkpoint:
    prelude = _prelude(source, version, layout)
    refs, notes = _tensors(source, prelude)
    tensors = {ref.name: ref for ref in refs}
    if tensors and not any(fnmatch.fnmatchcase(name, p) for p in layout.names for name in tensors):
        raise UnexpectedTensorError(
            f"no tensor of a {layout.name} model", path=source.path, offset=prelude.records, found=next(iter(tensors))
        )
    return Checkpoint(
        container=version[0],
        version=version[1],
        files=(source,),
        tensors=tensors,
        header=prelude.header,
        vocab=prelude.vocab,
        layout=layout.name,
        era=era_of(version, frozenset(ref.type.name for ref in refs)),
        alignment=ALIGNMENT[version[0]],
        notes=(*prelude.notes, *notes),
    )


def _prelude(source: Source, version: Version, layout: HeaderLayout) -> Prelude:
    cursor = Cursor(source, 4 if version[0] == "ggml" else 8)
    header = layout.header.read(cursor)
    count, notes = int(header["n_vocab"]), []
    scored = version[0] != "ggml"
    size = count - 1
    tokens, scores = cursor.strings_with(size, "i32", "f32", "token", limits.MAX_TOKEN_BYTES) if scored else (
        cursor.strings(size, "i32", "token", limits.MAX_TOKEN_BYTES), []
    )  # fmt: skip
    if _is_record(source, cursor.offset, layout.embedding):
        # GPT4All's unversioned files declare 32001 tokens and hold 32000 (facts §2).
        notes.append(f"the header declares {count} tokens, the vocabulary holds {size}: the last one was never written")
    else:
        tokens.append(cursor.string("i32", f"token {size}", limits.MAX_TOKEN_BYTES))
        if scored:
            scores.append(cursor.number("f32", f"score of token {size}"))
    for index, score in enumerate(scores):
        if not math.isfinite(score):
            raise BadValueError(f"score of token {index} is not a number", path=source.path, found=score)
    vocab = RawVocab(tuple(tokens), tuple(map(float, scores)) if scored else None)
    return Prelude(version, layout, header, vocab, cursor.offset, tuple(notes))


def _is_record(source: Source, offset: int, name: str) -> bool:
    """Whether the record of the 2-D tensor `name` begins at `offset`."""
    wanted = name.encode()
    if not name or offset + 20 + len(wanted) > source.size:
        return False
    head = source.read(offset, 20 + len(wanted))
    return struct.unpack_from("<2i", head) == (2, len(wanted)) and head[20:] == wanted


def _tensors(source: Source, prelude: Prelude) -> tuple[list[TensorRef], list[str]]:
    """The tensors, under the one meaning of the type codes whose walk ends at the last byte."""
    codes = TYPE_CODES[prelude.version]
    notes: list[str] = []
    try:
        refs = list(_walk(source, prelude, codes))
    except CorruptError as first:
        for other, note in ALTERNATIVES.get(prelude.version, ()):
            try:
                refs = list(_walk(source, prelude, {**codes, **other}))
            except CorruptError:
                continue
            notes.append(note)
            break
        else:
            raise first from None
    planar = {name for name in PLANAR if prelude.version == ("ggml", None) and _is_planar(source, refs, name)}
    if planar:
        table = codecs()
        refs = [replace(r, type=table[PLANAR[r.type.name]].type) if r.type.name in planar else r for r in refs]
    return refs, notes


def _walk(source: Source, prelude: Prelude, codes: Mapping[int, str]) -> Iterator[TensorRef]:
    """Every record from the vocabulary to the last byte. Raises a CorruptError where the walk cannot go on."""
    table = codecs()
    alignment = ALIGNMENT[prelude.version[0]]
    seen: set[str] = set()
    offset = prelude.records
    while offset < source.size:
        record = _record(source, offset, codes, alignment)
        if record.name in seen:
            raise DuplicateError("a tensor stands twice", path=source.path, offset=offset, found=record.name)
        if len(seen) >= limits.MAX_TENSORS:
            raise OutOfRangeError("too many tensors", path=source.path, offset=offset, expected=limits.MAX_TENSORS)
        seen.add(record.name)
        kind = table[codes[record.code]].type
        try:
            size = kind.nbytes(record.shape)
        except BlockError as error:
            raise ShapeError(f"tensor {record.name!r}: {error}", path=source.path, offset=offset) from None
        if record.data + size > source.size:
            raise TruncatedError(
                f"the file ends inside tensor {record.name!r}", path=source.path, offset=record.data,
                found=f"{source.size - record.data} bytes", expected=f"{size} bytes",
            )  # fmt: skip
        yield TensorRef(record.name, kind, record.shape, (Span(0, record.data, record.shape),))
        offset = record.data + size


def _record(source: Source, offset: int, codes: Mapping[int, str], alignment: int) -> Record:
    cursor = Cursor(source, offset, end=min(source.size, offset + 12 + 16 + limits.MAX_NAME + alignment))
    dims = cursor.integer("i32", "a tensor's number of dimensions", 1, 2)
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
    """Whether tensors of `name` are laid out in planes, not blocks (facts §6: read as blocks, 44–64 % of the scales
    of planar rows are absurd, none of block rows; and in unversioned GGML no scale is negative)."""
    mine = [ref for ref in refs if ref.type.name == name]
    if not mine:
        return False
    absurd = total = 0
    for ref in mine[:: max(1, len(mine) // SAMPLE_TENSORS)]:
        data = source.read(ref.spans[0].offset, min(SAMPLE_ROWS, ref.rows) * ref.row_bytes)
        scales = [block[0] for block in struct.iter_unpack(f"<f{ref.type.block_bytes - 4}x", data)]
        absurd += sum(not (d == 0 or 1e-12 <= d <= 1e3) for d in scales)
        total += len(scales)
    share = absurd / total
    if 0.01 < share < 0.2:
        raise AmbiguousError(
            f"{name[:4]} rows read neither as blocks nor as planes", path=source.path,
            found=f"{absurd} absurd scales in {total} blocks",
        )  # fmt: skip
    return share >= 0.2


def _join_parts(base: str, first: Checkpoint, layouts: Sequence[HeaderLayout]) -> Checkpoint:
    """The whole model of `first` and the part files beside it (`.1`, `.2`, …)."""
    layout = next(layout for layout in layouts if layout.name == first.layout)
    count = _part_count(first, layout)
    if count == 1:
        return first
    parts = [first]
    try:
        for number in range(1, count):
            path = f"{base}.{number}"
            if not os.path.isfile(path):
                raise NotFoundError(f"part {number} of {count} is missing", path=path)
            parts.append(_readings(open_source(path), [layout]))
            _check_part(first, parts[-1])
        tensors = {name: _join(name, [part.tensors[name] for part in parts], layout) for name in first.tensors}
    except BaseException:
        for part in parts[1:]:
            part.close()
        raise
    dropped = tuple(
        Dropped(_in_file(part.tensors[name], number), f"part {number} repeats the vector of part 0", same_as=ref)
        for number, part in enumerate(parts) if number
        for name, ref in first.tensors.items() if len(ref.shape) == 1
    )  # fmt: skip
    files = tuple(part.files[0] for part in parts)
    return replace(first, files=files, tensors=tensors, dropped=dropped, notes=(*first.notes, f"{count} parts"))


def _part_count(first: Checkpoint, layout: HeaderLayout) -> int:
    """Parts of the model: the header's width over the columns of the embedding in part 0 (facts §2: the table by
    n_embd that the March runtime used is wrong for single-file models)."""
    ref = first.tensors.get(layout.embedding)
    if ref is None or first.container == "ggjt":
        return 1
    width = int(first.header[layout.width])
    count, rest = divmod(width, ref.columns)
    if rest or not 1 <= count <= limits.MAX_PARTS:
        raise ShapeError(
            f"{ref.name}: columns that do not divide the model's {layout.width}",
            path=first.path, offset=ref.spans[0].offset, found=ref.columns, expected=f"{width} or a part of it",
        )  # fmt: skip
    return count


def _check_part(first: Checkpoint, part: Checkpoint) -> None:
    if dict(part.header) != dict(first.header):
        name = next(key for key in first.header if first.header[key] != part.header[key])
        raise InconsistentError(
            f"parts of different models: header field {name}",
            path=part.path, found=part.header[name], expected=first.header[name],
        )  # fmt: skip
    if part.vocab != first.vocab:
        raise InconsistentError("parts of different models: the vocabularies differ", path=part.path)
    odd = sorted(set(first.tensors) ^ set(part.tensors))
    if odd:
        raise InconsistentError("a tensor that not every part has", path=part.path, found=odd[0])


def _join(name: str, pieces: Sequence[TensorRef], layout: HeaderLayout) -> TensorRef:
    first = pieces[0]
    if len(first.shape) == 1:
        return first
    axis = -1 if any(fnmatch.fnmatchcase(name, pattern) for pattern in layout.column_split) else 0
    kept = 0 if axis else 1
    for piece in pieces[1:]:
        if piece.type != first.type or len(piece.shape) != 2 or piece.shape[kept] != first.shape[kept]:
            raise InconsistentError(
                f"parts of {name!r} do not fit together", found=f"{piece.type} {piece.shape}",
                expected=f"{first.type} {first.shape}",
            )  # fmt: skip
    total = sum(piece.shape[axis] for piece in pieces)
    shape = (first.shape[0], total) if axis else (total, first.shape[1])
    spans = tuple(replace(piece.spans[0], file=number) for number, piece in enumerate(pieces))
    return TensorRef(name, first.type, shape, spans, axis)


def _in_file(ref: TensorRef, number: int) -> TensorRef:
    return replace(ref, spans=tuple(replace(span, file=number) for span in ref.spans))


SPEC = Reader("ggml", probe, read)
