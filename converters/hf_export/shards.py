"""Safetensors shards, streamed: the header is known before any data, so every chunk has its place.

The `safetensors` library writes tensors that it is given whole; a header of ours is what it reads all the same
(docs/decisions/export.md).
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

from ggferry.converters.conversion_plan.grades import Grade
from ggferry.converters.hf_export.rows_back import Number, columns
from ggferry.converters.hf_export.source_tensors import SourceTensor
from ggferry.converters.schema.layouts.base import row_count
from ggferry.formats.errors import BadValueError, of_os
from ggferry.formats.gguf.write import PIECE
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.quant.codec import block_type, codec
from ggferry.quant.encode_rows import WHOLE_NUMBERS, encode_rows
from ggferry.quant.types import BlockError, BlockType
from ggferry.support.heavy import np
from ggferry.support.platform import here
from ggferry.support.progress import Progress
from ggferry.support.records import dataclass
from ggferry.support.threads import each

if TYPE_CHECKING:
    from ggferry.quant.types import Bytes

CHUNK, ROTATED = 4 << 20, 64 << 20
"""Bytes of float32 that a worker holds at once; of a matrix that is transposed, which is read whole for each."""
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_DTYPES = {"f32": "F32", "f16": "F16", "bf16": "BF16"}


@dataclass(frozen=True, slots=True)
class Part:
    """A tensor of a file, of those that a tensor is written as.

    Attributes:
        name: Its name.
        dtype: Its type, as safetensors names it.
        shape: Its shape.
        row_bytes: Bytes of a row.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    row_bytes: int

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.row_bytes * (row_count(self.shape) if self.shape else 1)


@dataclass(frozen=True, slots=True)
class Packing:
    """How a matrix is written as several tensors that its blocks are taken apart to.

    Attributes:
        kind: Type of the blocks.
        parts: The tensors.
        apart: Makes rows of each of them of blocks, uint8 `(R, row bytes)`; what is no integer is float32.
        blocks: Reads rows (int64) as the source's blocks; None: values are encoded.
        form: What it is, in words.
    """

    kind: BlockType
    parts: tuple[Part, ...]
    apart: Callable[[Bytes, int], Sequence[Any]]
    blocks: Callable[[Any], Bytes] | None
    form: str


@dataclass(slots=True)
class Entry:
    """A tensor in a shard.

    Attributes:
        tensor: What it is made of.
        type: Its plain type; of a packed one, the type of the blocks.
        packing: How it is written as several; None: as it is.
        shard: Number of the shard.
        offsets: First byte of the data in the file, of each part.
        max_error: The largest difference that narrowing has made; known once it is written.
    """

    tensor: SourceTensor
    type: BlockType
    packing: Packing | None = None
    shard: int = 0
    offsets: tuple[int, ...] = ()
    max_error: float = 0.0

    @property
    def parts(self) -> tuple[Part, ...]:
        """The tensors of the file."""
        if self.packing is not None:
            return self.packing.parts
        shape = self.tensor.shape
        return (Part(self.tensor.name, self.type.name, shape, columns(shape) * self.type.block_bytes),)

    @property
    def nbytes(self) -> int:
        """Bytes of its data."""
        return sum(part.nbytes for part in self.parts)

    @property
    def item_bytes(self) -> int:
        """Bytes of an item, which all offsets are multiples of."""
        return self.type.block_bytes if self.packing is None else 4

    @property
    def narrowed(self) -> bool:
        """Whether its values are rounded to a plain type."""
        return self.packing is None and self.type != self.tensor.type and self.type.name != "F32"

    @property
    def encoded(self) -> bool:
        """Whether its values are rounded to blocks."""
        return self.packing is not None and self.packing.blocks is None

    @property
    def grade(self) -> Grade:
        """How exactly it is kept, as far as that is known before it is written."""
        if self.narrowed or self.encoded:
            return Grade.ROUNDED
        return Grade.REPACKED if self.tensor.lossless else Grade.COMPUTED


