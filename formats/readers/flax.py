"""Read Flax's msgpack files: nested maps, whose leaves are arrays with their shape and type before their bytes.

Source of the rules: the msgpack specification; flax 0.10 `serialization.py` (extension 1: an array, 3: a number;
`_chunk`: arrays above 1 GiB in pieces). The library msgpack takes an extension or a `bin` whole into memory, also to
skip it, so that the walk is our own and passes over payloads. docs/formats/flax-tf-keras.md describes the container.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

from ggferry.formats.checkpoint import Checkpoint, Dropped, Span, TensorRef
from ggferry.formats.checkpoint_folder.folder import claim, locate, refuse_container, refuse_foreign
from ggferry.formats.checkpoint_folder.shard_index import join_files, left_out, read_index
from ggferry.formats.checkpoint_folder.sidecars import configuration, sidecars
from ggferry.formats.errors import (
    CorruptError,
    DuplicateError,
    EncodingError,
    GgferryError,
    InconsistentError,
    OutOfRangeError,
    ShapeError,
    TrailingBytesError,
    UnsupportedError,
    UnsupportedTypeError,
)
from ggferry.formats.fields import Cursor
from ggferry.formats.files.sources import Source, open_source
from ggferry.formats.limits import MAX_DIM, MAX_HEADERS, MAX_NAME, MAX_RANK, MAX_STATE_DEPTH, MAX_TENSORS
from ggferry.formats.reader import HEAD_BYTES, Container, HeaderLayout, Kind, Match, Reader, WeightsName
from ggferry.quant.codec import block_type

CONTAINER = "flax"
SUFFIX = ".msgpack"
ARRAY, NUMBER = 1, 3  # extensions of flax
CHUNKED = "__msgpack_chunked_array__"
PARAMS = "params/"
"""What stands before the names of a model's tensors where others, of its training, stand beside them."""
TRAINING = "state of the training, not of the model"
TYPES = {
    "bool": "BOOL",
    **{f"uint{bits}": f"U{bits}" for bits in (8, 16, 32, 64)},
    **{f"int{bits}": f"I{bits}" for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"F{bits}" for bits in (16, 32, 64)},
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}
"""numpy's and ml_dtypes' names of types → ours."""
_LENGTHS = {
    **{0xC4 + n: ("bin", f"u{8 << n}") for n in range(3)},
    **{0xC7 + n: ("ext", f"u{8 << n}") for n in range(3)},
    **{0xD9 + n: ("str", f"u{8 << n}") for n in range(3)},
    **{0xDC + n: ("array", f"u{16 << n}") for n in range(2)},
    **{0xDE + n: ("map", f"u{16 << n}") for n in range(2)},
}
"""First byte of what states its length → what it is, and the number that states it."""
_NUMBERS = {
    0xCA: "f32",
    0xCB: "f64",
    **{0xCC + n: f"u{8 << n}" for n in range(4)},
    **{0xD0 + n: f"i{8 << n}" for n in range(4)},
}
_FIXED = ((0x80, 0x90, "map"), (0x90, 0xA0, "array"), (0xA0, 0xC0, "str"))  # the length is within the first byte


class _Item(NamedTuple):
    """The beginning of a value: what it is, and its length, or the value itself of a whole number."""

    kind: str
    size: int
    extension: int = 0


class _Leaf(NamedTuple):
    """A value that is no map: its name, and the tensor that it is; None for anything else."""

    name: str
    tensor: TensorRef | None


def probe(head: bytes, path: str, size: int) -> Match | None:
    """Claim folders, indices, and files that begin with a map; of any name where its first leaf is an array."""
    if size == 0 and os.path.isdir(path):
        return None if claim(path, "", CONTAINER) != CONTAINER else Match(CONTAINER)
    if path.endswith(f"{SUFFIX}.index.json"):
        return Match(CONTAINER)
    if not _begins_map(head):
        return None
    return Match(CONTAINER) if path.lower().endswith(SUFFIX) or _leads_to_array(head, path) else None


def _begins_map(head: bytes) -> bool:
    return 0x80 <= head[0] < 0x90 or head[0] in (0xDE, 0xDF) if head else False


