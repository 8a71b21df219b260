"""Read members of a JSON object by kind: a value of another kind is an error that names the key.

`null` counts as absent, as it does for the programs that wrote such files (Python's None, serde's Option).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, TypeVar, overload

from ggferry.formats.errors import CorruptError

JSONObject = dict[str, Any]
"""An object of JSON whose members its writer chose: a config.json, a tokenizer.json, the values of metadata.

What has fixed members is a TypedDict or a dataclass instead.
"""
Object = Mapping[str, Any]
"""The same, of which only is read."""
K = TypeVar("K")
T = TypeVar("T")
SHOWN = 120
"""Characters of a value that are shown to a person."""


@overload
def text(of: Object, key: str, path: str | None, default: str) -> str: ...
@overload
def text(of: Object, key: str, path: str | None, default: None = None) -> str | None: ...
def text(of: Object, key: str, path: str | None, default: str | None = None) -> str | None:
    """Return the text `of[key]`, or `default` where there is none.

    Raises CorruptError for another kind, as all of these do.
    """
    return _member(of, key, path, default, str, "text")


@overload
def flag(of: Object, key: str, path: str | None, default: bool) -> bool: ...
@overload
def flag(of: Object, key: str, path: str | None, default: None = None) -> bool | None: ...
def flag(of: Object, key: str, path: str | None, default: bool | None = None) -> bool | None:
    """Return true or false; 0 and 1 are neither."""
    return _member(of, key, path, default, bool, "true or false")


def whole(of: Object, key: str, path: str | None) -> int | None:
    """Return a whole number of any size and sign."""
    return _member(of, key, path, None, int, "a whole number")


def items(of: Object, key: str, path: str | None, required: bool = False) -> list[Any]:
    """Return a list of any items; empty where there is none, unless it is `required`."""
    if required and of.get(key) is None:
        raise wrong_kind(key, None, path, "a list")
    return _member(of, key, path, [], list, "a list")


def members(of: Object, key: str, path: str | None) -> JSONObject:
    """Return an object with any members; empty where there is none."""
    return _member(of, key, path, {}, dict, "an object")


def objects(of: Object, key: str, path: str | None) -> list[JSONObject]:
    """Return a list of objects; empty where there is none."""
    return [as_object(item, key, path) for item in items(of, key, path)]


def as_object(value: Any, what: str, path: str | None) -> JSONObject:
    """Return `value`, which must be an object; `what` names it in the error."""
    if not isinstance(value, dict):
        raise wrong_kind(what, value, path, "an object")
    return value


def wrong_kind(what: str, found: Any, path: str | None, expected: str) -> CorruptError:
    """Return the error for a value of `what` that is not `expected`."""
    return CorruptError(f"a value of the wrong kind: {what}", path=path, found=shown(found), expected=expected)


def shown(value: Any, limit: int = SHOWN) -> str:
    """Return a JSON value as one line of compact JSON; beyond `limit` characters it is cut and marked."""
    line = ""
    for piece in _ENCODER.iterencode(value):
        line += piece if len(piece) <= limit else piece[: limit + 1]
        if len(line) > limit:
            return line[: limit - 1] + "…"
    return line


def is_number(value: Any) -> bool:
    """Return whether `value` is a finite number. Booleans are not; a whole number of any length is."""
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and (isinstance(value, int) or math.isfinite(value))
    )


def strict(value: Any) -> Any:
    """Return `value` as strict JSON can express it: infinities and NaN, which are no JSON numbers, become text."""
    match value:
        case dict():
            return {key: strict(item) for key, item in value.items()}
        case list() | tuple():
            return [strict(item) for item in value]
        case float() if not math.isfinite(value):
            return str(value)
    return value


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(", ", ": "))


def _member(of: Object, key: str, path: str | None, default: T, kind: type[K], expected: str) -> K | T:
    found = of.get(key)
    if found is None:
        return default
    if not isinstance(found, kind) or type(found) is not kind:  # true is an int, too
        raise wrong_kind(key, found, path, expected)
    return found
