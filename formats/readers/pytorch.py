"""PyTorch checkpoints: `.pth`, `.pt`, `.bin` written by torch.save since 1.6, one file or many; Meta's parts.

The archive is read by `formats.zip_spans`, its pickle by `formats.pickle_spans`: nothing in it is run, ever, and there
is no other way to load it here. Source of the container: `caffe2/serialize/inline_container.cc` and
`torch/serialization.py` 2.13. Older streams and tars are named and refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ggferry.formats.checkpoint import Checkpoint, Checksum, Dropped, Span, TensorRef
from ggferry.formats.errors import (
    EncodingError,
    InconsistentError,
    MissingError,
    OutOfRangeError,
    UnknownFormatError,
    UnsafePickleError,
    UnsupportedError,
    UnsupportedVersionError,
)
from ggferry.formats.folder import (
    claim,
    configuration,
    is_meta_part,
    locate,
    refuse_container,
    refuse_foreign,
    sidecars,
)
from ggferry.formats.limits import MAX_PICKLE
from ggferry.formats.meta_parts import CONTAINER as META
from ggferry.formats.meta_parts import join_parts
from ggferry.formats.pickle_spans import Storage, View, read_pickle
from ggferry.formats.reader import HEAD_BYTES, HeaderLayout, Match, Reader
from ggferry.formats.shard_index import join_files, read_index
from ggferry.formats.sources import LocalFile, Source
from ggferry.formats.state_dict import find_state
from ggferry.formats.zip_spans import Archive, Entry, read_archive

CONTAINER = "pytorch"
SUFFIXES = (".pth", ".pt", ".bin", ".ckpt")
ZIP = b"PK\3\4"
# torch.save before 1.6: pickles of a magic number, a version, system facts and the object (torch/serialization.py)
STREAM_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
TAR_MEMBERS = (b"sys_info", b"pickle", b"storages", b"tensors")  # torch before 0.1.10
VERSIONS = range(1, 11)  # kMinSupportedFileFormatVersion … kMaxSupportedFileFormatVersion
SMALL = 64  # bytes of a record that holds one word
_RESAVE = "in Python: torch.save(torch.load(OLD, map_location='cpu', weights_only=True), NEW)"


@dataclass(frozen=True, slots=True)
class _Contents:
    """What one file holds."""

    tensors: dict[str, TensorRef]
    dropped: tuple[Dropped, ...]
    checksums: tuple[Checksum, ...]
    header: Mapping[str, Any]
    version: int
    notes: tuple[str, ...]


def probe(head: bytes, path: str, size: int) -> Match | None:
    """Claims folders, indices, zips that begin with a pickle or bear one of our suffixes, and the two older forms."""
    if size == 0 and os.path.isdir(path):
        container = claim(path, CONTAINER, META)
        return None if container is None else Match(container)
    if path.endswith(".bin.index.json"):
        return Match(CONTAINER)
    ours = path.lower().endswith(SUFFIXES)
    if head.startswith(ZIP):
        first = head[30 : 30 + int.from_bytes(head[26:28], "little")]
        return Match(META if is_meta_part(path) else CONTAINER) if ours or first.endswith(b"/data.pkl") else None
    old = head.startswith(STREAM_MAGIC) or (ours and head[:1] == b"\x80" and head[1:2] <= b"\5")
    return Match(CONTAINER) if old or _is_old_tar(head) else None


def _is_old_tar(head: bytes) -> bool:
    return head[257:262] == b"ustar" and head[:100].rstrip(b"\0").removeprefix(b"./") in TAR_MEMBERS


def open_checkpoint(path: str, layouts: Sequence[HeaderLayout] = ()) -> Checkpoint:
    """The checkpoint at `path`: a file, a shard or part (all of its model is opened), an index, or a folder.

    `layouts` say how Meta's parts are joined. Raises NotFoundError, UnknownFormatError, UnsupportedError,
    UnsafePickleError, and every CorruptError.
    """
    weights = locate(path, CONTAINER)
    refuse_container(weights, CONTAINER, META)
    index = None if weights.index is None else read_index(weights.index)
    files = tuple(LocalFile(file) for file in (weights.files if index is None else index.files))
    contents = [read_contents(source, number) for number, source in enumerate(files)]
    beside = sidecars(weights)
    config, remarks = configuration(weights, beside)
    parts, layout = [(source.path, held.tensors) for source, held in zip(files, contents, strict=True)], None
    dropped = tuple(each for held in contents for each in held.dropped)
    told: tuple[str, ...] = ()
    if weights.container == META:
        tensors, copies, layout = join_parts([f.path for f in files], [part for _, part in parts], layouts, config)
        dropped += copies
    else:
        tensors, told = join_files(parts, index)
    big_endian = any(held.header["byteorder"] == "big" for held in contents)
    header = dict(contents[0].header) if index is None else {**contents[0].header, "index": dict(index.metadata)}
    return Checkpoint(
        weights.container,
        contents[0].version,
        files,
        tensors,
        header,
        config,
        layout=layout,
        era="torch.save, since PyTorch 1.6 (July 2020)",
        big_endian=big_endian,
        notes=(*weights.notes, *dict.fromkeys(note for held in contents for note in held.notes), *told, *remarks),
        dropped=dropped,
        sidecars=beside,
        checksums=tuple(checksum for held in contents for checksum in held.checksums),
    )


def read_contents(source: Source, file: int = 0) -> _Contents:
    """The tensors of one file in the order of its dictionary. Reads the archive's directory and its small records."""
    _refuse_older(source)
    archive = read_archive(source)
    root = _root(archive)
    header = _header(archive, root)
    pickled = archive.entries[f"{root}/data.pkl"]
    if pickled.nbytes > MAX_PICKLE:
        limit = f"≤ {MAX_PICKLE}"
        raise OutOfRangeError("size of data.pkl", path=source.path, found=pickled.nbytes, expected=limit)
    value, storages = read_pickle(archive.read(pickled.name), source.path, pickled.offset)
    records = {key: _record(archive, root, storage) for key, storage in storages.items()}
    state = find_state(value, source.path)
    swapped = header["byteorder"] == "big"

    def ref(name: str, view: View) -> TensorRef:
        offset = records[view.storage.key].offset + view.offset * view.type.block_bytes
        span = Span(file, offset, view.shape, None if _is_contiguous(view) else view.strides)
        return TensorRef(name, view.type, view.shape, (span,), big_endian=swapped)

    tensors = {name: ref(name, view) for name, view in state.tensors.items()}
    beside = f"not part of the model under {state.wrapper!r}"
    dropped = tuple(Dropped(ref(name, view), beside) for name, view in state.others.items())
    sums = tuple(Checksum(file, entry.offset, entry.nbytes, entry.crc32) for entry in archive.entries.values())
    notes = (*state.notes, *_remarks(archive, root, records, header), *_shared(tensors))
    version = int(header["version"])
    return _Contents(tensors, dropped, sums if archive.has_checksums else (), header, version, notes)