class _Head:
    """The first bytes of a file, as a file."""

    def __init__(self, data: bytes, path: str) -> None:
        self.data, self.path, self.size = data, path, len(data)

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes."""
        return self.data[offset : offset + size]

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Copy bytes."""
        buffer[:] = self.data[offset : offset + len(buffer)]

    def close(self) -> None:
        """Do nothing."""


def _leads_to_array(head: bytes, path: str) -> bool:
    """Return whether maps within maps, by names, lead to an array with its shape and type."""
    walk = _Walk(_Head(head, path), 0)
    try:
        for _ in range(MAX_STATE_DEPTH):
            item = walk.item("map")
            if item.kind == "ext" and item.extension == ARRAY:
                walk.array("first", item.size, check_end=False)
                return True
            plain = item.kind in ("int", "float", "bool", "nothing")  # a counter, as of steps
            if not plain and (item.kind != "map" or not item.size):
                return False
            walk.text("the next name")
    except GgferryError:
        return False
    return False


class _Walk:
    """A file from front to back, past all payloads."""

    def __init__(self, source: Source, number: int) -> None:
        self.source, self.number = source, number
        self.cursor = Cursor(source, big_endian=True)
        self.leaves, self.names = 0, 0

    def item(self, what: str) -> _Item:
        """Read the beginning of a value."""
        at, cursor = self.cursor.offset, self.cursor
        first = cursor.integer("u8", what)
        if first < 0x80 or first >= 0xE0:
            return _Item("int", first if first < 0x80 else first - 0x100)
        for low, high, kind in _FIXED:
            if low <= first < high:
                return _Item(kind, first - low)
        if first in _LENGTHS:
            kind, code = _LENGTHS[first]
            size = cursor.integer(code, f"length of {what}")
            return _Item(kind, size, cursor.integer("i8", what) if kind == "ext" else 0)
        if 0xD4 <= first <= 0xD8:
            return _Item("ext", 1 << (first - 0xD4), cursor.integer("i8", what))
        if first in _NUMBERS:
            value = cursor.number(_NUMBERS[first], what)
            return _Item("int", value) if isinstance(value, int) else _Item("float", 0)
        if first == 0xC1:
            raise cursor.error(CorruptError, f"{what}: a byte that msgpack never uses", at, found="c1")
        return _Item("nothing" if first == 0xC0 else "bool", 0)

    def skip(self, size: int, what: str) -> None:
        """Pass over bytes. What follows is read in small pieces again: a few bytes come before the next payload."""
        self.cursor.skip(size, what)
        self.cursor = Cursor(self.source, self.cursor.offset, big_endian=True)

    def text(self, what: str) -> str:
        """Read a string, or bytes of one, as older versions wrote."""
        at = self.cursor.offset
        item = self.item(what)
        if item.kind not in ("str", "bin") or not item.size <= MAX_NAME:
            raise self.cursor.error(
                InconsistentError, what, at, found=f"{item.kind} {item.size}", expected=f"a string of ≤ {MAX_NAME}"
            )
        try:
            return self.cursor.take(item.size, what).decode()
        except UnicodeDecodeError:
            raise self.cursor.error(EncodingError, what, at) from None

    def whole(self, what: str) -> int:
        """Read a size."""
        at = self.cursor.offset
        item = self.item(what)
        if item.kind != "int" or not 0 <= item.size <= MAX_DIM:
            raise self.cursor.error(OutOfRangeError, what, at, found=item.size, expected=f"0 to {MAX_DIM}")
        return item.size

    def count(self, item: _Item, what: str, each: int) -> int:
        """Return how many entries follow. Raises TruncatedError where the file has no room for them."""
        self.cursor.require(item.size * each, what)
        return item.size

    def inside(self, name: str = "", depth: int = 0) -> Iterator[_Leaf]:
        """Yield the leaves of the value at the cursor."""
        at = self.cursor.offset
        item = self.item(name or "the root")
        if item.kind in ("map", "array"):
            if depth >= MAX_STATE_DEPTH:
                raise self.cursor.error(OutOfRangeError, f"depth of {name!r}", at, expected=f"≤ {MAX_STATE_DEPTH}")
            yield from self._members(item, name, depth)
            return
        self.leaves += 1
        self.names += len(name)
        if self.leaves > MAX_TENSORS or self.names > MAX_HEADERS:
            raise self.cursor.error(OutOfRangeError, "number of entries", at, expected=f"≤ {MAX_TENSORS}")
        if item.kind == "ext" and item.extension in (ARRAY, NUMBER):
            yield _Leaf(name, self.array(name, item.size))
            return
        if item.kind in ("str", "bin", "ext"):
            self.skip(item.size, name)
        yield _Leaf(name, None)

    def _members(self, item: _Item, name: str, depth: int) -> Iterator[_Leaf]:
        seen: set[str] = set()
        for number in range(self.count(item, name or "the root", 1 if item.kind == "array" else 2)):
            at = self.cursor.offset
            key = str(number) if item.kind == "array" else self.text(f"a name in {name or 'the root'!r}")
            whole = f"{name}/{key}" if name else key
            if key in seen or len(whole) > MAX_NAME:
                kind = DuplicateError if key in seen else OutOfRangeError
                raise self.cursor.error(kind, "name of an entry", at, found=whole[:MAX_NAME])
            if key == CHUNKED:
                if seen or item.size != 3:
                    raise self.cursor.error(InconsistentError, f"{name!r}: pieces beside others", at)
                yield _Leaf(name, self._chunked(name))
                return
            seen.add(key)
            yield from self.inside(whole, depth + 1)

    def array(self, name: str, size: int, *, check_end: bool = True) -> TensorRef:
        """Read an array up to its bytes, which are passed over, and return it.

        Raises ShapeError where it has other bytes than its shape and type say, UnsupportedTypeError.
        """
        cursor, at, end = self.cursor, self.cursor.offset, self.cursor.offset + size
        if check_end:
            cursor.require(size, f"tensor {name!r}")
        if self.item(name) != _Item("array", 3):
            raise cursor.error(InconsistentError, f"{name!r} is no array of flax", at, expected="shape, type, bytes")
        axes = self.item(f"shape of {name!r}")
        if axes.kind != "array" or axes.size > MAX_RANK:
            raise cursor.error(OutOfRangeError, f"axes of {name!r}", at, found=axes.size, expected=f"≤ {MAX_RANK}")
        shape = tuple(self.whole(f"size of {name!r}") for _ in range(axes.size))
        named = self.text(f"type of {name!r}")
        if named not in TYPES:
            raise cursor.error(UnsupportedTypeError, f"type of {name!r}", at, found=named, expected=", ".join(TYPES))
        data = self.item(f"bytes of {name!r}")
        kind, offset = block_type(TYPES[named]), cursor.offset
        expected = prod(shape) * kind.block_bytes
        if data.kind != "bin" or data.size != expected or (check_end and offset + expected != end):
            raise cursor.error(ShapeError, f"bytes of {name!r}, {named} {list(shape)}", at, data.size, expected)
        if check_end:
            self.skip(expected, f"tensor {name!r}")
        return TensorRef(name, kind, shape, (Span(self.number, offset, shape),))

    def _chunked(self, name: str) -> TensorRef:
        """Read an array in pieces: runs of its elements, by their numbers."""
        at = self.cursor.offset
        self.item(name)
        shape = tuple(self.whole(f"size of {name!r}") for _ in self._numbered(name, "shape"))
        pieces = [self._piece(name) for _ in self._numbered(name, "chunks")]
        if len(shape) > MAX_RANK or sum(piece.elements for piece in pieces) != prod(shape) or not pieces:
            found = sum(piece.elements for piece in pieces)
            raise self.cursor.error(ShapeError, f"pieces of {name!r}, {list(shape)}", at, found, prod(shape))
        first, spans, done = pieces[0], [], 0
        for piece in pieces:
            if piece.type is not first.type or len(piece.shape) != 1:
                raise self.cursor.error(InconsistentError, f"pieces of {name!r}", at, found=piece.type.name)
            spans.append(replace(piece.spans[0], at=(done,)))
            done += piece.elements
        return TensorRef(name, first.type, shape, tuple(spans))

    def _numbered(self, name: str, key: str) -> Iterator[int]:
        """Yield the numbers of the entries of a map that stands for a list; each value is read before the next."""
        at, found = self.cursor.offset, self.text(f"a name in {name!r}")
        item = self.item(f"{key} of {name!r}")
        if found != key or item.kind != "map":
            raise self.cursor.error(InconsistentError, f"pieces of {name!r}", at, found=found, expected=key)
        for number in range(self.count(item, f"{key} of {name!r}", 2)):
            if (own := self.text(f"{key} of {name!r}")) != str(number):
                raise self.cursor.error(InconsistentError, f"{key} of {name!r}", found=own, expected=number)
            yield number

    def _piece(self, name: str) -> TensorRef:
        at, item = self.cursor.offset, self.item(f"a piece of {name!r}")
        self.leaves += 1
        if item.kind != "ext" or item.extension != ARRAY or self.leaves > MAX_TENSORS:
            raise self.cursor.error(InconsistentError, f"a piece of {name!r}", at, found=item.kind, expected="an array")
        return self.array(name, item.size)


