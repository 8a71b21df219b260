"""Read GGML, GGMF, GGJT and GGCC: the containers before GGUF.

A file holds the magic, a version (not in GGML), header fields that depend on the architecture, the vocabulary, then
tensor records until the end of the file. There is no count anywhere, so a walk that does not end exactly at the last
byte is not a valid reading of the file. Nothing states the architecture either. Every layout known for the container is
tried, and those that read to the last byte are distinguished by the names of the tensors. Sources:
docs/formats/ggml-era.md and the loaders and writers of llama.cpp, ggml's examples, ggllm.cpp, rwkv.cpp, whisper.cpp and
llm-rs named there.
"""

from __future__ import annotations

import fnmatch
import os
import re
import struct
from collections.abc import Sequence
from dataclasses import replace

from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import (
    AmbiguousError,
    CorruptError,
    MissingError,
    OutOfRangeError,
    UnexpectedTensorError,
    UnsupportedError,
)
from ggferry.formats.fields import Cursor
from ggferry.formats.files.local_files import read_start
from ggferry.formats.files.sources import Source, open_source
from ggferry.formats.ggml.prelude import Runs, read_prelude
from ggferry.formats.ggml.records import ALIGNMENT, Records, read_records, with_planes
from ggferry.formats.ggml.split_files import join_parts
from ggferry.formats.ggml.types import Version, era_of
from ggferry.formats.reader import Container, HeaderLayout, Kind, Match, Reader

CONTAINERS = (
    Container("ggml", "GGML", Kind.LEGACY, (b"lmgg",)),
    Container("ggmf", "GGMF", Kind.LEGACY, (b"fmgg",), (1, 100, 101)),
    Container("ggjt", "GGJT", Kind.LEGACY, (b"tjgg",), (1, 2, 3)),
    Container("ggcc", "GGCC", Kind.LEGACY, (b"ccgg",), (10,)),
)
MAGIC = {one.magics[0]: one.name for one in CONTAINERS} | {b"nsgg": "ggsn"}
"""The four bytes on disk: a little-endian u32 such as 0x67676d6c appears reversed."""
HEAD = 64 << 10  # bytes; nearly always the header and the vocabulary of a tiny model, or the beginning of one
VERSIONS = {one.name: one.versions for one in CONTAINERS}
NOT_MODELS = {
    "ggsn": "a saved llama.cpp session (GGSN): the state of a conversation, not a model",
}


def probe(head: bytes, path: str, size: int) -> Match | None:
    """Claim files with one of the four magics, and those whose reversed magic marks a big-endian file."""
    container = MAGIC.get(head[:4])
    if container is None:
        return Match("ggml-big-endian") if head[:4] in {one.magics[0][::-1] for one in CONTAINERS} else None
    versioned = VERSIONS.get(container, (None,)) != (None,)
    version = struct.unpack("<i", head[4:8])[0] if versioned and len(head) >= 8 else None
    return Match(container, version)


def read(path: str, layouts: Sequence[HeaderLayout]) -> Checkpoint:
    """Open a file, or all parts of a split one; `layouts` are the header layouts to try."""
    base, note = _base_of(path)
    source = open_source(base)
    try:
        first = _reading(source, layouts)
        layout = next(layout for layout in layouts if layout.name == first.layout)
        checkpoint = join_parts(base, first, layout, lambda part: _reading(open_source(part), [layout]))
    except BaseException:
        source.close()
        raise
    return replace(checkpoint, notes=(note, *checkpoint.notes)) if note else checkpoint


def _base_of(path: str) -> tuple[str, str]:
    """Return the first file of a split model, and a note if another part of it was named."""
    match = re.fullmatch(r"(.+)\.([1-9]\d?)", path)
    if match and os.path.isfile(match[1]) and read_start(match[1], 4) in MAGIC:
        return match[1], f"{os.path.basename(path)} is part {match[2]} of {os.path.basename(match[1])}"
    return path, ""


