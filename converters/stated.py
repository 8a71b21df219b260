"""What a source says of its hparams: header fields, GGUF keys or a configuration, each value checked for its type."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ggferry.converters.spec import Dialect, HParam
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import InconsistentError, OutOfRangeError, UnsupportedError, UsageError
from ggferry.formats.gguf_values import Value, ValueType
from ggferry.formats.limits import MAX_LAYERS

FLOATS = (ValueType.FLOAT32, ValueType.FLOAT64)
MAX_ITEMS = MAX_LAYERS * 4
"""Items of an hparam that is a list: one a block, or one a rotary frequency."""
_NOTHING = object()
_ORIGINS = {"gguf": "key {}", "ggml": "header field {}", "meta": "params.json: {}"}


def stated(
    checkpoint: Checkpoint, dialect: Dialect, prefix: str, param: HParam, seen: bool = False
) -> tuple[Any, str] | None:
    """(value, where it stands) of `param` in the source, or None where it says nothing.

    `prefix`: GGUF's architecture name. `seen`: the tensors show it; a configuration beside a GGML-era file does not.
    Raises InconsistentError for a value of another type, and where header and configuration contradict each other,
    OutOfRangeError for one no GGUF key can hold, UnsupportedError for a word that `param.words` does not know.
    """
    found = _stated(checkpoint, dialect, prefix, param, dialect.source)
    if dialect.source != "ggml" or not checkpoint.metadata or seen:
        return found
    beside = _stated(checkpoint, dialect, prefix, param, "hf")  # --hf-config
    if found and beside and found[0] != beside[0]:
        raise InconsistentError(
            f"{param.name}: the configuration is another model's", path=checkpoint.path,
            found=f"{beside[0]} ({beside[1]})", expected=f"{found[0]} ({found[1]})",
        )  # fmt: skip
    return found or beside


def _stated(
    checkpoint: Checkpoint, dialect: Dialect, prefix: str, param: HParam, column: str
) -> tuple[Any, str] | None:
    places = param.fields.get(column, (param.key or "") if column == "gguf" else "")
    for place in filter(None, places.split("|")):
        found = _find(checkpoint, dialect, prefix, place, column)
        origin = _ORIGINS.get(column, f"{dialect.header or 'config.json'}: {{}}").format(place)
        if found is _NOTHING or (found is None and param.null is None):
            continue
        if found is None:
            return param.null, f"{origin} is null"
        if param.words and column != "gguf":
            found = _translated(checkpoint, param, place, found)
        return _typed(checkpoint, param, found, origin), origin
    return None


def _find(checkpoint: Checkpoint, dialect: Dialect, prefix: str, place: str, column: str) -> Any:
    if column == "gguf":
        value = checkpoint.metadata.get(f"{prefix}.{place}")
        return value.data if isinstance(value, Value) else _NOTHING
    if column == "ggml":
        return checkpoint.header.get(place, _NOTHING)
    if dialect.header:
        return _descend(checkpoint.header.get(dialect.header), place)
    roots = (checkpoint.metadata.get(dialect.within), checkpoint.metadata) if dialect.within else (checkpoint.metadata,)
    found = (_descend(root, place) for root in roots)
    return next((value for value in found if value is not _NOTHING), _NOTHING)


def _descend(root: Any, place: str) -> Any:
    for name in place.split("."):
        if not isinstance(root, Mapping) or name not in root:
            return _NOTHING
        root = root[name]
    return root


def _translated(checkpoint: Checkpoint, param: HParam, place: str, found: Any) -> Any:
    if isinstance(found, list):
        return [_word(checkpoint, param, place, item) for item in found[:MAX_ITEMS]]
    return _word(checkpoint, param, place, found)


def _word(checkpoint: Checkpoint, param: HParam, place: str, found: Any) -> Any:
    if isinstance(found, dict) and list(found) == ["__float__"]:  # what transformers 5 writes for what JSON cannot
        found = {"Infinity": math.inf, "-Infinity": -math.inf}.get(str(found["__float__"]))
    if not isinstance(found, str | int | float) or found not in param.words:
        raise UnsupportedError(
            f"config: {place}", path=checkpoint.path, found=found, expected=", ".join(map(repr, param.words))
        )
    return param.words[found]


def _typed(checkpoint: Checkpoint, param: HParam, found: Any, origin: str) -> Any:
    if not param.many:
        return _item(checkpoint, param, found, origin)
    if not isinstance(found, Sequence) or isinstance(found, str) or len(found) > MAX_ITEMS:
        raise InconsistentError(
            f"{param.name} ({origin})", path=checkpoint.path, found=found, expected=f"a list of at most {MAX_ITEMS}"
        )
    return tuple(_item(checkpoint, param, item, origin) for item in found)


def _item(checkpoint: Checkpoint, param: HParam, found: Any, origin: str) -> Any:
    def wrong(expected: str) -> InconsistentError:
        return InconsistentError(f"{param.name} ({origin})", path=checkpoint.path, found=found, expected=expected)

    if param.kind == ValueType.STRING:
        if not isinstance(found, str):
            raise wrong("text")
        return found
    if param.kind == ValueType.BOOL:
        if not isinstance(found, bool):
            raise wrong("true or false")
        return found
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        raise wrong("a number")
    if param.kind in FLOATS:
        return found
    if found != int(found):
        raise wrong("a whole number")
    if not 0 <= found < 2**32:
        raise OutOfRangeError(f"{param.name} ({origin})", path=checkpoint.path, found=found, expected="0 to 2³² - 1")
    return int(found)


def parse(param: HParam, text: str) -> Any:
    """The text of `--hparam` as the hparam's type. Raises UsageError."""
    if param.many:
        raise UsageError(f"--hparam {param.key}: a list cannot be given", found=text)
    try:
        if param.kind == ValueType.BOOL:
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        if param.kind == ValueType.STRING:
            return text
        value = float(text) if param.kind in FLOATS else int(text)
    except (ValueError, KeyError):
        raise UsageError(f"--hparam {param.key}: not a {param.kind.name.lower()}", found=text) from None
    if not 0 < value < 2**32:
        raise UsageError(f"--hparam {param.key}: out of range", found=text)
    return value
