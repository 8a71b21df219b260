"""Texts that a person names on the command line: the only kind of input that may come through a pipe."""

from __future__ import annotations

from ggferry.formats.errors import EncodingError, NotFoundError
from ggferry.formats.files.opened_files import note


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