@dataclass(frozen=True, slots=True)
class Shards:
    """The files of the tensors.

    Attributes:
        entries: All tensors, in the order of the files.
        headers: The bytes before the data, by file name.
        sizes: Bytes of each file.
    """

    entries: tuple[Entry, ...]
    headers: Mapping[str, bytes] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the files."""
        return tuple(self.headers)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(entry.nbytes for entry in self.entries)

    def index(self) -> bytes | None:
        """Return the index of several files; None for one."""
        if len(self.names) == 1:
            return None
        where = {part.name: self.names[entry.shard] for entry in self.entries for part in entry.parts}
        return json.dumps({"metadata": {"total_size": self.nbytes}, "weight_map": where}, indent=2).encode() + b"\n"


def plan_shards(
    tensors: Sequence[SourceTensor],
    dtype: str | None,
    largest: int,
    packings: Mapping[str, Packing] | None = None,
    form: str = "pt",
) -> Shards:
    """Return where every tensor goes.

    Args:
        tensors: The tensors, in their order.
        dtype: 'f32', 'f16' or 'bf16' for all of them but numbers that it would round; None keeps plain types and makes
            float32 of quantized ones.
        largest: Bytes of data that a file may hold; a larger tensor has one of its own.
        packings: By name, the tensors that are written as several.
        form: What the files say that they are for.
    """
    entries = [_entry(tensor, dtype, packings or {}) for tensor in tensors]
    filled, shard = 0, 0
    for entry in entries:
        if filled and filled + entry.nbytes > largest:
            filled, shard = 0, shard + 1
        entry.shard = shard
        filled += entry.nbytes
    count = shard + 1
    headers, sizes, ordered = dict[str, bytes](), dict[str, int](), list[Entry]()
    for number in range(count):
        name = SINGLE if count == 1 else f"model-{number + 1:05}-of-{count:05}.safetensors"
        members = sorted((one for one in entries if one.shard == number), key=lambda one: -one.item_bytes)
        headers[name], sizes[name] = _placed(members, form)
        ordered += members
    return Shards(tuple(ordered), headers, sizes)


def _entry(tensor: SourceTensor, dtype: str | None, packings: Mapping[str, Packing]) -> Entry:
    packing = packings.get(tensor.name)
    if packing is not None:
        return Entry(tensor, packing.kind, packing)
    if not dtype or tensor.type.name in WHOLE_NUMBERS:
        return Entry(tensor, tensor.type)
    kind = block_type(_DTYPES[dtype])
    return Entry(tensor, kind if not isinstance(tensor.rows, Number) or _holds(kind, tensor.rows) else tensor.type)


def _holds(kind: BlockType, number: Number) -> bool:
    """Return whether a plain type holds a number exactly: what GGUF has as a key is no weight to round."""
    one, value = codec(kind.name), np.full((1, 1), number.value, np.float32)
    try:
        assert one.encode is not None
        return bool(np.array_equal(one.values(one.encode(value, None), 1), value))
    except BlockError:
        return False


def _placed(entries: Sequence[Entry], form: str) -> tuple[bytes, int]:
    """Give every tensor its place in one file; return the bytes before the data, and the size of the file."""
    table: JSONObject = {"__metadata__": {"format": form}}
    at = 0
    for entry in entries:
        for part in entry.parts:
            table[part.name] = {
                "dtype": part.dtype,
                "shape": list(part.shape),
                "data_offsets": [at, at + part.nbytes],
            }
            at += part.nbytes
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    for entry in entries:
        entry.offsets = tuple(8 + len(text) + table[part.name]["data_offsets"][0] for part in entry.parts)
    return struct.pack("<Q", len(text)) + text, 8 + len(text) + at


class ShardWriter:
    """Writes the data of all tensors."""

    def __init__(self, shards: Shards, folder: str, path: str, allow_nonfinite: bool = False) -> None:
        """`path`: the source's, for errors."""
        self._shards, self._path, self._allow = shards, path, allow_nonfinite
        self._folder = folder
        self._files: list[int] = []
        self._lock = Lock()
        self.not_finite: dict[str, int] = {}

    def run(self, jobs: int, progress: Progress) -> None:
        """Write every tensor in several threads. Raises BadValueError, OutOfRangeError, and what reading raises."""
        try:
            for name, header in self._shards.headers.items():
                path = os.path.join(self._folder, name)
                self._files.append(here.open_file(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | here.CLOEXEC, 0o666))
                os.ftruncate(self._files[-1], self._shards.sizes[name])
                _write(self._files[-1], memoryview(header), 0)
            for entry in self._shards.entries:
                each(_chunks(entry), partial(self._write, entry, progress), jobs)
            for file in self._files:
                os.fsync(file)
        except OSError as error:
            raise of_os(error, "cannot be written", self._folder) from None
        finally:
            for file in self._files:
                os.close(file)

    def _write(self, entry: Entry, progress: Progress, chunk: tuple[int, int]) -> None:
        start, stop = chunk
        rows = np.arange(start, stop)
        arrays = self._packed(entry, rows) if entry.packing else [self._encoded(entry, entry.tensor.rows.read(rows))]
        for array, part, offset in zip(arrays, entry.parts, entry.offsets, strict=True):
            _write(self._files[entry.shard], memoryview(array).cast("B"), offset + start * part.row_bytes)
            progress((stop - start) * part.row_bytes)

    def _packed(self, entry: Entry, rows: Any) -> list[Any]:
        """Return rows of each tensor that blocks are taken apart to."""
        packing = entry.packing
        assert packing is not None
        blocks = self._encoded(entry, entry.tensor.rows.read(rows)) if packing.blocks is None else packing.blocks(rows)
        made = packing.apart(blocks.reshape(len(rows), -1), columns(entry.tensor.shape))
        bad = sum(int(array.size - np.isfinite(array).sum()) for array in made if array.dtype.kind == "f")
        if bad:
            self._refuse(entry, bad)
        return [np.ascontiguousarray(array, "<f4" if array.dtype.kind == "f" else np.uint8) for array in made]

    def _encoded(self, entry: Entry, values: Any) -> Any:
        finite = np.isfinite(values)
        if not finite.all():
            self._refuse(entry, int(values.size - finite.sum()))
        if entry.type.name == "F32":
            return np.ascontiguousarray(values, "<f4")
        if entry.type.name in WHOLE_NUMBERS:
            return encode_rows(entry.type, values, None, 0, entry.tensor.shape)
        encode = codec(entry.type.name).encode
        assert encode is not None
        try:
            data = np.ascontiguousarray(encode(np.ascontiguousarray(values), None))
        except BlockError as error:
            hint = "--outtype keep" if entry.packing else "--dtype f32"
            raise BadValueError(f"{entry.tensor.name}: {error}", path=self._path, hint=hint) from None
        if entry.tensor.type != entry.type:
            self._measure(entry, values, data)
        return data

    def _measure(self, entry: Entry, values: Any, data: Any) -> None:
        back = codec(entry.type.name).decode(data.reshape(len(values), -1), values.shape[1])
        apart = float(np.abs(back - values).max(initial=0.0))
        with self._lock:
            entry.max_error = max(entry.max_error, apart)

    def _refuse(self, entry: Entry, count: int) -> None:
        if not self._allow:
            raise BadValueError(
                f"{entry.tensor.name} holds values that are not finite",
                path=self._path,
                found=count,
                hint="--allow-nonfinite copies them, and says so",
            )
        with self._lock:
            self.not_finite[entry.tensor.name] = self.not_finite.get(entry.tensor.name, 0) + count


def _write(file: int, view: memoryview, offset: int) -> None:
    """Write all of `view`: the system may take less of it at a time."""
    while view:
        done = here.pwrite(file, view[:PIECE], offset)
        view, offset = view[done:], offset + done


def _chunks(entry: Entry) -> Iterator[tuple[int, int]]:
    tensor = entry.tensor
    count = row_count(tensor.shape) if tensor.shape else 1
    step = max(1, (ROTATED if tensor.rows.rotated else CHUNK) // (4 * columns(tensor.shape)))
    return ((start, min(count, start + step)) for start in range(0, count, step))
