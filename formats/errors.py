"""Every way a file, a request or a result can be wrong: one class a violation.

Each error knows its place (path and byte offset), what was found, what was expected, and the way out. `code` is a
stable word for `--json`; `exit_code` is the process's (README.md); `fault` says whose turn it is.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from ggferry.support.printable import printable

SHOWN = 200  # characters of a name or a value: a hostile one must not fill a log


class Fault(StrEnum):
    """Where an error lies, and so what becomes of an archive's job that met it (`service.apply.job`)."""

    FILE = "file"
    """In the file: the same bytes fail again."""
    PERSON = "person"
    """In what a person asked for, or has to put right first: a file in the way, no permission, no room."""
    PASSING = "passing"
    """In neither: a store that is away, an answer cut short. It is worth another attempt."""


class GgferryError(Exception):
    """Base of all errors a user may see. `str(error)` is one line: `path@0xoffset: message (hint)`."""

    exit_code = 1
    fault = Fault.PERSON

    def __init__(
        self,
        message: str,
        *,
        path: str | os.PathLike[str] | None = None,
        offset: int | None = None,
        found: object = None,
        expected: object = None,
        hint: str | None = None,
    ) -> None:
        self.message = message
        self.path = None if path is None else os.fspath(path)
        self.offset = offset
        self.found = found
        self.expected = expected
        self.hint = hint
        super().__init__(message)

    @property
    def code(self) -> str:
        """Stable snake_case name of the violation."""
        name = type(self).__name__
        return "".join(("_" if i and c.isupper() else "") + c.lower() for i, c in enumerate(name))

    def __str__(self) -> str:
        place = "" if self.path is None else printable(self.path, SHOWN)
        if self.offset is not None:
            place += f"@{self.offset:#x}"
        text = printable(f"{place}: {self.message}" if place else self.message)
        if self.found is not None:
            text += f": found {printable(self.found, SHOWN)}"
        if self.expected is not None:
            text += f"{',' if self.found is not None else ':'} expected {printable(self.expected, SHOWN)}"
        return text if self.hint is None else f"{text} ({printable(self.hint)})"

    def as_dict(self) -> dict[str, object]:
        """The error for `--json`: code, exit_code, fault, message, path, offset, found, expected, hint."""
        return {
            "code": self.code,
            "exit_code": self.exit_code,
            "fault": self.fault.value,
            "message": self.message,
            "path": self.path,
            "offset": self.offset,
            "found": None if self.found is None else printable(self.found, SHOWN),
            "expected": None if self.expected is None else printable(self.expected, SHOWN),
            "hint": self.hint,
        }


class UsageError(GgferryError):
    """The request itself cannot be understood."""

    exit_code = 2


class NotFoundError(GgferryError):
    """A file is absent or cannot be read."""

    exit_code = 3


class AccessError(GgferryError):
    """A place that may not be read, listed or written with the rights at hand. It may be there: not `NotFoundError`."""

    exit_code = 3


class PassingError(GgferryError):
    """Trouble on the way, of neither the file nor the request."""

    fault = Fault.PASSING


class UnreachableError(PassingError):
    """A store, a ledger or a cluster that does not answer, or answers that it cannot now."""

    exit_code = 3


class TransportError(PassingError):
    """Bytes that went missing or changed on the way: an answer cut short, an upload that reads back otherwise."""

    exit_code = 3


class UnsupportedError(GgferryError):
    """A well-formed thing that ggferry does not carry."""

    exit_code = 4
    fault = Fault.FILE


class UnknownFormatError(UnsupportedError):
    """No reader recognizes the bytes."""


class UnsupportedVersionError(UnsupportedError):
    """A container we know, in a version that never existed or is too new."""


class UnsupportedTypeError(UnsupportedError):
    """A tensor type that was removed from ggml or is not known."""


class UnsafePickleError(UnsupportedError):
    """A pickle that asks for something other than plain data and tensors. Nothing of it was run or imported."""


class OutsideLinkError(UnsupportedError):
    """A link of a web page that leads out of it. It may lead anywhere: it is not followed."""


class AmbiguousError(UnsupportedError):
    """More than one reading of the bytes fits; the candidates are named."""


class CorruptError(GgferryError):
    """The bytes contradict their own format."""

    exit_code = 5
    fault = Fault.FILE


class TruncatedError(CorruptError):
    """The file ends inside something."""


class TrailingBytesError(CorruptError):
    """Bytes follow the last thing the format allows."""


class OutOfRangeError(CorruptError):
    """A field holds a value outside its range."""


class EncodingError(CorruptError):
    """A string is not the text it must be."""


class DuplicateError(CorruptError):
    """The same name twice."""


class MissingError(CorruptError):
    """Something the format or the architecture requires is not there."""


class UnexpectedTensorError(CorruptError):
    """A tensor that has no role."""


class ShapeError(CorruptError):
    """A shape that contradicts the header or another tensor."""


class OverlapError(CorruptError):
    """Spans that overlap, leave a hole or are not aligned."""


class InconsistentError(CorruptError):
    """Two places of one model contradict each other."""


class ChangedError(InconsistentError):
    """A file that is no longer the one that was listed or read."""

    fault = Fault.PERSON


class ChecksumError(CorruptError):
    """Bytes that do not have the checksum the container states for them."""


class BadValueError(CorruptError):
    """A weight is NaN or infinite, or a block's scale is."""


class OutOfMemoryError(GgferryError):
    """There is not as much memory as this takes, or a limit was set below it."""


class VerificationError(GgferryError):
    """What was written is not what was read."""

    exit_code = 6
    fault = Fault.FILE


class RefusedError(GgferryError):
    """Doing it would lose something, or let something out; the hint names the way that is allowed."""

    exit_code = 7


class TableError(GgferryError):
    """A table of ggferry, or of a distribution that extends it, is written wrongly. `path`: file and line; `found`: the
    word (docs/tables.md)."""


class BusyError(RefusedError):
    """Another process is at work on the same thing, and will be done."""

    fault = Fault.PASSING


_PASSING = {errno.EAGAIN, errno.EINTR, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ECONNRESET, errno.ECONNABORTED,
            errno.ECONNREFUSED, errno.EPIPE, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN}  # fmt: skip
_ACCESS = {errno.EACCES, errno.EPERM, errno.EROFS}


def of_os(error: OSError, doing: str = "cannot be used", path: str | os.PathLike[str] | None = None) -> GgferryError:
    """What the system says, as one of ours: `doing` ends before its words. `path`: where it does not name one."""
    place = path if path is not None else error.filename if isinstance(error.filename, str) else None
    words = f"{doing}: {error.strerror or type(error).__name__}"
    if error.errno in _ACCESS:
        return AccessError(words, path=place)
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return NotFoundError(words, path=place)
    if error.errno in _PASSING:
        return UnreachableError(words, path=place)
    return GgferryError(words, path=place)


def fault_of(record: Mapping[str, Any]) -> Fault:
    """The fault of an error that crossed a process as plain data: as stated, else as its class has it. What ended a
    process and is no error of ours counts as the file's."""
    if record.get("fault") in set(Fault):
        return Fault(record["fault"])
    kind = globals().get(str(record.get("class", "")))
    return kind.fault if isinstance(kind, type) and issubclass(kind, GgferryError) else Fault.FILE
