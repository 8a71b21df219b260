"""Every way a file, a request or a result can be wrong: one class for each kind of violation.

Each error states its place (path and byte offset), what was found, what was expected, and the way out. `code` is a
stable word for `--json`; `exit_code` is that of the process (README.md); `fault` says where the cause lies.
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
    """Where the cause of an error lies.

    It decides what becomes of an archive's job that met it (`service.apply.job`).
    """

    FILE = "file"
    """In the file: the same bytes fail again."""
    PERSON = "person"
    """In the request, or in something a person has to put right first: a file in the way, no permission, no room."""
    TRANSIENT = "passing"
    """In neither: a store that is away, an answer cut short. Another attempt may succeed."""


_FIRST_NAMES = {"TransientError": "PassingError"}
"""Classes that were renamed → the name that `code` is still made of, which other programs compare."""
_LATER_NAMES = {first: later for later, first in _FIRST_NAMES.items()}
"""What ledgers of earlier versions call a class → its name."""


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
        name = _FIRST_NAMES.get(type(self).__name__, type(self).__name__)
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
        """Return the error for `--json`: code, exit_code, fault, message, path, offset, found, expected, hint."""
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
    """A place that may not be read, listed or written with the given rights.

    Unlike with NotFoundError, it may exist.
    """

    exit_code = 3


class TransientError(GgferryError):
    """Trouble on the way, caused neither by the file nor by the request."""

    fault = Fault.TRANSIENT


class UnreachableError(TransientError):
    """A store, a ledger or a cluster that does not answer, or answers that it cannot now."""

    exit_code = 3


class TransportError(TransientError):
    """Bytes that were lost or changed on the way: an answer cut short, an upload that reads back differently."""

    exit_code = 3


class UnsupportedError(GgferryError):
    """Something well-formed that ggferry does not support."""

    exit_code = 4
    fault = Fault.FILE


class UnknownFormatError(UnsupportedError):
    """No reader recognizes the bytes."""


class UnsupportedVersionError(UnsupportedError):
    """A known container in a version that never existed or is too new."""


class UnsupportedTypeError(UnsupportedError):
    """A tensor type that was removed from ggml or is not known."""


class UnsafePickleError(UnsupportedError):
    """A pickle that asks for something other than plain data and tensors. Nothing in it was run or imported."""


class OutsideLinkError(UnsupportedError):
    """A link on a web page that leads out of the listed tree. It may lead anywhere, so it is not followed."""


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
    """The same name occurs twice."""


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
    """Bytes whose checksum differs from the one the container states."""


class BadValueError(CorruptError):
    """A weight is NaN or infinite, or a block's scale is."""


class OutOfMemoryError(GgferryError):
    """The work takes more memory than there is, or than a limit allows."""


class VerificationError(GgferryError):
    """What was written differs from what was read."""

    exit_code = 6
    fault = Fault.FILE


class RefusedError(GgferryError):
    """Doing it would lose or disclose something; the hint names the way that is allowed."""

    exit_code = 7


class TableError(GgferryError):
    """A table of ggferry, or of a distribution that extends it, is not written correctly (docs/tables.md).

    `path` is the file and line, `found` the word.
    """


class BusyError(RefusedError):
    """Another process is working on the same thing and will finish."""

    fault = Fault.TRANSIENT


_TRANSIENT = {
    errno.EAGAIN,
    errno.EINTR,
    errno.EIO,
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.ECONNRESET,
    errno.ECONNABORTED,
    errno.ECONNREFUSED,
    errno.EPIPE,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
    errno.ENETDOWN,
}
_ACCESS = {errno.EACCES, errno.EPERM, errno.EROFS}


def of_os(
    error: OSError, doing: str = "cannot be used", path: str | os.PathLike[str] | None = None, offset: int | None = None
) -> GgferryError:
    """Return an error of the operating system as one of ours.

    Args:
        error: As Python raised it.
        doing: Beginning of the message, which the system's words follow.
        path: The path to report where `error` names none.
        offset: The byte of the file that was to be read or written.
    """
    place = path if path is not None else error.filename if isinstance(error.filename, str) else None
    words = f"{doing}: {error.strerror or type(error).__name__}"
    if error.errno in _ACCESS:
        return AccessError(words, path=place, offset=offset)
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return NotFoundError(words, path=place, offset=offset)
    if error.errno in _TRANSIENT:
        return UnreachableError(words, path=place, offset=offset)
    return GgferryError(words, path=place, offset=offset)


def fault_of(record: Mapping[str, Any]) -> Fault:
    """Return the fault of an error that crossed a process boundary as plain data.

    That is the fault it states, else that of its class. Whatever ended a process and is no error of ours counts as the
    file's.
    """
    if record.get("fault") in set(Fault):
        return Fault(record["fault"])
    name = str(record.get("class", ""))
    kind = globals().get(_LATER_NAMES.get(name, name))
    return kind.fault if isinstance(kind, type) and issubclass(kind, GgferryError) else Fault.FILE
