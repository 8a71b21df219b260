"""Read checkpoints of orbax: arrays of zarr in tensorstore's OCDBT, or in a folder each.

`formats.orbax` has the parts; docs/formats/flax-tf-keras.md describes the container. Chunks are compressed as a rule:
they are unpacked once, into a temporary file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ggferry.formats.checkpoint import Checkpoint, Span, TensorRef
from ggferry.formats.checkpoint_folder.folder import Weights, find_forms
from ggferry.formats.checkpoint_folder.sidecars import configuration, sidecars
from ggferry.formats.errors import (
    GgferryError,
    MissingError,
    OutOfRangeError,
    ShapeError,
    TruncatedError,
    UnsupportedError,
)
from ggferry.formats.files.sources import Source, open_source
from ggferry.formats.limits import MAX_TENSORS
from ggferry.formats.reader import Container, HeaderLayout, Kind, Match, Reader, WeightsName, names_in

if TYPE_CHECKING:
    from ggferry.formats.orbax.ocdbt import Place
    from ggferry.formats.orbax.zarr import Array, Chunk

CONTAINER = "orbax"
MANIFEST, METADATA, ARRAY = "manifest.ocdbt", "_METADATA", ".zarray"
MAGIC = b"\x0c\xdb\x3a\x2a"
_ABOVE = ("config", "tokenizer.model", "tokenizer.json", "tokenizer_config", "generation_config")
"""What is taken from the folder above where the checkpoint's own has none, as downloads have their tokenizer."""
_UNPACK = "orbax.checkpoint restores it, safetensors.flax.save_file writes what it restored"


class _Piece(NamedTuple):
    """A chunk of an array, and where its value lies."""

    array: Array
    chunk: Chunk
    place: Place


def probe(head: bytes, path: str, size: int) -> Match | None:
    """Claim folders with a manifest, or with orbax's metadata and folders of arrays; and a manifest."""
    if size == 0 and os.path.isdir(path):
        return Match(CONTAINER) if _is_checkpoint(path) else None
    return Match(CONTAINER) if head.startswith(MAGIC) and os.path.basename(path) == MANIFEST else None


def _is_checkpoint(folder: str) -> bool:
    try:
        others = [one for one in find_forms(folder) if one.container != CONTAINER]
        names = frozenset() if others else names_in(folder)
    except (GgferryError, OSError):
        return False
    if MANIFEST in names or METADATA not in names:
        return MANIFEST in names
    return any(os.path.isfile(os.path.join(folder, name, ARRAY)) for name in sorted(names))


def open_checkpoint(path: str, layouts: Sequence[HeaderLayout] = ()) -> Checkpoint:
    """Open the checkpoint at `path`: its folder, or the manifest in it.

    Raises NotFoundError, UnsupportedError for other versions and compressions, RefusedError where there is no room for
    what is unpacked, and every CorruptError.
    """
    from ggferry.formats.orbax.ocdbt import read_entries

    folder = path if os.path.isdir(path) else os.path.dirname(path)
    stored = MANIFEST in names_in(folder)
    first = os.path.join(folder, MANIFEST if stored else METADATA)
    entries = read_entries(folder) if stored else _plain_entries(folder)
    arrays = _arrays(entries, folder, first)
    pieces = list(_pieces(arrays, entries, first))
    files: list[Source] = [open_source(first, folder)]
    try:
        spans = _placed(pieces, files, folder)
        tensors = {array.name: TensorRef(array.name, array.type, array.shape, spans[array.name]) for array in arrays}
        weights = Weights(CONTAINER, folder, (first,))
        beside = _beside(weights)
        config, caveats = configuration(weights, beside)
    except BaseException:
        for source in files:
            source.close()
        raise
    return Checkpoint(
        CONTAINER,
        None,
        tuple(files),
        tensors,
        {"store": "OCDBT" if stored else "folders"},
        config,
        era="orbax, since 2022",
        notes=caveats,
        sidecars=beside,
    )


def _beside(weights: Weights) -> dict[str, str]:
    above = os.path.normpath(os.path.join(weights.folder or ".", os.pardir))
    found = {role: path for role, path in sidecars(Weights(CONTAINER, above, ())).items() if role in _ABOVE}
    return {**found, **sidecars(weights)}


def _plain_entries(folder: str) -> dict[str, Place]:
    """Return key → place of every file of arrays that have a folder each."""
    from ggferry.formats.orbax.ocdbt import Place

    found: dict[str, Place] = {}
    for name in sorted(names_in(folder)):
        if os.path.isfile(os.path.join(folder, name, ARRAY)):
            for inner in sorted(names_in(os.path.join(folder, name))):
                whole = os.path.join(folder, name, inner)
                if os.path.isfile(whole):
                    found[f"{name}/{inner}"] = Place(f"{name}/{inner}", 0, os.stat(whole).st_size)
    return found


