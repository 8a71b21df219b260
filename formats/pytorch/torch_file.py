"""Read one file of a PyTorch checkpoint: its records, its state dict, and where each tensor's bytes are.

The archive is read by `formats.pytorch.zip_archive`, its pickle by `formats.pytorch.pickle_machine`. Nothing in it is
ever run, and there is no other way to load it here. Source of the container: `caffe2/serialize/inline_container.cc` and
`torch/serialization.py` 2.13.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any

from ggferry.formats.checkpoint import Checksum, Dropped, Span, TensorRef
from ggferry.formats.errors import (
    EncodingError,
    InconsistentError,
    MissingError,
    OutOfRangeError,
    UnsupportedError,
    UnsupportedTypeError,
    UnsupportedVersionError,
)
from ggferry.formats.files.sources import Source, Window
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.formats.limits import MAX_PICKLE
from ggferry.formats.pytorch.pickle_machine import Storage, View, read_pickle
from ggferry.formats.pytorch.pickle_names import WRAPPER
from ggferry.formats.pytorch.state_dict import find_state
from ggferry.formats.pytorch.zip_archive import Archive, Entry, read_archive
from ggferry.support.records import dataclass

VERSIONS = range(1, 11)  # kMinSupportedFileFormatVersion … kMaxSupportedFileFormatVersion
SMALL = 64  # bytes of a record that holds one word


@dataclass(frozen=True, slots=True)
class Contents:
    """What one file holds."""

    tensors: dict[str, TensorRef]
    dropped: tuple[Dropped, ...]
    checksums: tuple[Checksum, ...]
    header: Mapping[str, Any]
    version: int
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Opened:
    """An archive with its pickle read, whatever that describes.

    Attributes:
        archive: The archive.
        value: What its pickle describes.
        header: Its records of one word.
        records: The entry of each storage, by key.
    """

    archive: Archive
    value: Any
    header: JSONObject
    records: Mapping[str, Entry]

    def ref(self, name: str, view: View, file: int) -> TensorRef:
        """Return a tensor of the pickle as one piece of the file of this number."""
        offset = self.records[view.storage.key].offset + view.offset * view.type.block_bytes
        span = Span(file, offset, view.shape, None if _is_contiguous(view) else view.strides)
        return TensorRef(name, view.type, view.shape, (span,), big_endian=self.header["byteorder"] == "big")

    def checksums(self, file: int) -> tuple[Checksum, ...]:
        """Return what the archive states of its entries; () where it states nothing."""
        entries = self.archive.entries.values() if self.archive.has_checksums else ()
        return tuple(Checksum(file, entry.offset, entry.nbytes, entry.crc32) for entry in entries)


def open_archive(source: Source, classes: Container[str] = ()) -> Opened:
    """Return an archive of torch.save with its pickle read; `classes` are those of `read_pickle`'s records.

    Reads the archive's directory and its small records.
    """
    archive = read_archive(source)
    root = _root(archive)
    header = _header(archive, root)
    pickled = archive.entries[f"{root}/data.pkl"]
    if pickled.nbytes > MAX_PICKLE:
        limit = f"≤ {MAX_PICKLE}"
        raise OutOfRangeError("size of data.pkl", path=source.path, found=pickled.nbytes, expected=limit)
    value, storages = read_pickle(archive.read(pickled.name), source.path, pickled.offset, classes)
    records = {key: _record(archive, root, storage) for key, storage in storages.items()}
    return Opened(archive, value, header, records)


def read_contents(source: Source, file: int = 0) -> Contents:
    """Return the tensors of one file in the order of its dictionary."""
    opened, value, lines = _opened(source)
    archive, header = opened.archive, opened.header
    state = find_state(value, source.path)
    tensors = {name: opened.ref(name, view, file) for name, view in state.tensors.items()}
    beside = f"not part of the model under {state.wrapper!r}"
    dropped = tuple(Dropped(opened.ref(name, view, file), beside) for name, view in state.others.items())
    notes = (*state.notes, *_remarks(archive, header["root"], opened.records, header), *_shared(tensors))
    version = int(header["version"])
    header = {**state.sizes, **header, **({"values": state.values} if state.values else {})}
    header |= {"metadata": lines} if lines else {}
    return Contents(tensors, dropped, opened.checksums(file), header, version, notes)


def _opened(source: Source) -> tuple[Opened, Any, dict[str, str]]:
    """Return an archive, the value of its pickle without tensors of torchao's classes, and a line for each of these."""
    try:
        opened = open_archive(source)
    except UnsupportedTypeError as error:
        if error.found != WRAPPER:
            raise
        from ggferry.formats.pytorch.tensor_subclasses import CLASSES, expand  # few files have any

        opened = open_archive(source, CLASSES)
        return opened, *expand(opened.value)
    return opened, opened.value, {}


