"""Compute the bytes of a GGUF header and the offset of every tensor, before any tensor data exists.

The functions are pure: the same metadata and tensors give the same bytes. The structure is that in `readers/gguf.py`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from itertools import islice
from typing import Any, Protocol

from ggferry.formats import limits
from ggferry.formats.errors import DuplicateError, EncodingError, OutOfRangeError, UsageError
from ggferry.formats.fields import CODES
from ggferry.formats.gguf.values import (
    ALIGNMENT_KEY,
    COUNT_CODES,
    DEFAULT_ALIGNMENT,
    KEY_PATTERN,
    NUMBER_CODES,
    Value,
    ValueType,
    align,
    is_alignment,
    u32,
)
from ggferry.quant.types import BlockError, BlockType
from ggferry.support.content_cache import Recent, held
from ggferry.support.records import dataclass

Declared = tuple[str, BlockType, tuple[int, ...]]
"""A tensor to be written: name, type, shape (outermost first)."""

_KEY = re.compile(KEY_PATTERN)
VOCABULARY = 256  # strings; shorter arrays are packed sooner than they are found again
_PACKED: Recent[bytes] = Recent(64 << 20)
"""(Byte order, type of the lengths, strings) → their bytes."""
_V1_TYPES = 10  # GGUF_TYPE_COUNT of v1: UINT64, INT64 and FLOAT64 came with v2


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor with its place in the file.

    Attributes:
        name: Name of the tensor.
        type: Block type.
        shape: Elements along each axis, outermost first.
        offset: Byte of the file at which its data begins.
        nbytes: Bytes of its data, without the padding that follows.
    """

    name: str
    type: BlockType
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class FileLayout(Protocol):
    """A file without its data, of this container or another that is written to known offsets.

    Attributes:
        header: What the file begins with.
        pieces: All that is no tensor's data, each with the byte at which it begins, the header first.
        tensors: Tensors by the name under which they are written, in order.
        size: Bytes of the whole file.
        big_endian: Whether the file is big-endian.
    """

    @property
    def header(self) -> bytes: ...
    @property
    def pieces(self) -> tuple[tuple[int, bytes], ...]: ...
    @property
    def tensors(self) -> Mapping[str, Placed]: ...
    @property
    def size(self) -> int: ...
    @property
    def big_endian(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class GGUFLayout:
    """A GGUF file without its data.

    Attributes:
        header: Everything up to the first tensor, padding included.
        tensors: Tensors by name, in order.
        size: Bytes of the whole file; every tensor, including the last, is padded with zeros to `alignment`.
        alignment: Bytes to which tensor data is aligned.
        big_endian: Whether the file is big-endian.
        version: Version of GGUF.
    """

    header: bytes = field(repr=False)
    tensors: Mapping[str, Placed] = field(repr=False)
    size: int
    alignment: int
    big_endian: bool
    version: int

    @property
    def pieces(self) -> tuple[tuple[int, bytes], ...]:
        """All that is no tensor's data: the header."""
        return ((0, self.header),)

    @property
    def data_offset(self) -> int:
        """Byte at which the data section begins."""
        return len(self.header)

    @property
    def offsets(self) -> dict[str, int]:
        """Absolute offset of each tensor's data."""
        return {name: tensor.offset for name, tensor in self.tensors.items()}

    @property
    def relative(self) -> dict[str, int]:
        """Offset of each tensor's data within the data section, as the tensor table states it."""
        return {name: tensor.offset - len(self.header) for name, tensor in self.tensors.items()}


def lay_out(
    metadata: Mapping[str, Value],
    tensors: Sequence[Declared],
    *,
    alignment: int = DEFAULT_ALIGNMENT,
    big_endian: bool = False,
    version: int = 3,
) -> GGUFLayout:
    """Return the header of a file with these keys and tensors, in the given order, and the place of each tensor's data.

    Args:
        metadata: Keys and values. `general.alignment` is added at the end when `alignment` is not 32 and the key is
            absent.
        tensors: Name, type and shape (outermost first) of each tensor.
        alignment: Bytes to which tensor data is aligned, a power of two.
        big_endian: Whether the file is big-endian.
        version: Version of GGUF; 1 and 2 are for tests.

    Raises:
        UsageError: A key, name, shape or alignment that GGUF or ggml does not accept.
        DuplicateError: Two tensors have the same name.
        OutOfRangeError: A value does not fit its type.
        EncodingError: A text cannot be written as UTF-8.
    """
    metadata = _with_alignment(metadata, alignment)
    packer = _Packer(version, big_endian)
    placed, end = [], 0
    for name, kind, shape in tensors:
        nbytes = _checked_size(name, kind, shape)
        placed.append(Placed(name, kind, tuple(shape), end, nbytes))
        end = align(end + nbytes, alignment)
    if len({tensor.name for tensor in placed}) != len(placed):
        names = [tensor.name for tensor in placed]
        raise DuplicateError("duplicate tensor name", found=next(n for n in names if names.count(n) > 1))
    header = packer.header(metadata, placed)
    header += bytes(align(len(header), alignment) - len(header))
    absolute = {t.name: Placed(t.name, t.type, t.shape, t.offset + len(header), t.nbytes) for t in placed}
    return GGUFLayout(header, absolute, len(header) + end, alignment, big_endian, version)


def packed_key(key: str, value: Value, version: int = 3, big_endian: bool = False) -> bytes:
    """Return the bytes of a key, its type and its value, as they stand in a header.

    Raises UsageError for what is no key, and what `lay_out` raises for values.
    """
    return _Packer(version, big_endian).key(key, value)


def with_values(layout: GGUFLayout, before: Mapping[str, Value], after: Mapping[str, Value]) -> GGUFLayout | None:
    """Return a layout with other values of the same keys; None where that is not done by its first keys alone.

    It is not where the data would begin elsewhere, or where the header does not end with an offset other than 0.

    Args:
        layout: What `lay_out` returned for the keys `before`.
        before: The keys of the layout, without the alignment that `lay_out` adds.
        after: The same keys in the same order.

    Raises what `lay_out` raises.
    """
    packer = _Packer(layout.version, layout.big_endian)
    last = next((tensor.offset for tensor in reversed([*layout.tensors.values()])), 0) - len(layout.header)
    if list(before) != list(after) or last <= 0:
        return None
    pairs = enumerate(zip(before.values(), after.values(), strict=True))
    changed = [number for number, (old, new) in pairs if old is not new]
    declared = packer.number("u64", last, "offset")
    bare = layout.header.rstrip(b"\0")
    end = len(bare) + len(declared) - len(declared.rstrip(b"\0"))
    first = changed[-1] + 1 if changed else 0  # keys up to the last that changed; the others stay as they are
    begin = 8 + 2 * struct.calcsize(CODES[packer.count_code])  # behind the magic, the version and both counts
    there, here = (
        b"".join(packer.key(key, value) for key, value in islice(values.items(), first)) for values in (before, after)
    )
    header = layout.header[:begin] + here + layout.header[begin + len(there) : end]
    missing = len(layout.header) - len(header)
    return replace(layout, header=header + bytes(missing)) if 0 <= missing < layout.alignment else None


def lay_out_packed(
    keys: Sequence[bytes],
    tensors: Sequence[Placed],
    *,
    alignment: int,
    big_endian: bool = False,
    version: int = 3,
) -> GGUFLayout:
    """Return the layout of a file whose keys are packed already, and whose tensors have their places.

    Args:
        keys: What `packed_key` returns, or what a file holds in this version and byte order.
        tensors: The tensors in the order of the table; their offsets are relative to the data section, `nbytes` may
            include padding, and no two may overlap.
        alignment: Bytes to which the data section is aligned; nothing here states it in the header.
        big_endian: Whether the numbers of the header are big-endian.
        version: Version of GGUF.

    Raises:
        UsageError: A tensor's name that GGUF cannot hold.
        DuplicateError: Two tensors have the same name.
        OutOfRangeError: Too many tensors or keys.
    """
    for tensor in tensors:
        _checked_size(tensor.name, tensor.type, tensor.shape)
    names = [tensor.name for tensor in tensors]
    if len(set(names)) != len(names):
        raise DuplicateError("duplicate tensor name", found=next(n for n in names if names.count(n) > 1))
    header = _Packer(version, big_endian).assembled(keys, tensors)
    header += bytes(align(len(header), alignment) - len(header))
    placed = {t.name: Placed(t.name, t.type, t.shape, t.offset + len(header), t.nbytes) for t in tensors}
    end = max((tensor.offset + tensor.nbytes for tensor in tensors), default=0)
    return GGUFLayout(header, placed, len(header) + end, alignment, big_endian, version)


def _with_alignment(metadata: Mapping[str, Value], alignment: int) -> Mapping[str, Value]:
    if not is_alignment(alignment) or alignment > limits.MAX_ALIGNMENT or alignment & (alignment - 1):
        expected = f"a power of two, at most {limits.MAX_ALIGNMENT}"  # ggml takes nothing else
        raise UsageError("alignment", found=alignment, expected=expected)
    declared = metadata.get(ALIGNMENT_KEY)
    if declared is None:
        return metadata if alignment == DEFAULT_ALIGNMENT else {**metadata, ALIGNMENT_KEY: u32(alignment)}
    if declared != u32(alignment):
        raise UsageError(
            f"{ALIGNMENT_KEY} contradicts the alignment asked for", found=declared, expected=u32(alignment)
        )
    return metadata


def _checked_size(name: str, kind: BlockType, shape: tuple[int, ...]) -> int:
    """Return the bytes of a tensor. Raises UsageError for what no GGUF file can hold."""
    size = len(name.encode(errors="surrogateescape"))
    if not 1 <= size <= limits.MAX_GGUF_NAME or not name.isprintable():
        expected = f"1..{limits.MAX_GGUF_NAME} bytes of printable UTF-8"
        raise UsageError("tensor name", found=name, expected=expected)
    if kind.ggml_id is None or kind.planar:
        raise UsageError(f"tensor {name!r}: GGUF has no type {kind.name}")
    if not 1 <= len(shape) <= limits.MAX_DIMS or not all(1 <= size <= limits.MAX_DIM for size in shape):
        raise UsageError(
            f"tensor {name!r}: shape", found=shape, expected=f"1..{limits.MAX_DIMS} dimensions, none empty"
        )
    try:
        return kind.nbytes(shape)
    except BlockError as error:
        raise UsageError(f"tensor {name!r}: {error}") from None


def _encoded(text: Any, what: str) -> bytes:
    """Return `text` as UTF-8, with surrogate escapes as the bytes they stand for."""
    if not isinstance(text, str):
        raise OutOfRangeError(what, found=text, expected="text")
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise EncodingError(f"{what}: a lone surrogate", found=text[error.start]) from None


class _Packer:
    """Pack numbers, strings, values and tables in one version and byte order."""

    def __init__(self, version: int, big_endian: bool) -> None:
        if version not in COUNT_CODES:
            raise UsageError("GGUF version", found=version, expected="1, 2 or 3")
        self.version = version
        self.mark = ">" if big_endian else "<"
        self.count_code = COUNT_CODES[version]

    def header(self, metadata: Mapping[str, Value], tensors: Sequence[Placed]) -> bytes:
        return self.assembled([self.key(key, value) for key, value in metadata.items()], tensors)

    def assembled(self, keys: Sequence[bytes], tensors: Sequence[Placed]) -> bytes:
        out = bytearray(b"GGUF" + self.number("u32", self.version, "version"))
        out += self.count(len(tensors), "number of tensors", limits.MAX_GGUF_TENSORS)
        out += self.count(len(keys), "number of metadata keys", limits.MAX_KV)
        for key in keys:
            out += key
        for tensor in tensors:
            what = f"tensor {tensor.name!r}"
            out += self.text(tensor.name, what) + self.number("u32", len(tensor.shape), what)
            out += self.numbers(self.count_code, tensor.shape[::-1], what)
            out += self.number("u32", tensor.type.ggml_id, what) + self.number("u64", tensor.offset, what)
        return bytes(out)

    def key(self, key: str, value: Value) -> bytes:
        if not _KEY.fullmatch(key) or len(key) > limits.MAX_KEY:
            raise UsageError("metadata key", found=key, expected="lower_snake_case.parts in ASCII")
        return self.text(key, key) + self.number("u32", value.type, key) + self.value(key, value, 0)

    def number(self, code: str, value: Any, what: str) -> bytes:
        try:
            return struct.pack(self.mark + CODES[code], value)
        except (struct.error, OverflowError):
            raise OutOfRangeError(what, found=value, expected=code) from None

    def numbers(self, code: str, values: Sequence[Any], what: str) -> bytes:
        try:
            return struct.pack(f"{self.mark}{len(values)}{CODES[code]}", *values)
        except (struct.error, OverflowError) as error:
            raise OutOfRangeError(what, found=values[0] if len(values) == 1 else str(error), expected=code) from None

    def count(self, value: int, what: str, limit: int) -> bytes:
        if value > limit:
            raise OutOfRangeError(what, found=value, expected=f"at most {limit}")
        return self.number(self.count_code, value, what)

    def text(self, text: Any, what: str) -> bytes:
        raw = _encoded(text, what)
        return self.count(len(raw), f"length of {what}", limits.MAX_STRING) + raw

    def texts(self, texts: Sequence[Any], what: str) -> bytes:
        """Pack strings after their lengths.

        Vocabularies of hundreds of thousands pass here, often the same ones again.
        """
        if len(texts) < VOCABULARY:
            return self._packed(texts, what)
        key = self.mark, self.count_code, tuple(texts)
        found = _PACKED.get(key)
        if found is None:
            found = self._packed(texts, what)
            _PACKED.put(key, found, len(found) + held(texts))
        return found

    def _packed(self, texts: Sequence[Any], what: str) -> bytes:
        try:
            raws = [text.encode() for text in texts]
        except (AttributeError, UnicodeEncodeError):
            raws = [_encoded(text, what) for text in texts]
        longest = max(map(len, raws), default=0)
        self.count(longest, f"length of {what}", limits.MAX_STRING)
        pack = struct.Struct(self.mark + CODES[self.count_code]).pack
        heads = {size: pack(size) for size in set(map(len, raws))}
        parts = [b""] * (2 * len(raws))
        parts[::2], parts[1::2] = [heads[len(raw)] for raw in raws], raws
        return b"".join(parts)

    def bools(self, values: Sequence[Any], what: str) -> bytes:
        wrong = [value for value in values if not isinstance(value, bool)]
        if wrong:
            raise OutOfRangeError(what, found=wrong[0], expected="bool")
        return bytes(values)

    def value(self, key: str, value: Value, depth: int) -> bytes:
        """Pack a value after its type; `depth` is the number of arrays around it."""
        if value.type is not ValueType.ARRAY:
            return self.items(key, value.type, (value.data,), depth)
        if value.items is None or depth == limits.MAX_ARRAY_DEPTH:
            raise OutOfRangeError(
                key, found=value.items, expected=f"typed arrays, {limits.MAX_ARRAY_DEPTH} deep at most"
            )
        head = self.number("u32", value.items, key) + self.count(len(value.data), key, limits.MAX_ARRAY)
        return head + self.items(key, value.items, value.data, depth + 1)

    def items(self, key: str, kind: ValueType, data: Sequence[Any], depth: int) -> bytes:
        if self.version == 1 and kind >= _V1_TYPES:
            raise OutOfRangeError(key, found=kind.name, expected="a type of GGUF v1")
        if kind is ValueType.STRING:
            return self.texts(data, key)
        if kind is ValueType.BOOL:
            return self.bools(data, key)
        if kind is not ValueType.ARRAY:
            return self.numbers(NUMBER_CODES[kind], data, key)
        for item in data:
            if not isinstance(item, Value) or item.type is not ValueType.ARRAY:
                raise OutOfRangeError(key, found=item, expected="an array in an array")
        return b"".join([self.value(key, item, depth) for item in data])