def _refuse_older(source: Source) -> None:
    """Names what is not a zip archive. `torch.save` has written zip archives since 1.6."""
    head = source.read(0, min(source.size, HEAD_BYTES))
    if head.startswith(ZIP):
        return
    refuse_foreign(head, source.path)
    if head.startswith(STREAM_MAGIC):
        message = "a PyTorch checkpoint in the stream format from before 1.6"
        raise UnsupportedError(message, path=source.path, offset=0, hint=_RESAVE)
    if _is_old_tar(head):
        hint = "only the PyTorch of its time reads it safely; save it again there"
        raise UnsupportedError("a PyTorch checkpoint in the tar format of 2016", path=source.path, offset=0, hint=hint)
    if head[:1] == b"\x80" and head[1:2] <= b"\5":
        hint = "torch.save of the model's state_dict() writes the right thing"
        raise UnsafePickleError("a bare pickle, not a PyTorch checkpoint", path=source.path, offset=0, hint=hint)
    first = f"first bytes {head[:8].hex(' ')}"
    raise UnknownFormatError("not a PyTorch checkpoint", path=source.path, offset=0, found=first)


# --- the archive's own records -----------------------------------------------------------------


def _root(archive: Archive) -> str:
    """The one folder that all entries are in."""
    roots = {name.partition("/")[0] for name in archive.entries}
    stray = next((name for name in archive.entries if "/" not in name), None)
    path = archive.source.path
    if not roots:
        raise MissingError("an empty archive", path=path, expected="data.pkl")
    if stray is not None or len(roots) > 1:
        found = sorted(roots)[:4] if stray is None else stray
        raise OutOfRangeError("entries outside the archive's folder", path=path, found=found, expected="one folder")
    root = roots.pop()
    if f"{root}/constants.pkl" in archive.entries:
        hint = "save the module's state_dict() instead"
        raise UnsupportedError("a TorchScript program, not a checkpoint", path=path, hint=hint)
    for name in ("data.pkl", "version"):
        if f"{root}/{name}" not in archive.entries:
            raise MissingError("a PyTorch archive without a record it must have", path=path, expected=f"{root}/{name}")
    return root