def read_blob(source: Source, start: int, size: int, file: int, name: str) -> tuple[TensorRef, tuple[Checksum, ...]]:
    """Return the one tensor that torch.save wrote to `size` bytes of a file from `start`, and its checksums.

    Raises UnsupportedError where something else stands there, and as `read_contents`.
    """
    opened = open_archive(Window(source, start, size))
    if not isinstance(opened.value, View):
        found = type(opened.value).__name__
        raise UnsupportedError("not one tensor", path=source.path, offset=start, found=found, expected=name)
    ref = opened.ref(name, opened.value, file)
    spans = tuple(replace(span, offset=span.offset + start) for span in ref.spans)
    sums = (replace(each, offset=each.offset + start) for each in opened.checksums(file))
    return replace(ref, spans=spans), tuple(sums)


# --- the archive's own records -----------------------------------------------------------------


def _root(archive: Archive) -> str:
    """Return the one folder that all entries are in."""
    roots = {name.partition("/")[0] for name in archive.entries}
    stray = next((name for name in archive.entries if "/" not in name), None)
    path = archive.source.path
    if not roots:
        raise MissingError("archive is empty", path=path, expected="data.pkl")
    if stray is not None or len(roots) > 1:
        found = sorted(roots)[:4] if stray is None else stray
        raise OutOfRangeError("entries outside the archive's folder", path=path, found=found, expected="one folder")
    root = roots.pop()
    if f"{root}/constants.pkl" in archive.entries:
        hint = "save the module's state_dict() instead"
        raise UnsupportedError("a TorchScript program, not a checkpoint", path=path, hint=hint)
    for name in ("data.pkl", "version"):
        if f"{root}/{name}" not in archive.entries:
            raise MissingError("PyTorch archive lacks a required record", path=path, expected=f"{root}/{name}")
    return root


def _header(archive: Archive, root: str) -> JSONObject:
    """Return the one-word records as text; `byteorder` is 'little' where the file does not say (before PyTorch 2.1)."""
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
    """Return the entry of a storage, after checking that it exists and has the size that the pickle states."""
    name, path = f"{root}/data/{storage.key}", archive.source.path
    entry = archive.entries.get(name)
    if entry is None:
        raise MissingError("a storage of the pickle is missing", path=path, expected=name)
    if entry.nbytes != storage.nbytes:
        expected = f"{storage.nbytes} bytes"
        raise InconsistentError(
            f"size of {name}", path=path, offset=entry.offset, found=entry.nbytes, expected=expected
        )
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
    """Return notes on tensors that are the same bytes viewed in the same way: tied weights."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for name, ref in tensors.items():
        if ref.elements:
            groups.setdefault((ref.type.name, ref.spans), []).append(name)
    tied = [names for names in groups.values() if len(names) > 1]
    notes = [f"one storage, several names (tied): {' = '.join(names[:4])}" for names in tied[:8]]
    if len(tied) > 8:
        notes.append(f"and {len(tied) - 8} more storages of several names")
    return notes