def _reading(source: Source, layouts: Sequence[HeaderLayout]) -> Checkpoint:
    """Return the reading under the one layout that reaches the last byte and has that architecture's tensor names."""
    version = _version(source)
    candidates = [layout for layout in layouts if version in layout.containers]
    found: list[Checkpoint] = []
    failures: list[tuple[int, str, CorruptError]] = []
    runs: Runs = {}
    known = source.read(0, min(HEAD, source.size))  # for every layout
    records = Records()
    for layout in candidates:
        records.begin = 0
        try:
            found.append(_read_as(source, version, layout, runs, records, known))
        except CorruptError as error:
            failures.append((records.begin if error.offset is None else error.offset, layout.name, error))
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(str(checkpoint.layout) for checkpoint in found)
        if not any(checkpoint.tensors for checkpoint in found):
            raise MissingError(
                "vocabulary without tensors: a model cut exactly there, or the vocabulary of one of several families",
                path=source.path,
                offset=source.size,
                found=names,
                hint="--arch NAME with --vocab-only",
            )
        raise AmbiguousError("several architectures fit these bytes", path=source.path, found=names, hint="--arch NAME")
    if not failures:
        raise UnsupportedError("no architecture is known for this container", path=source.path, found=version[0])
    if version == ("ggml", None):
        from ggferry.formats.ggml.other_programs import refuse_other_program  # few files need it

        refuse_other_program(source)
    raise _complaint(failures)


def _complaint(failures: Sequence[tuple[int, str, CorruptError]]) -> CorruptError:
    """Return the error of the layout that got furthest into the file: most likely it is the file's own.

    Another family's layout may get as far by chance, with words that are about no field of the file; so of several the
    error says under which it was read.
    """
    _, name, error = max(failures, key=lambda failure: failure[0])
    if len(failures) > 1 and error.hint is None:
        error.hint = f"read as {name}, which came furthest of {len(failures)} layouts; --arch NAME names another"
    return error


def _version(source: Source) -> Version:
    cursor = Cursor(source)
    magic = cursor.take(4, "the magic number")
    container = MAGIC.get(magic)
    if container is None:
        raise UnsupportedError(
            "byte-reversed magic: written by a big-endian machine, which no program of that time could read back",
            path=source.path,
            offset=0,
            found=magic,
        )
    if container in NOT_MODELS:
        raise UnsupportedError(f"this is {NOT_MODELS[container]}", path=source.path, offset=0)
    if VERSIONS[container] == (None,):
        return container, None
    version = cursor.integer("i32", f"{container} version")
    if version not in VERSIONS[container]:
        expected = " or ".join(map(str, VERSIONS[container]))
        raise OutOfRangeError(
            f"{container} version that never existed", path=source.path, offset=4, found=version, expected=expected
        )
    return container, version


def _read_as(
    source: Source, version: Version, layout: HeaderLayout, runs: Runs, records: Records, known: bytes
) -> Checkpoint:
    prelude = read_prelude(source, version, layout, runs, known)
    records.begin = prelude.records
    refs, notes = read_records(source, prelude, records)
    if refs and not any(fnmatch.fnmatchcase(ref.name, pattern) for pattern in layout.names for ref in refs):
        raise UnexpectedTensorError(
            f"no tensor of a {layout.name} model", path=source.path, offset=prelude.records, found=refs[0].name
        )
    tensors = {ref.name: ref for ref in with_planes(source, prelude, refs)}
    types = frozenset(ref.type.name for ref in tensors.values())
    if prelude.matrix is not None and tensors:
        tensors[prelude.matrix.name] = prelude.matrix
    return Checkpoint(
        container=version[0],
        version=version[1],
        files=(source,),
        tensors=tensors,
        header=prelude.header,
        vocab=prelude.vocab,
        layout=layout.name,
        era=era_of(version, types, layout, int(prelude.header.get("ftype", 0))),
        alignment=ALIGNMENT[version[0]],
        notes=(*prelude.notes, *notes),
    )


SPEC = Reader("ggml", probe, read, CONTAINERS, (".bin", ".ggml"))
