"""HDF5 as h5py writes it by default: where each dataset lies, found without reading one.

Source: the HDF5 File Format Specification 3.0, of the parts that library versions before 1.8 read: superblock 0 and 1,
groups as B-trees of names (version 1), object headers of version 1, data in one run. What else HDF5 has (chunks,
filters, external files, links to other files) is refused by name: `h5repack` writes it so.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ggferry.formats.checkpoint import Span, TensorRef
from ggferry.formats.checkpoint_folder.folder import refuse_foreign
from ggferry.formats.errors import (
    CorruptError,
    EncodingError,
    GgferryError,
    OutOfRangeError,
    OverlapError,
    ShapeError,
    TruncatedError,
    UnknownFormatError,
    UnsupportedError,
    UnsupportedTypeError,
)
from ggferry.formats.files.sources import Source
from ggferry.formats.hdf5.attributes import text_of
from ggferry.formats.limits import MAX_DIM, MAX_NAME, MAX_RANK, MAX_STATE_DEPTH, MAX_TENSORS
from ggferry.formats.reader import HEAD_BYTES
from ggferry.quant.codec import block_type
from ggferry.support.records import dataclass

SIGNATURE = b"\x89HDF\r\n\x1a\n"
HINT = "h5repack -l CONTI --low=0 --high=0 OLD NEW writes it in the form that is read"
NOWHERE = (1 << 64) - 1
MAX_MESSAGES = 1 << 12  # of one object's header; h5py writes ten
MAX_HEADER = 1 << 22  # bytes of it: Keras keeps the names of all layers in attributes of up to 64 KiB
_SPACE, _TYPE, _EXTERNAL, _LAYOUT, _FILTERS, _ATTRIBUTE, _MORE, _GROUP = 0x1, 0x3, 0x7, 0x8, 0xB, 0xC, 0x10, 0x11
_OPAQUE = 5  # the class of types by which h5py keeps numpy's bfloat16; Keras says in an attribute that it is one
_NEW_GROUP = frozenset({0x2, 0x6, 0xA})  # link info, link, group info
_WHOLE = {(size, signed): f"{'I' if signed else 'U'}{8 * size}" for size in (1, 2, 4, 8) for signed in (False, True)}
_FLOATS = {(2, 5, 10): "F16", (2, 8, 7): "BF16", (4, 8, 23): "F32", (8, 11, 52): "F64"}
"""Bytes, bits of the exponent and of the mantissa → type."""


class Message(NamedTuple):
    """A part of an object's header: its number, its first byte, its bytes."""

    kind: int
    at: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Contents:
    """What a file holds.

    Attributes:
        tensors: Datasets of numbers by their path.
        others: Paths of datasets of anything else.
    """

    tensors: Mapping[str, TensorRef]
    others: tuple[str, ...]


def check_signature(source: Source) -> None:
    """Check that a file is HDF5. Raises UnknownFormatError, and of a file of another kind what says which."""
    head = source.read(0, min(source.size, HEAD_BYTES))
    if not head.startswith(SIGNATURE):
        refuse_foreign(head, source.path)
        raise UnknownFormatError("not an HDF5 file", path=source.path, offset=0, found=head[:8].hex(" "))


def read_contents(source: Source, number: int) -> Contents:
    """Return the datasets of the file `number`, whose bytes are `source`.

    Raises UnsupportedError for what else HDF5 has, UnsupportedTypeError, and every CorruptError.
    """
    return _File(source, number).contents()


