"""Read the model inside a compressed file (gzip, bzip2, xz, zstd), a zip archive or a tar archive.

What is stored as it is is read where it lies; what is compressed is unpacked once, into a temporary file. The reader of
what is inside does the rest. Containers of weights that are zip or tar archives themselves are those of their readers.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from ggferry.formats.checkpoint import Checkpoint, Dropped, Span, TensorRef
from ggferry.formats.errors import AmbiguousError, GgferryError, UnknownFormatError, UnsupportedError
from ggferry.formats.files.local_files import read_start
from ggferry.formats.files.sources import open_source
from ggferry.formats.gguf.shards import shard_of
from ggferry.formats.packed.kinds import COMMANDS, kind_of_packing
from ggferry.formats.reader import (
    HEAD_BYTES,
    Container,
    HeaderLayout,
    Kind,
    Match,
    Reader,
    container_by_magic,
    describe,
    model_suffixes,
    readers,
)
from ggferry.quant.codec import block_type

if TYPE_CHECKING:
    from ggferry.formats.packed.as_folder import PackedFolder

CONTAINER = "packed"
_OTHER_FILE = "another file of the archive"


def probe(head: bytes, path: str, size: int) -> Match | None:
    """Claim compressed files, and archives that are no container of weights."""
    return Match(CONTAINER) if head and kind_of_packing(head, path) else None


def open_checkpoint(path: str, layouts: Sequence[HeaderLayout] = ()) -> Checkpoint:
    """Open the model inside the file at `path`.

    The files of the checkpoint have its path. Raises UnknownFormatError where there is none, AmbiguousError for
    several, UnsupportedError for what is packed twice or encrypted, RefusedError for what expands beyond all measure,
    and what the reader of what is inside raises.
    """
    from ggferry.formats.packed.as_folder import packed_folder

    packed = packed_folder(path)
    packed.retain()
    try:
        inner = packed.only or _chosen(packed)
        return _known(_reader_of(inner, packed).open(inner, layouts), packed, inner)
    except GgferryError as error:
        error.path = packed.known_by(error.path)
        raise
    finally:
        packed.release()


def _known(found: Checkpoint, packed: PackedFolder, inner: str) -> Checkpoint:
    """Return a checkpoint as one of the packed file, with the other files of the archive among what is dropped."""
    opened = {file.path for file in found.files}
    beside = {role: packed.origin(path) for role, path in found.sidecars.items()}
    used = opened | set(found.sidecars.values())
    others = [one for path, one in packed.members.items() if path not in used]
    for file in found.files:
        file.path = packed.path  # type: ignore[misc] # it is one that we opened
    dropped = tuple(Dropped(_as_tensor(one.name, one.size), _OTHER_FILE) for one in others)
    notes = (*found.notes, _note(packed, inner))
    found = replace(found, notes=notes, dropped=(*found.dropped, *dropped), sidecars=beside)
    title = os.path.basename(inner) if inner != packed.folder else os.path.basename(packed.path).partition(".")[0]
    return replace(found, title=title) if os.path.isdir(inner) and not found.title else found


def _note(packed: PackedFolder, inner: str) -> str:
    """Return how the model was read, in words."""
    name = os.path.relpath(inner, packed.folder)
    if not packed.kind:
        return f"{name}, compressed with {packed.stream}: unpacked to {packed.size:,} bytes"
    kind = f"{packed.kind} compressed with {packed.stream}" if packed.stream else packed.kind
    within = "the folder" if name == "." else name
    member = packed.members.get(inner)
    if member is not None and member.is_stored and not packed.stream:
        return f"{within} of a {kind}, read where it lies, at byte {packed.place_of(member):,}"
    return f"{within} of a {kind}"


def _as_tensor(name: str, size: int) -> TensorRef:
    """Return bytes of the archive as what is dropped is named in receipts; they are never read."""
    return TensorRef(name, block_type("U8"), (size,), (Span(0, 0, (size,)),))


# --- which of the files it is --------------------------------------------------------------------------------------


def _chosen(packed: PackedFolder) -> str:
    """Return the path below the folder of the model that an archive holds: a folder, or a file of its own.

    Of several GGUF files, the largest that is no mmproj file. Raises UnknownFormatError where there is none, and
    AmbiguousError for several others.
    """
    folders = sorted({*map(os.path.dirname, packed.members)}, key=lambda path: (path.count(os.sep), path))
    models = [path for path in folders if _match(b"", path, 0) is not None]
    nearest = [path for path in models if path.count(os.sep) == models[0].count(os.sep)]
    if not nearest:
        nearest = [path for path in sorted(packed.members) if _is_model(path, packed)]
        if len(nearest) > 1 and all(path.lower().endswith(".gguf") for path in nearest):
            texts = [path for path in nearest if "mmproj" not in path.lower()] or nearest
            nearest = [max(texts, key=lambda path: packed.members[path].size)]
    if len(nearest) == 1:
        return nearest[0]
    if not nearest:
        expected = f"a folder or a file of a model, such as *{', *'.join(_USUAL)}"
        raise UnknownFormatError(f"no model in the {packed.kind}", path=packed.path, expected=expected)
    found = [os.path.relpath(path, packed.folder) for path in nearest[:6]]
    hint = f"unpack it, and name one: {COMMANDS[packed.kind]}"
    raise AmbiguousError(f"several models in the {packed.kind}", path=packed.path, found=found, hint=hint)


def _is_model(path: str, packed: PackedFolder) -> bool:
    """Return whether a file may be a model of its own: the first of its shards, if it is one of several."""
    name, shard = os.path.basename(path), shard_of(os.path.basename(path))
    if shard is not None and not name.startswith(f"{shard.stem}-00001-of-"):
        return False
    start = read_start(path, HEAD_BYTES)
    named = name.lower().endswith(model_suffixes()) or container_by_magic(start) is not None
    return named and _match(start, path, packed.members[path].size) is not None


def _match(head: bytes, path: str, size: int) -> Reader | None:
    return next((one for one in readers() if one.name != NAME and one.probe(head, path, size) is not None), None)


def _reader_of(path: str, packed: PackedFolder) -> Reader:
    """Return the reader of what is inside. Raises UnknownFormatError, and UnsupportedError for what is packed twice."""
    if os.path.isdir(path):
        head, size = b"", 0
    else:
        with closing(open_source(path)) as source:
            head, size = source.read(0, min(HEAD_BYTES, source.size)), source.size
    if head and (again := kind_of_packing(head, path)):
        hint = f"unpack it: {COMMANDS[packed.kind or packed.stream]}"
        raise UnsupportedError("packed more than once", path=path, found=again, hint=hint)
    found = _match(head, path, size)
    if found is None:
        message = f"no known model container inside the {packed.kind or f'{packed.stream} stream'}"
        raise UnknownFormatError(message, path=path, offset=0, found=describe(head, path))
    return found


NAME = "archives"
_USUAL = (".gguf", ".safetensors", ".bin", ".pth")

SPEC = Reader(NAME, probe, open_checkpoint, (Container(CONTAINER, "packed", Kind.PACKED, storage_word=False),))
