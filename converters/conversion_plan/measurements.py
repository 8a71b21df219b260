"""Keep what types cost the tensors of a model, so that another size, or the run after a kill, measures nothing twice.

The file has a line of JSON for each tensor and type: `{"of": …, "type": …, "error": …}`. `of` is the BLAKE3 digest of
everything that an error depends on besides the type: the rows that stand for the tensor, their importances, and how
values are rounded. So a line holds for equal rows of whichever model, and a changed model has other lines.
"""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Mapping

from ggferry.formats.errors import CorruptError, of_os
from ggferry.formats.files.local_files import read_bytes
from ggferry.formats.files.opened_files import unrecorded

MAX_BYTES = 1 << 28
"""Bytes of such a file: some 150 for each tensor and type, for a thousand models of a thousand tensors."""
_START, _LONGEST = b'{"of": "', 300


class Measurements:
    """Errors by digest and type, those of a file among them, to which new ones are appended.

    Attributes:
        path: The file; None for measurements of one run.
    """

    def __init__(self, path: str | None = None) -> None:
        """Read the file, if it is there.

        Raises CorruptError for one that is not of this kind, AccessError for one that cannot be written. A last line
        that a kill cut short is taken off.
        """
        self.path = path
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], float] = {}
        if path is not None and os.path.lexists(path):
            with unrecorded():  # it changes while the model, which must not, is read
                data = read_bytes(path, MAX_BYTES)
            *lines, last = data.split(b"\n")
            for number, line in enumerate(lines, 1):
                self._known.update([_read(line, path, number)])
            if last:
                if last[: len(_START)] != _START[: len(last)] or len(last) > _LONGEST:
                    raise _other(path, len(lines) + 1)
                _cut(path, len(data) - len(last))
        if path is not None:
            self._append("")  # what cannot be written is to be known before minutes of measuring

    def known(self, of: str, kind: str) -> float | None:
        """Return the error of a type, None where it has not been measured."""
        return self._known.get((of, kind))

    def keep(self, of: str, errors: Mapping[str, float]) -> None:
        """Add errors by type. Raises AccessError where the file cannot be written."""
        lines = [json.dumps({"of": of, "type": kind, "error": error}) + "\n" for kind, error in errors.items()]
        with self._lock:
            self._known.update({(of, kind): error for kind, error in errors.items()})
            if self.path is not None and lines:
                self._append("".join(lines))

    def _append(self, text: str) -> None:
        assert self.path is not None
        try:
            with open(self.path, "ab") as file:
                file.write(text.encode())
        except OSError as error:
            raise of_os(error, "cannot be written", self.path) from None


def _cut(path: str, size: int) -> None:
    try:
        os.truncate(path, size)
    except OSError as error:
        raise of_os(error, "cannot be written", path) from None


def _read(line: bytes, path: str, number: int) -> tuple[tuple[str, str], float]:
    try:
        found = json.loads(line)
        of, kind, error = found["of"], found["type"], found["error"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _other(path, number) from None
    if not isinstance(of, str) or not isinstance(kind, str) or type(error) is not float or not 0 <= error < math.inf:
        raise _other(path, number)
    return (of, kind), error


def _other(path: str, line: int) -> CorruptError:
    expected = '{"of": …, "type": …, "error": …}'
    return CorruptError(f"line {line} of a file of measurements", path=path, expected=expected)
