"""Read fixed and length-prefixed fields: a buffered cursor, and struct tables written as text.

One table line `name type [low..high] description` defines the reader, the writer, the size and the annotated hex dump
of a field, so that the four cannot drift apart.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from dataclasses import field
from typing import Any, TypeVar

from ggferry.formats import limits
from ggferry.formats.errors import GgferryError, MissingError, OutOfRangeError, TableError, TruncatedError, UsageError
from ggferry.formats.files.sources import Source
from ggferry.support.places import BadWord, caller
from ggferry.support.records import dataclass

CODES = {
    "u8": "B",
    "u16": "H",
    "u32": "I",
    "u64": "Q",
    "f32": "f",
    "i8": "b",
    "i16": "h",
    "i32": "i",
    "i64": "q",
    "f64": "d",
}
_NUMBER = {
    big: {code: struct.Struct((">" if big else "<") + char) for code, char in CODES.items()} for big in (False, True)
}
_FIRST_WINDOW = 1 << 16
_LAST_WINDOW = 1 << 22
ASCII = 128  # lengths below it are ASCII themselves, whatever their width

Error = TypeVar("Error", bound=GgferryError)


def size_of(code: str) -> int:
    """Return the bytes of a number of type `code`."""
    return _NUMBER[False][code].size


class Cursor:
    """Read a Source from front to back through windows that grow from 64 KiB to 4 MiB.

    Every method that consumes bytes takes `what`, the name of the field for the TruncatedError that is raised when the
    bytes are not there; nothing is allocated before that check. Not thread-safe.
    """

    __slots__ = ("_base", "_big", "_buffer", "_most", "_number", "_pos", "_window", "end", "source")

    def __init__(
        self, source: Source, offset: int = 0, big_endian: bool = False, end: int | None = None, known: bytes = b""
    ) -> None:
        """Start at byte `offset`; treat the bytes from `end` on (default: the end of the source) as absent.

        `known`: the first bytes of the source, if they were read already. A source for which bytes are dear says in its
        attribute `ahead` how many may be read before they are needed.
        """
        self.source = source
        self._most = min(_LAST_WINDOW, getattr(source, "ahead", _LAST_WINDOW))
        self.end = source.size if end is None else min(end, source.size)
        begun = len(known) >= offset and end is None
        self._base = 0 if begun else offset
        self._big = big_endian
        self._number = _NUMBER[big_endian]
        self._buffer = known if begun else b""
        self._pos = offset if begun else 0
        self._window = min(_FIRST_WINDOW, self._most)

    @property
    def offset(self) -> int:
        """Absolute position of the next byte."""
        return self._base + self._pos

    @property
    def remaining(self) -> int:
        """Bytes between here and the end."""
        return max(0, self.end - self.offset)

    @property
    def big_endian(self) -> bool:
        """Whether numbers are read in big-endian order."""
        return self._big

    @property
    def path(self) -> str:
        """Path of the file, for errors."""
        return self.source.path

    def error(
        self,
        kind: type[Error],
        message: str,
        at: int | None = None,
        found: object = None,
        expected: object = None,
        hint: str | None = None,
    ) -> Error:
        """Return an error of class `kind` placed in this file, at byte `at` or, by default, at the current offset."""
        place = self.offset if at is None else at
        return kind(message, path=self.path, offset=place, found=found, expected=expected, hint=hint)

    def require(self, size: int, what: str) -> None:
        """Raise TruncatedError unless `size` more bytes exist, OutOfRangeError when `size` is negative."""
        if size < 0:
            raise self.error(OutOfRangeError, f"{what}: negative size", found=size)
        if size > self.remaining:
            raise self.error(
                TruncatedError,
                f"the file ends inside {what}",
                found=f"{self.remaining} bytes",
                expected=f"{size} bytes",
            )

    def _fill(self, size: int, what: str) -> None:
        """Make `size` bytes available in the buffer at `_pos`."""
        self.require(size, what)
        start = self.offset
        kept = self._buffer[self._pos :]
        missing = min(max(size, self._window), self.end - start) - len(kept)
        self._buffer = kept + self.source.read(start + len(kept), missing)
        self._base, self._pos = start, 0
        self._window = min(self._window * 2, self._most)

    def take(self, size: int, what: str) -> bytes:
        """Return the next `size` bytes."""
        if size > _LAST_WINDOW:
            self.require(size, what)
            data = self.source.read(self.offset, size)
            self.skip(size, what)
            return data
        end = self._pos + size
        if size < 0 or end > len(self._buffer):
            self._fill(size, what)
            end = size
        data = self._buffer[self._pos : end]
        self._pos = end
        return data

    def skip(self, size: int, what: str) -> None:
        """Pass over `size` bytes without reading them."""
        self.require(size, what)
        if self._pos + size <= len(self._buffer):
            self._pos += size
        else:
            self._base, self._buffer, self._pos = self.offset + size, b"", 0

    def number(self, code: str, what: str) -> int | float:
        """Return the next number of type `code` (u8 … i64, f32, f64)."""
        packed = self._number[code]
        end = self._pos + packed.size
        if end > len(self._buffer):
            self._fill(packed.size, what)
            end = packed.size
        value: int | float = packed.unpack_from(self._buffer, end - packed.size)[0]
        self._pos = end
        return value

    def integer(self, code: str, what: str, low: int | None = None, high: int | None = None) -> int:
        """Return the next integer of type `code`. Raises OutOfRangeError outside `low..high`."""
        value = int(self.number(code, what))
        if (low is not None and value < low) or (high is not None and value > high):
            at = self.offset - self._number[code].size
            raise self.error(OutOfRangeError, what, at, found=value, expected=_range_text(low, high))
        return value

    def numbers(self, code: str, count: int, what: str) -> tuple[int | float, ...]:
        """Return the next `count` numbers of type `code`."""
        data = self.take(count * self._number[code].size, what)
        return struct.unpack(f"{'>' if self._big else '<'}{count}{CODES[code]}", data)

    def string(self, length: str, what: str, limit: int) -> bytes:
        """Return a string that follows its own length (a number of type `length`) and has at most `limit` bytes."""
        return self.take(self.integer(length, f"length of {what}", 0, limit), what)

    def strings(self, count: int, length: str, what: str, limit: int) -> list[bytes]:
        """Return the next `count` length-prefixed strings, each of at most `limit` bytes. Takes about 0.2 µs each."""
        return self._strings(count, length, None, what, limit)[0]

    def strings_with(
        self, count: int, length: str, tail: str, what: str, limit: int
    ) -> tuple[list[bytes], list[int | float]]:
        """Return what `strings` returns, and the number of type `tail` after each string.

        GGMF and GGJT store the score of a token like this.
        """
        return self._strings(count, length, tail, what, limit)

    def string_run(self, count: int, length: str, what: str, limit: int, most: int) -> tuple[bytes, bool]:
        """Return the bytes of the next `count` strings with their lengths, without creating a string for each.

        Takes about 0.1 µs each.

        Args:
            count: Number of strings.
            length: Type of the length before each string, an unsigned number.
            what: Name of the field, for errors.
            limit: Bytes of a string at most.
            most: Bytes of all strings at most.

        Returns:
            The bytes, and whether every string is shorter than 128 bytes.
        """
        prefix = self._number[length]
        self.require(count * prefix.size, f"{count} × {what}")
        parts: list[bytes] = []
        left, short, begin = count, True, self.offset
        while left:
            if self.offset - begin > most:
                raise self.error(OutOfRangeError, f"bytes of all: {what}", begin, expected=f"≤ {most}")
            left, short = self._pass(prefix, left, short, parts)
            if left:  # one string crosses the edge of the window
                size = self.integer(length, f"length of {what} {count - left}", 0, limit)
                parts += (prefix.pack(size), self.take(size, f"{what} {count - left}"))
                left, short = left - 1, short and size < ASCII
        return b"".join(parts), short

    def _pass(self, prefix: struct.Struct, left: int, short: bool, parts: list[bytes]) -> tuple[int, bool]:
        """Pass over those of `left` strings that lie entirely in the window; return how many remain."""
        buffer, begin, pos = self._buffer, self._pos, self._pos
        ahead, length, whole = prefix.size, prefix.unpack_from, len(self._buffer)
        stop = whole - ahead - ASCII
        for passed in range(left):  # half of the time of the loop below, and nearly all strings are short
            if pos > stop or (size := length(buffer, pos)[0]) >= ASCII:
                left -= passed
                break
            pos += ahead + size
        else:
            left = 0
        stop = whole - ahead
        while left and pos <= stop:
            size = length(buffer, pos)[0]
            end = pos + ahead + size
            if end > whole:
                break
            if size >= ASCII:
                short = False
            pos, left = end, left - 1
        parts.append(buffer[begin:pos])
        self._pos = pos
        return left, short

    def _strings(
        self, count: int, length: str, tail: str | None, what: str, limit: int
    ) -> tuple[list[bytes], list[int | float]]:
        prefix = self._number[length]
        suffix = None if tail is None else self._number[tail]
        behind = 0 if suffix is None else suffix.size
        self.require(count * (prefix.size + behind), f"{count} × {what}")
        found: list[bytes] = []
        tails: list[int | float] = []
        while len(found) < count:
            # All strings that lie entirely in the window, without a call for each; then the one that crosses its edge.
            self._run(prefix, suffix, count - len(found), limit, found, tails)
            if len(found) < count:
                label = f"{what} {len(found)}"
                found.append(self.string(length, label, limit))
                if tail is not None:
                    tails.append(self.number(tail, label))
        return found, tails

    def _run(
        self,
        prefix: struct.Struct,
        suffix: struct.Struct | None,
        count: int,
        limit: int,
        found: list[bytes],
        tails: list[int | float],
    ) -> None:
        buffer, pos = self._buffer, self._pos
        ahead, behind = prefix.size, 0 if suffix is None else suffix.size
        stop = len(buffer) - behind
        length, append = prefix.unpack_from, found.append
        for _ in range(count):
            begin = pos + ahead
            if begin > stop:
                break
            size = length(buffer, pos)[0]
            end = begin + size
            if not begin <= end <= stop or size > limit:
                break
            append(buffer[begin:end])
            if suffix is not None:
                tails.append(suffix.unpack_from(buffer, end)[0])
            pos = end + behind
        self._pos = pos


@dataclass(frozen=True, slots=True)
class Member:
    """One field of a Struct: a number of type `code`, or `count` raw bytes (`bytes[count]`, code '')."""

    name: str
    code: str
    count: int
    low: int | float | None
    high: int | float | None
    description: str

    @property
    def size(self) -> int:
        """Bytes of the field."""
        return self.count if not self.code else _NUMBER[False][self.code].size

    def check(self, value: object, offset: int, path: str | None) -> None:
        """Raise OutOfRangeError when `value` is outside low..high (NaN is outside every range)."""
        if self.low is None and self.high is None:
            return
        assert isinstance(value, int | float)
        if (self.low is None or value >= self.low) and (self.high is None or value <= self.high):
            return
        expected = _range_text(self.low, self.high)
        raise OutOfRangeError(self.name, path=path, offset=offset, found=value, expected=expected)


@dataclass(frozen=True, slots=True)
class Struct:
    """Consecutive fields, described by a text table of lines `name type [low..high] description`.

    Types are u8…u64, i8…i64, f32, f64 and `bytes[N]`. Either end of a range may be missing (`1..`); the ends are
    numbers or names of constants in `formats.limits`. Empty lines and lines that begin with `#` are ignored. The
    grammar is in docs/tables.md. Raises TableError, with file, line and word, for any other line.
    """

    name: str
    table: str = field(repr=False)
    members: tuple[Member, ...] = field(init=False)
    _names: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _packed: Any = field(init=False, repr=False, compare=False)
    _ranges: tuple[tuple[str, int | float, int | float], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        lines = [line.strip() for line in self.table.splitlines() if line.strip()]
        members: dict[str, Member] = {}
        for line in lines:
            if line.startswith("#"):
                continue
            try:
                member = _member(line)
                if member.name in members:
                    raise BadWord("a field twice", member.name)
            except BadWord as error:
                place = caller().of(line)
                raise TableError(f"{self.name}: {error.problem}", path=place, found=error.word) from None
            members[member.name] = member
        for name, value in (
            ("members", tuple(members.values())),
            ("_names", tuple(members)),
            ("_packed", struct.Struct("<" + "".join(CODES.get(m.code, f"{m.count}s") for m in members.values()))),
            (
                "_ranges",
                tuple(
                    (m.name, -math.inf if m.low is None else m.low, math.inf if m.high is None else m.high)
                    for m in members.values()
                    if m.low is not None or m.high is not None
                ),
            ),
        ):
            object.__setattr__(self, name, value)

    @property
    def size(self) -> int:
        """Bytes of all fields together."""
        return int(self._packed.size)

    def read(self, cursor: Cursor) -> dict[str, int | float | bytes]:
        """Return the fields at the cursor. Raises TruncatedError, or OutOfRangeError naming field and offset."""
        values: dict[str, int | float | bytes] = {}
        if not cursor.big_endian and cursor.remaining >= self.size:  # all at once, unless something is wrong
            at, packed = cursor.offset, cursor.take(self.size, self.name)
            found: dict[str, Any] = dict(zip(self._names, self._packed.unpack(packed), strict=True))
            if all(low <= found[name] <= high for name, low, high in self._ranges):
                return found
            cursor = Cursor(cursor.source, at)
        for member in self.members:
            at, what = cursor.offset, f"{self.name}.{member.name}"
            values[member.name] = cursor.number(member.code, what) if member.code else cursor.take(member.count, what)
            member.check(values[member.name], at, cursor.path)
        return values

    def pack(self, values: Mapping[str, int | float | bytes], big_endian: bool = False) -> bytes:
        """Return the bytes of `values`.

        Raises MissingError for an absent field, UsageError for one that the table lacks, OutOfRangeError for a value
        outside the range or the type of its field.
        """
        unknown = set(values) - {member.name for member in self.members}
        if unknown:
            raise UsageError(f"{self.name} has no field {sorted(unknown)[0]!r}")
        packed = bytearray()
        for member in self.members:
            if member.name not in values:
                raise MissingError(f"{self.name}: no value for {member.name}")
            member.check(values[member.name], len(packed), None)
            packed += _pack(member, values[member.name], big_endian, len(packed))
        return bytes(packed)

    def explain(self, data: bytes, offset: int = 0, big_endian: bool = False) -> str:
        """Return an annotated hex dump with a line for each field: offset, bytes, name, value, description.

        A value out of range is marked `!`. The dump stops where `data` does, and says so.
        """
        lines, pos = [], 0
        for member in self.members:
            piece = data[pos : pos + member.size]
            place = f"{offset + pos:#010x}  {piece.hex(' '):<23}  {member.name:<16}"
            if len(piece) < member.size:
                lines.append(f"{place}  — {member.size - len(piece)} of {member.size} bytes missing")
                break
            value = _NUMBER[big_endian][member.code].unpack(piece)[0] if member.code else piece
            mark = ""
            try:
                member.check(value, offset + pos, None)
            except OutOfRangeError as error:
                mark = f" !{error.expected}"
            lines.append(f"{place}  {value!r:<12}{mark}  {member.description}".rstrip())
            pos += member.size
        return "\n".join(lines)


_RAW = re.compile(r"bytes\[([1-9]\d*)\]")
_RANGE = re.compile(r"(\S*?)\.\.(\S*)")
_LIKE_A_RANGE = re.compile(r"[\d.A-Z_-]*[.-][\d.A-Z_-]*")


def _member(line: str) -> Member:
    """Return the field a line describes. Raises BadWord."""
    name, kind, *rest = (*line.split(None, 3), "")[:4] if " " in line else (line, "")
    if not name.isidentifier():
        raise BadWord("not a name for a field", name)
    raw = _RAW.fullmatch(kind)
    if not raw and kind not in CODES:
        raise BadWord(f"no such type (known are {', '.join(CODES)}, bytes[N])", kind)
    low = high = None
    if rest and (ends := _RANGE.fullmatch(rest[0])):
        low, high = _bound(ends[1]), _bound(ends[2])
        if raw or (low is not None and high is not None and low > high):
            raise BadWord("raw bytes have no range" if raw else "a range that holds nothing", rest[0])
        rest = rest[1:]
    elif rest and _LIKE_A_RANGE.fullmatch(rest[0]):
        raise BadWord("not a range", rest[0])
    return Member(name, "" if raw else kind, int(raw[1]) if raw else 1, low, high, " ".join(rest).strip())


def _bound(text: str) -> int | float | None:
    if not text:
        return None
    if text.isupper() and hasattr(limits, text):
        value: int = getattr(limits, text)
        return value
    for number in (lambda: int(text, 0), lambda: float(text)):
        try:
            return number()
        except ValueError:
            continue
    raise BadWord("neither a number nor a constant of formats.limits", text)


def _pack(member: Member, value: int | float | bytes, big_endian: bool, offset: int) -> bytes:
    if not member.code:
        if not isinstance(value, bytes) or len(value) != member.count:
            raise OutOfRangeError(member.name, offset=offset, found=value, expected=f"{member.count} bytes")
        return value
    try:
        return _NUMBER[big_endian][member.code].pack(value)
    except (struct.error, OverflowError):
        raise OutOfRangeError(member.name, offset=offset, found=value, expected=member.code) from None


def _range_text(low: int | float | None, high: int | float | None) -> str:
    if low is None:
        return f"at most {high}"
    return f"at least {low}" if high is None else f"{low}..{high}"
