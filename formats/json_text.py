"""JSON from hostile files: strict text, no key twice, bounded depth, our errors."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any, NoReturn

from ggferry.formats.errors import CorruptError, DuplicateError, EncodingError
from ggferry.formats.limits import MAX_JSON, MAX_JSON_DEPTH
from ggferry.formats.local_files import read_bytes
from ggferry.formats.recent import Recent

BOM = b"\xef\xbb\xbf"
PARSED = 10  # bytes of Python objects for one of text: 7 to 9 in vocabularies
_KNOWN: Recent[dict[str, Any]] = Recent(128 << 20)
"""Digest of a file → the object in it."""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def load_json(path: str, cap: int = MAX_JSON, root: str | None = None) -> Any:
    """The value in the JSON file `path` of at most `cap` bytes. `root`: as of `local_files.open_file`.

    A byte-order mark is skipped and NaN and Infinity are read (transformers writes them into config.json). Raises
    NotFoundError, OutOfRangeError (too large), EncodingError (not UTF-8, not JSON), DuplicateError (a key twice).
    """
    return _parse_file(read_bytes(path, cap, root), path)


def load_object(path: str, cap: int = MAX_JSON, root: str | None = None) -> dict[str, Any]:
    """`load_json`, whose value must be an object."""
    return _object(load_json(path, cap, root), path)


def load_known(path: str) -> tuple[dict[str, Any], bytes]:
    """`load_object`, and the digest of the bytes that say it. Nobody may change the object: the next file of the same
    bytes is it too (`recent.keeping`)."""
    from blake3 import blake3

    data = read_bytes(path)
    digest = blake3(data).digest()
    value = _KNOWN.get(digest)
    if value is None:
        value = _object(_parse_file(data, path), path)
        _KNOWN.put(digest, value, PARSED * len(data))
    return value, digest


def _parse_file(data: bytes, path: str) -> Any:
    skipped = len(BOM) if data.startswith(BOM) else 0
    return parse_json(data[skipped:], path, skipped, constants=True)


def _object(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise CorruptError("is not a JSON object", path=path, found=type(value).__name__, expected="{…}")
    return value


def parse_json(data: bytes, path: str, offset: int = 0, *, constants: bool = False) -> Any:
    """The JSON value that is all of `data`, which stands at `offset` of `path`.

    `constants`: NaN, Infinity and -Infinity are read. Raises EncodingError or DuplicateError.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise EncodingError("JSON text is not UTF-8", path=path, offset=offset + error.start) from None

    def refuse_constant(word: str) -> NoReturn:
        raise EncodingError("not a JSON number", path=path, offset=offset, found=word)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) != len(pairs):
            twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
            place = offset + max(0, data.rfind(json.dumps(twice, ensure_ascii=False).encode("utf-8", "surrogatepass")))
            raise DuplicateError("a JSON key twice in one object", path=path, offset=place, found=twice)
        return table

    try:
        value = json.loads(text, object_pairs_hook=unique, parse_constant=None if constants else refuse_constant)
    except json.JSONDecodeError as error:
        place = offset + len(text[: error.pos].encode())
        raise EncodingError(f"not JSON: {error.msg}", path=path, offset=place) from None
    except RecursionError:
        raise EncodingError("JSON nested too deep", path=path, offset=offset, expected=MAX_JSON_DEPTH) from None
    except ValueError as error:  # an integer of more than sys.get_int_max_str_digits() digits
        raise EncodingError(f"not JSON we read: {error}", path=path, offset=offset) from None
    _check_tree(value, path, offset, surrogates=_SURROGATE.search(text) is not None)
    return value


def _check_tree(value: Any, path: str, offset: int, *, surrogates: bool) -> None:
    """Depth is bounded, and no string holds half a character (`surrogates`: an escape could have made one)."""
    wanted = (dict, list, str) if surrogates else (dict, list)
    level, depth = [value], 0
    while level:
        if depth > MAX_JSON_DEPTH:
            raise EncodingError("JSON nested too deep", path=path, offset=offset, expected=f"≤ {MAX_JSON_DEPTH} levels")
        depth += 1
        below: list[Any] = []
        for item in level:
            if isinstance(item, str):
                if not _is_text(item):
                    raise EncodingError("half of a UTF-16 pair in JSON", path=path, offset=offset, found=repr(item))
                continue
            inside = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
            below.extend(each for each in inside if isinstance(each, wanted))
            if surrogates and isinstance(item, dict):
                below.extend(item)
        level = below


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