class _Contents(NamedTuple):
    """What a file holds: the model's tensors by name, those of the training, and the names of what is no tensor."""

    tensors: dict[str, TensorRef]
    dropped: list[Dropped]
    others: list[str]


def _contents(source: Source, number: int) -> _Contents:
    walk = _Walk(source, number)
    head = source.read(0, min(source.size, HEAD_BYTES))
    if not _begins_map(head):
        refuse_foreign(head, source.path)
        raise InconsistentError("not a Flax model", path=source.path, offset=0, expected="a map of msgpack")
    leaves = list(walk.inside())
    if walk.cursor.remaining:
        found = f"{walk.cursor.remaining} bytes"
        raise TrailingBytesError("bytes follow the map", path=source.path, offset=walk.cursor.offset, found=found)
    prefix = ""
    for _ in range(2):  # a TrainState may hold the variables of a module, and these its parameters
        prefix += PARAMS if any(leaf.name.startswith(f"{prefix}{PARAMS}") for leaf in leaves) else ""
    held = _Contents({}, [], [])
    for name, ref in leaves:
        short = name.removeprefix(prefix)
        if ref is None:
            held.others.append(name)
        elif prefix and not name.startswith((prefix, "batch_stats/")):
            held.dropped.append(Dropped(ref, TRAINING))
        elif short in held.tensors:
            raise DuplicateError("duplicate tensor name", path=source.path, found=short)
        else:
            held.tensors[short] = ref if short == name else replace(ref, name=short)
    return held


