"""Read JSON files; `formats.json_files.parse` parses their text."""

from __future__ import annotations

from typing import Any

from ggferry.formats.errors import CorruptError
from ggferry.formats.files.local_files import read_bytes
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.formats.json_files.parse import parse_json as parse_json
from ggferry.formats.limits import MAX_JSON
from ggferry.support.content_cache import Recent

BOM = b"\xef\xbb\xbf"
PARSED = 10  # bytes of Python objects for one of text: 7 to 9 in vocabularies
_KNOWN: Recent[JSONObject] = Recent(128 << 20)
"""Digest of a file → the object in it."""


def load_json(path: str, cap: int = MAX_JSON, root: str | None = None) -> Any:
    """Return the value in the JSON file at `path`.

    A byte-order mark is skipped, and NaN and Infinity are accepted (transformers writes them into config.json).

    Args:
        path: The file.
        cap: Bytes at most.
        root: As for `local_files.open_file`.

    Raises:
        NotFoundError: There is no such file.
        OutOfRangeError: The file is too large.
        EncodingError: It is not UTF-8, or not JSON.
        DuplicateError: A key occurs twice in one object.
    """
    return _parse_file(read_bytes(path, cap, root), path)


def load_object(path: str, cap: int = MAX_JSON, root: str | None = None) -> JSONObject:
    """Return what `load_json` returns, which must be an object."""
    return _object(load_json(path, cap, root), path)


def load_known(path: str) -> tuple[JSONObject, bytes]:
    """Return what `load_object` returns, and the BLAKE3 digest of the file.

    The object must not be changed: it is also returned for the next file of the same bytes (`content_cache.keeping`).
    """
    from blake3 import blake3

    data = read_bytes(path)
    digest = blake3(data).digest()
    value = _KNOWN.get(digest)
    if value is None:
        value = _object(_parse_file(data, path), path)
        _KNOWN.put(digest, value, PARSED * len(data))
    return value, digest


def read_text(path: str) -> tuple[bytes, int]:
    """Return the bytes of the JSON file at `path` without a byte-order mark, and the mark's length.

    Raises as `load_json`.
    """
    return _without_mark(read_bytes(path))


def _without_mark(data: bytes) -> tuple[bytes, int]:
    return (data[len(BOM) :], len(BOM)) if data.startswith(BOM) else (data, 0)


def _parse_file(data: bytes, path: str) -> Any:
    text, skipped = _without_mark(data)
    return parse_json(text, path, skipped, constants=True)


def _object(value: Any, path: str) -> JSONObject:
    if not isinstance(value, dict):
        raise CorruptError("is not a JSON object", path=path, found=type(value).__name__, expected="{…}")
    return value
