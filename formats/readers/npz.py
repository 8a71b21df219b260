"""Read MLX models of 2023 and January 2024: `weights.npz`, or `weights.00.npz` …, with the config.json beside them.

A .npz file is a zip archive with a .npy file for each tensor. Source: NumPy `lib/format.py` (versions 1 and 2 of .npy)
and MLX `mlx/io/load.cpp` (`save`: bfloat16 is the void type V2); mlx-examples 7ddca42f `llms/llama/convert.py` (the
names of files). What is stored is read where it lies; `numpy.savez_compressed` deflates, and that is unpacked once.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from ggferry.formats.checkpoint import Checkpoint, Checksum, Span, TensorRef
from ggferry.formats.checkpoint_folder.folder import claim, locate, refuse_container
from ggferry.formats.checkpoint_folder.shard_index import join_files
from ggferry.formats.checkpoint_folder.sidecars import configuration, sidecars
from ggferry.formats.errors import (
    CorruptError,
    DuplicateError,
    EncodingError,
    InconsistentError,
    OutOfRangeError,
    UnsafePickleError,
    UnsupportedError,
    UnsupportedTypeError,
)
from ggferry.formats.files.sources import Source, Window, open_source
from ggferry.formats.limits import MAX_DIM, MAX_NAME, MAX_RANK
from ggferry.formats.reader import Container, HeaderLayout, Kind, Match, Reader, WeightsName
from ggferry.quant.codec import block_type
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

CONTAINER = "npz"
MAGIC, ENDING = b"\x93NUMPY", ".npy"
LARGEST_HEADER = 4096  # bytes; NumPy's parser takes 10,000 characters
TYPES = {
    "f8": "F64", "f4": "F32", "f2": "F16", "V2": "BF16", "u4": "U32", "i4": "I32", "u2": "U16", "i2": "I16", "u1": "U8",
    "i1": "I8", "i8": "I64", "u8": "U64", "b1": "BOOL",
}  # fmt: skip
"""Kind and bytes of a number, as NumPy writes them → its type."""


@dataclass(frozen=True, slots=True)
class _Array:
    """A .npy file.

    Attributes:
        type: Name of the block type of its numbers.
        shape: Elements along each axis.
        offset: Where its data begins in the file.
        swapped: Whether its numbers are big-endian.
        strides: Steps between neighbors in elements, of an array whose first axis runs fastest.
    """

    type: str
    shape: tuple[int, ...]
    offset: int
    swapped: bool
    strides: tuple[int, ...] | None


def probe(head: bytes, path: str, size: int) -> Match | None:
    """Claim zip archives whose first file is an array, and folders of them."""
    if size == 0 and os.path.isdir(path):
        return Match(CONTAINER) if claim(path, "", CONTAINER) == CONTAINER else None
    first = head[30 : 30 + int.from_bytes(head[26:28], "little")]
    return Match(CONTAINER) if head.startswith(b"PK\3\4") and first.endswith(ENDING.encode()) else None


def open_checkpoint(path: str, layouts: Sequence[HeaderLayout] = ()) -> Checkpoint:
    """Open the checkpoint at `path`: a file, one of several (its whole model is opened), or a folder.

    Raises NotFoundError, UnsafePickleError for an array of objects, UnsupportedTypeError, and every CorruptError.
    """
    weights = locate(path, CONTAINER)
    refuse_container(weights, CONTAINER)
    files = [open_source(name, weights.folder) for name in weights.files]
    try:
        parts, sums = [], list[Checksum]()
        for number, source in enumerate([*files]):
            own, checks = _read(source, number, files)
            parts.append((source.path, own))
            sums += checks
        tensors, notes = join_files(parts, None)
        beside = sidecars(weights)
        config, caveats = configuration(weights, beside)
    except BaseException:
        for source in files:
            source.close()
        raise
    era = "MLX of December 2023 and January 2024"
    return Checkpoint(
        CONTAINER,
        None,
        tuple(files),
        tensors,
        metadata=config,
        era=era,
        notes=(*weights.notes, *notes, *caveats),
        sidecars=beside,
        checksums=tuple(sums),
    )


def _read(source: Source, number: int, files: list[Source]) -> tuple[dict[str, TensorRef], list[Checksum]]:
    """Return the tensors of one file; what is compressed of it is unpacked into one more of `files`."""
    from ggferry.formats.packed.kinds import ZIP
    from ggferry.formats.packed.members import Member, checked, members_of, stored
    from ggferry.formats.packed.unpacking import unpack

    tensors, sums, packed = dict[str, TensorRef](), list[Checksum](), list[Member]()
    for member in members_of(source, ZIP):
        if not member.name.endswith(ENDING):
            raise UnsupportedError("file in the .npz is not an array", path=source.path, found=member.name)
        if not member.is_stored:
            packed.append(member)
            continue
        inside = stored(source, member, ZIP)
        _add(tensors, member.name, inside, number, inside.offset)
        sums.append(Checksum(number, inside.offset, member.size, member.crc32 or 0))
    if packed:
        odd = next((one for one in packed if one.is_unread), None)
        if odd is not None:
            raise UnsupportedError(f"{odd.name} of the .npz file", path=source.path, found=odd.method)
        pieces = chain.from_iterable(checked(source, one, source.path) for one in packed)
        whole, at = unpack(source, pieces, sum(one.packed for one in packed), "unzip FILE"), 0
        for member in packed:
            _add(tensors, member.name, Window(whole, at, member.size), len(files), at)
            at += member.size
        files.append(whole)
    return tensors, sums


def _add(tensors: dict[str, TensorRef], member: str, array: Window, file: int, start: int) -> None:
    """Add the tensor that a .npy file at `start` of a file holds. Raises DuplicateError and as `_array`."""
    name = member.removesuffix(ENDING)
    if name in tensors:
        raise DuplicateError(f"array {name!r} a second time", path=array.path, offset=start)
    if not 0 < len(name) <= MAX_NAME or not name.isprintable():
        raise EncodingError("name of an array", path=array.path, found=name[:80], expected=f"≤ {MAX_NAME} characters")
    found = _array(array, name)
    kind = block_type(found.type)
    span = Span(file, start + found.offset, found.shape, found.strides)
    tensors[name] = TensorRef(name, kind, found.shape, (span,), big_endian=found.swapped)


def _array(file: Window, name: str) -> _Array:
    """Return what the header of a .npy file states, by NumPy's own parser, which evaluates literals only."""
    begin = file.read(0, min(LARGEST_HEADER, file.size))
    if not begin.startswith(MAGIC) or begin[6:8] not in (b"\1\0", b"\2\0"):
        expected = "\\x93NUMPY, version 1.0 or 2.0"
        raise CorruptError(f"array {name!r}", path=file.path, offset=file.offset, found=begin[:8], expected=expected)
    stream = io.BytesIO(begin[8:])
    library: Any = np.lib.format
    try:
        read = library.read_array_header_1_0 if begin[6] == 1 else library.read_array_header_2_0
        shape, by_columns, dtype = read(stream)
    except Exception as error:  # its parser raises what Python's does
        raise CorruptError(f"header of array {name!r}: {error}", path=file.path, offset=file.offset) from None
    if dtype.hasobject:
        raise UnsafePickleError(f"array {name!r} holds Python objects", path=file.path, offset=file.offset)
    kind = TYPES.get(f"{dtype.kind}{dtype.itemsize}") if dtype.names is None and dtype.subdtype is None else None
    if kind is None:
        raise UnsupportedTypeError(f"numbers of array {name!r}", path=file.path, found=str(dtype)[:80])
    sizes = tuple(int(size) for size in shape)
    if len(sizes) > MAX_RANK or any(not 0 <= size <= MAX_DIM for size in sizes):
        raise OutOfRangeError(f"shape of array {name!r}", path=file.path, offset=file.offset, found=list(sizes)[:9])
    offset, nbytes = 8 + stream.tell(), math.prod(sizes) * int(dtype.itemsize)
    if offset + nbytes != file.size:
        found, expected = f"{file.size - offset} bytes", f"{nbytes} bytes"
        message = f"data of array {name!r}, {dtype} of shape {list(sizes)[:9]}"
        raise InconsistentError(message, path=file.path, offset=file.offset, found=found, expected=expected)
    transposed = by_columns and len(sizes) > 1
    return _Array(kind, sizes, offset, dtype.str[0] == ">", tuple(_strides(sizes)) if transposed else None)


def _strides(shape: Sequence[int]) -> Iterator[int]:
    step = 1
    for size in shape:
        yield step
        step *= size


CONTAINERS = (Container(CONTAINER, "MLX (.npz)", Kind.TRAINING, storage_word=False),)
WEIGHTS = (WeightsName(8, CONTAINER, "weights", "npz"), WeightsName(9, CONTAINER, "weights", "npz", numbered=True))

SPEC = Reader(CONTAINER, probe, open_checkpoint, CONTAINERS, (".npz",), WEIGHTS)
