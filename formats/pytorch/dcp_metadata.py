"""Read `.metadata` of torch.distributed.checkpoint: which tensors there are, and which piece of each is where.

It is a pickle of the classes in `_RECORDS`, which are read as records of fields: nothing is imported or made. Source:
`torch/distributed/checkpoint/{metadata,filesystem,default_planner}.py` of PyTorch 2.0 to 2.13; megatron-core 0.16.1
`dist_checkpointing/strategies/torch.py` for what it adds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any, NoReturn, TypeGuard

from ggferry.formats.errors import (
    CorruptError,
    DuplicateError,
    GgferryError,
    InconsistentError,
    MissingError,
    OutOfRangeError,
    UnsupportedError,
    UnsupportedTypeError,
)
from ggferry.formats.files.sources import Source
from ggferry.formats.limits import MAX_DCP_OPS, MAX_DIM, MAX_NAME, MAX_PICKLE, MAX_PIECES, MAX_RANK
from ggferry.formats.pytorch.pickle_machine import Global, Record, read_pickle
from ggferry.formats.pytorch.pickle_names import DTYPES
from ggferry.quant.codec import block_type
from ggferry.quant.types import BlockType
from ggferry.support.records import dataclass

_MODULE = "torch.distributed.checkpoint.metadata"
_OLDER = "torch.distributed._shard.sharded_tensor.metadata"  # of PyTorch 2.0 to 2.2
_STORED = "torch.distributed.checkpoint.filesystem._StorageInfo"
_PATHS = tuple(f"{module}.{kind}Path" for module in ("pathlib", "pathlib._local") for kind in ("Posix", "Windows"))
_PLANNED = ("SavePlan", "WriteItem", "WriteItemType", "TensorWriteData")
_RECORDS = frozenset(
    [
        *(f"{_MODULE}.{name}" for name in ("Metadata", "MetadataIndex", "StorageMeta", "ChunkStorageMetadata")),
        *(f"{_MODULE}.{name}" for name in ("TensorStorageMetadata", "BytesStorageMetadata", "TensorProperties")),
        *(f"{_MODULE}._MEM_FORMAT_ENCODING", f"{_OLDER}.TensorProperties", f"{_OLDER}.MEM_FORMAT_ENCODING"),
        *(f"torch.distributed.checkpoint.planner.{name}" for name in _PLANNED),  # which Megatron-core keeps
        *(f"megatron.core.dist_checkpointing.strategies.torch.MCore{name}" for name in ("Metadata", "SavePlan")),
        *(_STORED, *_PATHS),
    ]
)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a tensor, or a value that is none, and the blob of torch.save that holds it.

    Attributes:
        file: Name of the file.
        offset: Byte at which the blob begins.
        nbytes: Its length.
        at: Index of the piece's first element along each axis of the tensor.
        shape: Elements of the piece along each axis.
    """

    file: str
    offset: int
    nbytes: int
    at: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Item:
    """One entry of the checkpoint.

    Attributes:
        name: Its name.
        path: The keys of the nested dictionaries that led to it.
        type: Type of its elements; None for a pickled value that is no tensor.
        shape: Elements along each axis.
        chunks: Its pieces.
    """

    name: str
    path: tuple[Any, ...]
    type: BlockType | None
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]


def read_items(source: Source) -> tuple[list[Item], str]:
    """Return the entries of a `.metadata` file in its order, and the version that it states ('' for none).

    Raises UnsafePickleError for any other class, UnsupportedError for blobs that are transformed, and every
    CorruptError.
    """
    if source.size > MAX_PICKLE:
        raise OutOfRangeError("size of .metadata", path=source.path, found=source.size, expected=f"≤ {MAX_PICKLE}")
    value, _ = read_pickle(source.read(0, source.size), source.path, 0, _RECORDS, MAX_DCP_OPS)
    return _Reading(source.path).items(value)