def _arrays(entries: Mapping[str, Place], folder: str, first: str) -> list[Array]:
    """Return the arrays that the store describes. Raises as `read_array`."""
    from ggferry.formats.orbax.zarr import DESCRIPTION, LATER, MAX_DESCRIPTION, read_array

    found: list[Array] = []
    for key, place in entries.items():
        if key.endswith(LATER):
            raise UnsupportedError("arrays of zarr 3", path=first, found=key, hint=_UNPACK)
        if not key.endswith(DESCRIPTION):
            continue
        if place.length > MAX_DESCRIPTION or len(found) >= MAX_TENSORS:
            raise OutOfRangeError(f"description {key!r}, or number of arrays", path=first, found=place.length)
        found.append(read_array(key.removesuffix(DESCRIPTION), _value(place, folder), first))
    if not found:
        raise MissingError("a store without an array", path=first)
    return found


def _value(place: Place, folder: str) -> bytes:
    if not place.path:
        return place.data
    source = open_source(os.path.join(folder, place.path), folder)
    try:
        return source.read(place.offset, place.length)
    finally:
        source.close()


def _pieces(arrays: Sequence[Array], entries: Mapping[str, Place], first: str) -> Iterator[_Piece]:
    """Yield every chunk with its place. Raises MissingError."""
    for array in arrays:
        for chunk in array.chunks():
            place = entries.get(chunk.key)
            if place is None:
                raise MissingError(f"a chunk of {array.name!r}", path=first, expected=chunk.key)
            yield _Piece(array, chunk, place)


def _placed(pieces: Sequence[_Piece], files: list[Source], folder: str) -> dict[str, tuple[Span, ...]]:
    """Return the pieces of every array, and add the files that hold them, unpacked where they are compressed."""
    groups: dict[str, list[_Piece]] = {}
    for piece in pieces:
        groups.setdefault(piece.place.path, []).append(piece)
    found: dict[str, dict[tuple[int, ...], Span]] = {piece.array.name: {} for piece in pieces}
    for path, group in sorted(groups.items()):
        group.sort(key=lambda piece: piece.place.offset)
        source = files[0] if not path else open_source(os.path.join(folder, path), folder)
        if path:
            files.append(source)
        packed = not path or any(piece.array.compressed for piece in group)
        at = 0
        if packed:
            files.append(_unpacked(source, group))
        for piece in group:
            if not packed:
                _check_raw(source, piece)
            offset = at if packed else piece.place.offset
            found[piece.array.name][piece.chunk.at] = _span(piece, len(files) - 1, offset)
            at += piece.array.chunk_bytes
    return {name: _joined([spans[at] for at in sorted(spans)]) for name, spans in found.items()}


def _joined(spans: list[Span]) -> tuple[Span, ...]:
    if len(spans) == 1:
        one = spans[0]
        return (Span(one.file, one.offset, one.shape, one.strides),)
    return tuple(spans)


def _span(piece: _Piece, number: int, offset: int) -> Span:
    """Return the part of a chunk that is inside its array."""
    strides = None
    if piece.chunk.shape != piece.array.chunk:
        step, steps = 1, []
        for size in reversed(piece.array.chunk):
            steps.append(step)
            step *= size
        strides = tuple(reversed(steps))
    return Span(number, offset, piece.chunk.shape, strides, piece.chunk.at)


def _check_raw(source: Source, piece: _Piece) -> None:
    place, expected = piece.place, piece.array.chunk_bytes
    if place.length != expected:
        raise ShapeError(f"bytes of {piece.chunk.key!r}", path=source.path, found=place.length, expected=expected)
    if place.offset + place.length > source.size:
        raise TruncatedError(f"chunk {piece.chunk.key!r}", path=source.path, offset=place.offset)


def _unpacked(source: Source, group: Sequence[_Piece]) -> Source:
    """Return what the chunks of a file expand to, one behind the other."""
    from ggferry.formats.packed.unpacking import around, unpack
    from ggferry.support.progress import Phase

    total = sum(piece.place.length for piece in group)
    with around().stage(Phase.UNPACKING, total) as progress:

        def expanded() -> Iterator[bytes]:
            for piece in group:
                yield from _expanded(source, piece)
                progress(piece.place.length)

        return unpack(source, expanded(), total, _UNPACK)


def _expanded(source: Source, piece: _Piece) -> Iterator[bytes]:
    """Yield what a chunk expands to. Raises ShapeError where that is another number of bytes."""
    from ggferry.formats.orbax.inline import Inline
    from ggferry.formats.packed.streams import READ, inflated

    place, expected = piece.place, piece.array.chunk_bytes
    whole = source if place.path else Inline(source.path, place.data)
    stop, count = place.offset + place.length, 0
    if stop > whole.size:
        raise TruncatedError(f"chunk {piece.chunk.key!r}", path=source.path, offset=place.offset, found=whole.size)
    if piece.array.compressed:
        parts = inflated(whole, place.offset, stop, "zstd", source.path)
    else:
        parts = (whole.read(at, min(READ, stop - at)) for at in range(place.offset, stop, READ))
    for part in parts:
        count += len(part)
        if count > expected:
            break
        yield part
    if count != expected:
        raise ShapeError(f"bytes of {piece.chunk.key!r}", path=source.path, found=count, expected=expected)


CONTAINERS = (Container(CONTAINER, "orbax", Kind.TRAINING, storage_word=False),)
WEIGHTS = (WeightsName(14, CONTAINER, "manifest", "ocdbt"),)

SPEC = Reader(CONTAINER, probe, open_checkpoint, CONTAINERS, (".ocdbt",), WEIGHTS)
