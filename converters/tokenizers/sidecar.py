"""Small files beside the weights, read whole under a cap: bytes, text, JSON."""

from __future__ import annotations

import json
import os
from typing import Any

from ggferry.formats.errors import CorruptError, EncodingError, NotFoundError, OutOfRangeError
from ggferry.formats.limits import MAX_JSON


def read_bytes(path: str, limit: int = MAX_JSON) -> bytes:
    """All bytes of `path`. Raises NotFoundError, or OutOfRangeError above `limit` bytes."""
    try:
        if not os.path.isfile(path):
            raise NotFoundError("no such file", path=path)
        with open(path, "rb") as file:
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


def read_json(path: str) -> Any:
    """`path` parsed as JSON. Raises CorruptError with the offset where it stops being JSON."""
    text = read_text(path)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        offset = len(text[: error.pos].encode("utf-8", "surrogatepass"))
        raise CorruptError(f"not JSON: {error.msg}", path=path, offset=offset) from None
    except (RecursionError, ValueError) as error:  # nesting, or an integer of more than 4 300 digits
        raise CorruptError(f"not JSON that anybody means: {error}", path=path) from None


def read_object(path: str) -> dict[str, Any]:
    """`path` parsed as one JSON object."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise CorruptError("not a JSON object", path=path, found=type(value).__name__)
    return value