class _File:
    """An HDF5 file, read at the places that it names."""

    def __init__(self, source: Source, number: int) -> None:
        self.source, self.number = source, number
        self.seen: set[int] = set()
        self.objects = 0

    def error(self, kind: type[GgferryError], message: str, at: int, found: object = None) -> GgferryError:
        """Return an error at a byte, with the way out where the file is only of another form."""
        hint = HINT if kind is UnsupportedError else None
        return kind(message, path=self.source.path, offset=at, found=found, hint=hint)

    def take(self, at: int, size: int, what: str) -> bytes:
        """Return bytes. Raises TruncatedError where the file ends before them."""
        if at + size > self.source.size:
            raise self.error(TruncatedError, f"the file ends inside {what}", at, f"{self.source.size} bytes")
        return self.source.read(at, size)

    def numbers(self, code: str, at: int, what: str) -> tuple[int, ...]:
        """Return little-endian numbers."""
        return struct.unpack(f"<{code}", self.take(at, struct.calcsize(f"<{code}"), what))

    def once(self, at: int, what: str) -> None:
        """Note that something is read. Raises CorruptError where it was read before, as of a group within itself."""
        if at in self.seen:
            raise self.error(CorruptError, f"{what} is reached twice", at)
        self.seen.add(at)
        if len(self.seen) > 4 * MAX_TENSORS:
            raise self.error(OutOfRangeError, "number of objects", at)

    def contents(self) -> Contents:
        """Return the datasets, after checking that none lies on another."""
        tensors: dict[str, TensorRef] = {}
        others = []
        for name, ref in self._inside("", self._root(), 0):
            if ref is None:
                others.append(name)
            elif name in tensors or len(tensors) >= MAX_TENSORS:
                raise self.error(CorruptError, "two datasets of one name, or too many", 0, name)
            else:
                tensors[name] = ref
        end = 0
        for ref in sorted(tensors.values(), key=lambda ref: ref.spans[0].offset):
            span = ref.spans[0]
            if ref.nbytes and span.offset < end:
                raise self.error(OverlapError, f"{ref.name!r} begins inside another dataset", span.offset)
            end = max(end, span.offset + ref.nbytes)
        return Contents(tensors, tuple(others))

    def _root(self) -> int:
        """Return the place of the root group's header."""
        if self.take(0, 8, "the signature") != SIGNATURE:
            raise self.error(CorruptError, "not an HDF5 file", 0)
        version, _, _, _, _, offsets, lengths = self.numbers("7B", 8, "the superblock")
        if version > 1 or (offsets, lengths) != (8, 8):
            message = "an HDF5 file of another form"
            raise self.error(UnsupportedError, message, 8, f"superblock {version}, {offsets} and {lengths} bytes")
        base, _, _, _, _, root = self.numbers("6Q", 24 + 4 * version, "the superblock")
        if base:
            raise self.error(UnsupportedError, "an HDF5 file behind other data", 24, base)
        return root

    def _inside(self, name: str, at: int, depth: int) -> Iterator[tuple[str, TensorRef | None]]:
        """Yield the datasets of the object at `at`."""
        self.once(at, f"object {name!r}")
        everything = list(self._messages(at, name))
        messages = {message.kind: message for message in everything}
        if (group := messages.get(_GROUP)) is not None:
            if depth >= MAX_STATE_DEPTH:
                raise self.error(OutOfRangeError, "depth of groups", at, name)
            tree, heap = self.numbers("2Q", group.at, f"group {name!r}")
            texts = self._heap(heap, name)
            for place, header in self._entries(tree, 0, name):
                own = self._name(texts, place)
                whole = f"{name}/{own}" if name else own
                if len(whole) > MAX_NAME:
                    raise self.error(OutOfRangeError, "name of an object", heap, whole[:MAX_NAME])
                yield from self._inside(whole, header, depth + 1)
        elif _LAYOUT in messages:
            yield name, self._dataset(name, at, messages, [one for one in everything if one.kind == _ATTRIBUTE])
        elif messages.keys() & _NEW_GROUP:
            raise self.error(UnsupportedError, "an HDF5 group of another form", at, name)
        else:
            yield name, None

    # --- groups --------------------------------------------------------------

    def _heap(self, at: int, name: str) -> tuple[int, int]:
        """Return the first and the last byte of a group's names."""
        if self.take(at, 8, f"names of {name!r}") != b"HEAP\0\0\0\0":
            raise self.error(CorruptError, f"names of group {name!r}", at, "no local heap")
        size, _, begin = self.numbers("3Q", at + 8, f"names of {name!r}")
        self.take(begin + size, 0, f"names of {name!r}")
        return begin, begin + size

    def _name(self, heap: tuple[int, int], place: int) -> str:
        begin, end = heap
        at = begin + place
        data = self.take(at, max(0, min(MAX_NAME + 1, end - at)), "a name")
        text, stop, _ = data.partition(b"\0")
        if not stop or not text:
            raise self.error(OutOfRangeError, "name of an object", at, text[:80])
        try:
            return text.decode()
        except UnicodeDecodeError:
            raise self.error(EncodingError, "name of an object", at) from None

    def _entries(self, at: int, depth: int, name: str) -> Iterator[tuple[int, int]]:
        """Yield the place of the name and of the header of each member of a group."""
        self.once(at, f"a node of group {name!r}")
        head = self.take(at, 8, f"group {name!r}")
        if head.startswith(b"SNOD\1"):
            for number in range(int.from_bytes(head[6:8], "little")):
                place, header, cached = self.numbers("QQI", at + 8 + 40 * number, f"group {name!r}")
                self.objects += 1
                if cached > 1 or self.objects > MAX_TENSORS:
                    raise self.error(UnsupportedError, "a symbolic link, or too many objects", at, name)
                yield place, header
            return
        if not head.startswith(b"TREE\0") or depth > 8:
            raise self.error(CorruptError, f"members of group {name!r}", at, head[:5].hex(" "))
        count = int.from_bytes(head[6:8], "little")
        for number in range(count):
            (child,) = self.numbers("Q", at + 32 + 16 * number, f"group {name!r}")
            yield from self._entries(child, depth + 1, name)

    # --- objects -------------------------------------------------------------

    def _messages(self, at: int, name: str) -> Iterator[Message]:
        """Yield the parts of an object's header; one that follows elsewhere is read there."""
        what = f"header of {name!r}"
        if self.take(at, 4, what) == b"OHDR":
            raise self.error(UnsupportedError, "an HDF5 object of another form", at, name)
        version, _, count, _, size = self.numbers("BBHII", at, what)
        if version != 1 or count > MAX_MESSAGES:
            raise self.error(CorruptError, what, at, f"version {version}, {count} parts")
        blocks, total = [(at + 16, size)], 0
        while blocks and count:
            place, size = blocks.pop(0)
            total += size
            if total > MAX_HEADER:
                raise self.error(OutOfRangeError, f"size of the {what}", place, total)
            data = self.take(place, size, what)
            pos = 0
            while pos + 8 <= size and count:
                kind, length, flags = struct.unpack_from("<HHB", data, pos)
                body = data[pos + 8 : pos + 8 + length]
                if len(body) < length:
                    raise self.error(CorruptError, f"a part of the {what}", place + pos, length)
                if kind == _MORE and length >= 16:
                    blocks.append(struct.unpack_from("<QQ", body))
                elif flags & 2 and kind in (_SPACE, _TYPE, _LAYOUT):
                    raise self.error(UnsupportedError, "a type that several datasets share", place + pos, name)
                yield Message(kind, place + pos + 8, body)
                pos, count = pos + 8 + length, count - 1

    def _dataset(
        self, name: str, at: int, messages: Mapping[int, Message], attributes: Sequence[Message]
    ) -> TensorRef | None:
        """Return a dataset of numbers; None for one of texts or records."""
        for part, what in ((_EXTERNAL, "data in another file"), (_FILTERS, "compressed data")):
            if part in messages:
                raise self.error(UnsupportedError, f"{name!r} has {what}", at)
        missing = {_SPACE, _TYPE} - messages.keys()
        if missing:
            raise self.error(CorruptError, f"{name!r} lacks its shape or type", at, sorted(missing))
        try:
            shape = self._shape(name, messages[_SPACE])
            kind = self._kind(name, messages[_TYPE], attributes)
            place = self._place(name, messages[_LAYOUT])
        except (struct.error, ValueError):  # of one that is too short
            raise self.error(CorruptError, f"header of {name!r} is cut", at) from None
        if kind is None or shape is None:
            return None
        ref = TensorRef(name, block_type(kind), shape, (Span(self.number, place[0], shape),))
        if not ref.nbytes:  # which lies nowhere
            return replace(ref, spans=(Span(self.number, 0, shape),))
        if place[1] != ref.nbytes or place[0] == NOWHERE:
            words = "nothing was ever written" if place[0] == NOWHERE else place[1]
            raise self.error(ShapeError, f"bytes of {name!r}, {kind} {list(shape)}", at, words)
        self.take(place[0] + place[1], 0, f"dataset {name!r}")
        return ref

    def _shape(self, name: str, message: Message) -> tuple[int, ...] | None:
        version, rank, _, kind = message.data[:4]
        if version not in (1, 2) or rank > MAX_RANK:
            raise self.error(OutOfRangeError, f"axes of {name!r}", message.at, rank)
        if version == 2 and kind == 2:
            return None
        shape = struct.unpack_from(f"<{rank}Q", message.data, 8 if version == 1 else 4)
        if any(size > MAX_DIM for size in shape):
            raise self.error(OutOfRangeError, f"size of {name!r}", message.at, shape)
        return shape

    def _kind(self, name: str, message: Message, attributes: Sequence[Message]) -> str | None:
        first, bits, sign, _ = message.data[:4]
        (size,) = struct.unpack_from("<I", message.data, 4)
        if (first & 15, size) == (_OPAQUE, 2):
            kinds = (text_of(one.data, "dtype", self.take) for one in attributes)
            return "BF16" if "bfloat16" in kinds else None
        if first & 15 > 1:
            return None
        if bits & 1 and size > 1:
            raise self.error(UnsupportedError, f"{name!r} has its most significant bytes first", message.at)
        if first & 15 == 0:
            found = _WHOLE.get((size, bool(bits & 8)))
            plain = struct.unpack_from("<HH", message.data, 8) == (0, 8 * size)
        else:
            shift, width, _, exponent, low, mantissa = struct.unpack_from("<HHBBBB", message.data, 8)
            found = _FLOATS.get((size, exponent, mantissa))
            plain = (shift, width, low, sign) == (0, 8 * size, 0, 8 * size - 1)
        if found is None or not plain:
            raise self.error(UnsupportedTypeError, f"type of {name!r}", message.at, message.data[:20].hex(" "))
        return found

    def _place(self, name: str, message: Message) -> tuple[int, int]:
        """Return the first byte of a dataset, and its length."""
        version, how = message.data[:2]
        if version != 3 or how not in (0, 1):
            raise self.error(UnsupportedError, f"{name!r} lies in chunks", message.at, f"layout {version}, {how}")
        if how == 1:
            place, size = struct.unpack_from("<QQ", message.data, 2)
            return place, size
        (size,) = struct.unpack_from("<H", message.data, 2)
        if size > len(message.data) - 4:
            raise self.error(CorruptError, f"{name!r} is cut", message.at, size)
        return message.at + 4, size