def open_checkpoint(path: str, layouts: Sequence[HeaderLayout] = ()) -> Checkpoint:
    """Open the checkpoint at `path`: a file, a shard (its whole model is opened), an index, or a folder.

    Raises NotFoundError, UnknownFormatError, UnsupportedError, and every CorruptError.
    """
    weights = locate(path, CONTAINER)
    refuse_container(weights, CONTAINER)
    index = None if weights.index is None else read_index(weights.index)
    files: list[Source] = []
    try:
        for name in weights.files if index is None else index.files:
            files.append(open_source(name, weights.folder))
        held = [_contents(source, number) for number, source in enumerate(files)]
        tensors, notes = join_files([(f.path, one.tensors) for f, one in zip(files, held, strict=True)], index)
        others = [name for one in held for name in one.others]
        if not tensors:
            hint = "those of T5X hold the places of their arrays: save the arrays themselves"
            message = "a file of msgpack without an array"
            raise UnsupportedError(message, path=files[0].path, found=", ".join(others[:3]), hint=hint)
        beside = sidecars(weights)
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
        {} if index is None else {"index": dict(index.metadata)},
        config,
        era="flax.serialization, since 2020",
        notes=(*weights.notes, *left_out("not tensors", others), *notes, *caveats),
        dropped=tuple(drop for one in held for drop in one.dropped),
        sidecars=beside,
    )


CONTAINERS = (Container(CONTAINER, "Flax", Kind.TRAINING, storage_word=False),)
WEIGHTS = (WeightsName(10, CONTAINER, "flax_model", "msgpack"),)

SPEC = Reader(CONTAINER, probe, open_checkpoint, CONTAINERS, (SUFFIX,), WEIGHTS, (SUFFIX,))
