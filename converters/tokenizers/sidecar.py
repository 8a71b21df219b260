"""Small files beside the weights, read whole under a cap (JSON: `formats.json_text`)."""

from __future__ import annotations

import os

from ggferry.formats.errors import EncodingError, NotFoundError, OutOfRangeError
from ggferry.formats.limits import MAX_JSON
from ggferry.formats.opened import note


def read_bytes(path: str, limit: int = MAX_JSON) -> bytes:
    """All bytes of `path`. Raises NotFoundError, or OutOfRangeError above `limit` bytes."""
    try:
        if not os.path.isfile(path):
            raise NotFoundError("no such file", path=path)
        with open(path, "rb") as file:
            note(path, file.fileno())
            data = file.read(limit + 1)
    except OSError as error:
        raise NotFoundError(f"cannot be read: {error.strerror}", path=path) from None
    if len(data) > limit:
        raise OutOfRangeError("larger than any file of its kind", path=path, expected=f"at most {limit} bytes")
    return data


def read_text(path: str) -> str:
    """`path` as UTF-8 text, a byte order mark removed. Raises EncodingError with the offset of the first bad byte."""
    data = read_bytes(path)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise EncodingError("not UTF-8 text", path=path, offset=error.start) from None
