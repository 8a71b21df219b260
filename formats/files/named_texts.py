"""Texts that a person names on the command line: the only kind of input that may come through a pipe."""

from __future__ import annotations

import os
import re

from ggferry.formats.errors import EncodingError, NotFoundError
from ggferry.formats.files.opened_files import note

_NUMBERED = re.compile(r"(?P<path>.+):(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)")


def path_and_number(text: str) -> tuple[str, float]:
    """Return what PATH[:NUMBER] means: a colon counts only before a number, and not where the whole is a path."""
    match = _NUMBERED.fullmatch(text)
    if match is None or os.path.exists(text):
        return text, 1.0
    return match["path"], float(match["number"])


def text_of(path: str) -> str:
    """Return the text of a UTF-8 file or pipe. Raises NotFoundError, EncodingError."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            note(path, file.fileno())
            return file.read()
    except OSError as error:
        raise NotFoundError(f"cannot be read: {error.strerror}", path=path) from None
    except UnicodeDecodeError as error:
        raise EncodingError("not UTF-8 text", path=path, offset=error.start) from None


def lines_of(path: str) -> list[str]:
    """Return the lines of `text_of`; the line break at the end does not start another line."""
    return text_of(path).removesuffix("\n").split("\n")