class _Reading:
    """The records of one `.metadata`, taken apart with errors that name the file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def fail(self, kind: type[GgferryError], message: str, **details: Any) -> NoReturn:
        raise kind(message, path=self.path, **details)

    def items(self, value: Any) -> tuple[list[Item], str]:
        fields = self._fields(value, "Metadata", "MCoreMetadata")
        listed, stored = fields.get("state_dict_metadata"), fields.get("storage_data")
        if not isinstance(listed, dict) or not isinstance(stored, dict):
            self.fail(
                MissingError, "no list of tensors, or none of places", expected="state_dict_metadata, storage_data"
            )
        planned = fields.get("planner_data")
        paths = planned if isinstance(planned, dict) else {}
        places = self._places(stored)
        version = fields.get("version")
        made = [self._item(name, entry, paths.get(name), places) for name, entry in listed.items()]
        return made, version if isinstance(version, str) else ""

    def _fields(self, value: Any, *classes: str) -> Mapping[Any, Any]:
        name = value.name.rpartition(".")[2] if isinstance(value, Record) else type(value).__name__
        if not isinstance(value, Record) or name not in classes:
            self.fail(CorruptError, "an object of another class", found=name, expected=" or ".join(classes))
        if value.state is not None and not isinstance(value.state, dict):
            self.fail(CorruptError, f"fields of a {name}", found=type(value.state).__name__)
        return value.state or {}

    def _places(self, stored: Mapping[Any, Any]) -> dict[tuple[str, tuple[int, ...]], tuple[str, int, int]]:
        """Return (name, index of the first element) → (file, offset, bytes)."""
        if len(stored) > MAX_PIECES:
            self.fail(OutOfRangeError, "number of pieces", found=len(stored), expected=f"≤ {MAX_PIECES}")
        places: dict[tuple[str, tuple[int, ...]], tuple[str, int, int]] = {}
        for key, info in stored.items():
            index, place = self._fields(key, "MetadataIndex"), self._fields(info, "_StorageInfo")
            at = index.get("offset")
            whole = self._name(index.get("fqn")), () if at is None else self._sizes("offset", at)
            if place.get("transform_descriptors"):
                found = [str(one)[:MAX_NAME] for one in list(place["transform_descriptors"])[:4]]
                hint = "save it again without extensions"
                self.fail(UnsupportedError, "the checkpoint's files are compressed", found=found, hint=hint)
            if whole in places:
                self.fail(DuplicateError, "a piece twice", found=whole[0])
            file, offset, nbytes = (place.get(one) for one in ("relative_path", "offset", "length"))
            if not isinstance(file, str) or file != os.path.basename(file) or file in ("", ".", "..") or "\\" in file:
                named = file if isinstance(file, str) else type(file).__name__
                self.fail(OutOfRangeError, "a file outside of the folder", found=named, expected="a name")
            if not _is_size(offset) or not _is_size(nbytes):
                self.fail(OutOfRangeError, f"place of {whole[0]}", expected="an offset and a length")
            places[whole] = file, offset, nbytes
        return places

    def _name(self, found: Any) -> str:
        if not isinstance(found, str) or not 0 < len(found) <= MAX_NAME:
            self.fail(OutOfRangeError, "name of an entry", found=str(found)[:MAX_NAME])
        return found

    def _item(self, name: Any, entry: Any, path: Any, places: Mapping[Any, tuple[str, int, int]]) -> Item:
        name = self._name(name)
        fields = self._fields(entry, "TensorStorageMetadata", "BytesStorageMetadata")
        keys = (
            path if isinstance(path, tuple) and path and all(isinstance(key, (str, int)) for key in path) else (name,)
        )
        if "size" not in fields:
            place = places.get((name, ()))
            return Item(name, keys, None, (), () if place is None else (Chunk(*place),))
        shape, chunks = self._sizes(f"shape of {name}", fields["size"]), fields.get("chunks")
        if not isinstance(chunks, list):
            self.fail(MissingError, f"{name} has no list of pieces")
        pieces = []
        for each in chunks:
            piece = self._fields(each, "ChunkStorageMetadata")
            at, size = (self._sizes(f"piece of {name}", piece.get(one)) for one in ("offsets", "sizes"))
            where = places.get((name, at)) or (places.get((name, ())) if not any(at) else None)
            if where is None:
                self.fail(MissingError, f"no place is stated for a piece of {name}", expected=f"the piece at {at}")
            pieces.append(Chunk(*where, at, size))
        return Item(name, keys, self._type(name, fields.get("properties")), shape, tuple(pieces))

    def _type(self, name: str, properties: Any) -> BlockType:
        named = properties.state if isinstance(properties, Record) else None
        kind = named[0] if isinstance(named, tuple) and named else None
        if not isinstance(kind, Global):
            self.fail(CorruptError, f"properties of {name} do not state a type")
        short = kind.name.removeprefix("torch.")
        if short not in DTYPES:
            self.fail(UnsupportedTypeError, f"{name} is of a type that ggferry does not carry", found=kind.name)
        return block_type(DTYPES[short])

    def _sizes(self, what: str, found: Any) -> tuple[int, ...]:
        if not isinstance(found, (tuple, list)) or len(found) > MAX_RANK or not all(map(_is_size, found)):
            self.fail(OutOfRangeError, what, found=type(found).__name__, expected=f"≤ {MAX_RANK} sizes ≥ 0")
        return tuple(found)


def _is_size(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= MAX_DIM


def check_tiles(item: Item, path: str) -> None:
    """Check that the pieces of a tensor cover it, each element once. Raises InconsistentError."""
    for chunk in item.chunks:
        inside = len(chunk.at) == len(chunk.shape) == len(item.shape) and all(
            first + size <= whole for first, size, whole in zip(chunk.at, chunk.shape, item.shape, strict=True)
        )
        if not inside:
            found, expected = f"{chunk.shape} at {chunk.at}", f"inside {item.shape}"
            raise InconsistentError(f"a piece of {item.name}", path=path, found=found, expected=expected)
    pieces = [chunk for chunk in item.chunks if prod(chunk.shape)]
    covered, whole = sum(prod(chunk.shape) for chunk in pieces), prod(item.shape)
    if covered != whole or not _apart(pieces, len(item.shape)):
        found, expected = f"{len(pieces)} pieces of {covered} elements", f"{whole} elements, each once"
        raise InconsistentError(f"the pieces of {item.name} do not cover it", path=path, found=found, expected=expected)


def _apart(pieces: Sequence[Chunk], rank: int) -> bool:
    """Return whether no two pieces share an element, by the cells of the grid that their borders make.

    Shards make grids with a cell for each piece, or a few; a grid of very many is taken for no shards'.
    """
    borders = [sorted({edge for one in pieces for edge in _edges(one, axis)}) for axis in range(rank)]
    numbers = [{edge: number for number, edge in enumerate(each)} for each in borders]
    seen: set[tuple[int, ...]] = set()
    left = MAX_PIECES
    for one in pieces:
        ranges = [range(*(numbers[axis][edge] for edge in _edges(one, axis))) for axis in range(rank)]
        left -= prod(map(len, ranges))
        if left < 0:
            return False
        cells = set(product(*ranges))
        if seen & cells:
            return False
        seen |= cells
    return True


def _edges(piece: Chunk, axis: int) -> Iterator[int]:
    yield piece.at[axis]
    yield piece.at[axis] + piece.shape[axis]