def _header(archive: Archive, root: str) -> dict[str, Any]:
    """The one-word records, as text; `byteorder` is 'little' where the file does not say (before PyTorch 2.1)."""
    header = {"root": root, "byteorder": "little"}
    for name in ("version", "byteorder", ".format_version", ".storage_alignment"):
        entry = archive.entries.get(f"{root}/{name}")
        if entry is not None:
            header[name.lstrip(".")] = _word(archive, entry)
    path = archive.source.path
    version, byteorder = header["version"], header["byteorder"]
    if not version.isdecimal() or int(version) not in VERSIONS:
        limits = f"{VERSIONS.start} to {VERSIONS.stop - 1}"
        raise UnsupportedVersionError("version of the archive", path=path, found=version, expected=limits)
    if byteorder not in ("little", "big"):
        raise OutOfRangeError("byte order", path=path, found=byteorder, expected="little or big")
    return header


def _word(archive: Archive, entry: Entry) -> str:
    if entry.nbytes > SMALL:
        limit = f"≤ {SMALL} bytes"
        raise OutOfRangeError(f"size of {entry.name}", path=archive.source.path, found=entry.nbytes, expected=limit)
    data = archive.read(entry.name)
    if not data.isascii():
        raise EncodingError(entry.name, path=archive.source.path, offset=entry.offset, found=data)
    return data.decode("ascii").strip()


def _record(archive: Archive, root: str, storage: Storage) -> Entry:
    """The bytes of a storage, which are there and as many as the pickle says."""
    name, path = f"{root}/data/{storage.key}", archive.source.path
    entry = archive.entries.get(name)
    if entry is None:
        raise MissingError("a storage that the pickle names", path=path, expected=name)
    if entry.nbytes != storage.nbytes:
        wanted = f"{storage.nbytes} bytes"
        raise InconsistentError(f"size of {name}", path=path, offset=entry.offset, found=entry.nbytes, expected=wanted)
    return entry


def _is_contiguous(view: View) -> bool:
    expected = 1
    for size, stride in zip(reversed(view.shape), reversed(view.strides), strict=True):
        if size != 1 and stride != expected and 0 not in view.shape:
            return False
        expected *= size
    return True


# --- what a user should know -------------------------------------------------------------------


def _remarks(archive: Archive, root: str, records: Mapping[str, Entry], header: Mapping[str, Any]) -> list[str]:
    notes = []
    if header["byteorder"] == "big":
        notes.append("written on a big-endian machine: its numbers are swapped as they are read")
    if not archive.has_checksums:
        notes.append("written without checksums: damage to its data cannot be seen")
    used = {entry.name for entry in records.values()}
    idle = [name for name in archive.entries if name.startswith(f"{root}/data/") and name not in used]
    if idle:
        notes.append(f"{len(idle)} storage(s) that nothing refers to, the first {idle[0]}")
    return notes


def _shared(tensors: Mapping[str, TensorRef]) -> list[str]:
    """Tensors that are the same bytes seen the same way: tied weights."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for name, ref in tensors.items():
        if ref.elements:
            groups.setdefault((ref.type.name, ref.spans), []).append(name)
    tied = [names for names in groups.values() if len(names) > 1]
    notes = [f"one storage, several names (tied): {' = '.join(names[:4])}" for names in tied[:8]]
    if len(tied) > 8:
        notes.append(f"and {len(tied) - 8} more storages of several names")
    return notes


SPEC = Reader(CONTAINER, probe, open_checkpoint)
