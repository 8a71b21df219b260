"""Values of GGUF keys as people write them: `4096:u32`, `[1, 2, 3]:[i32]`, `true`, plain text."""

from __future__ import annotations

import math
import re
import struct
from typing import Any

from ggferry.formats import limits
from ggferry.formats.errors import GgferryError, UsageError
from ggferry.formats.fields import CODES
from ggferry.formats.gguf.values import NUMBER_CODES, TYPE_NAMES, Value, ValueType
from ggferry.formats.json_files.parse import parse_json

_TYPES = {name: kind for kind, name in TYPE_NAMES.items()} | {kind.name.lower(): kind for kind in TYPE_NAMES}
_TYPED = re.compile(r"(?P<text>.*):(?P<type>\[*(?:" + "|".join(_TYPES) + r")\]*)", re.DOTALL | re.IGNORECASE)
_WHOLE = re.compile(r"[+-]?\d{1,20}", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_FLOATS = (ValueType.FLOAT32, ValueType.FLOAT64)


def parted(text: str) -> tuple[str, str | None]:
    """Return the text and the type behind its last colon; None where what is there names no type."""
    match = _TYPED.fullmatch(text)
    if match is None:
        return text, None
    kind = match["type"].lower()
    depth = kind.count("[")
    if kind != "[" * depth + kind.strip("[]") + "]" * depth:
        return text, None
    return match["text"], "[" * depth + TYPE_NAMES[_TYPES[kind.strip("[]")]] + "]" * depth


def type_of(value: Value) -> str | None:
    """Return the type of a value as it is written; None for arrays of arrays that are not all of one type."""
    if value.type is not ValueType.ARRAY:
        return TYPE_NAMES[value.type]
    if value.items is not ValueType.ARRAY:
        return f"[{TYPE_NAMES[value.items]}]" if value.items is not None else None
    inner = {type_of(item) for item in value.data}
    only = inner.pop() if len(inner) == 1 else None
    return None if only is None else f"[{only}]"


def is_plain(text: str) -> bool:
    """Return whether a text is like no number, boolean or array, so that it can only be meant as a text."""
    return not (_NUMBER.fullmatch(text) or text.lower() in ("true", "false", "nan", "inf") or text[:1] in ("[", "{"))


def value_of(text: str, kind: str, what: str) -> Value:
    """Return the value that `text` states in the type `kind`. Raises UsageError naming `what`."""
    if not kind.startswith("["):
        return Value(_TYPES[kind], _scalar(text, _TYPES[kind], what))
    try:
        items = parse_json(text.encode(), what)
    except (GgferryError, UnicodeEncodeError):
        items = None
    if not isinstance(items, list):
        raise UsageError(what, found=text, expected=f"a JSON array, for {kind}")
    return _array(items, kind[1:-1], what)


def _array(items: list[Any], kind: str, what: str, depth: int = 1) -> Value:
    if kind.startswith("["):
        if depth >= limits.MAX_ARRAY_DEPTH or not all(isinstance(item, list) for item in items):
            raise UsageError(what, expected=f"arrays within an array, at most {limits.MAX_ARRAY_DEPTH} deep")
        inner = tuple(_array(item, kind[1:-1], what, depth + 1) for item in items)
        return Value(ValueType.ARRAY, inner, ValueType.ARRAY)
    return Value(ValueType.ARRAY, tuple(_item(item, _TYPES[kind], what) for item in items), _TYPES[kind])


def _item(item: Any, kind: ValueType, what: str) -> Any:
    """Return an item of a JSON array. Raises UsageError for one of another kind."""
    fits = {ValueType.BOOL: bool, ValueType.STRING: str}.get(kind)
    if isinstance(item, fits or (int, float)) and isinstance(item, bool) == (kind is ValueType.BOOL):
        return item if fits else _scalar(repr(item), kind, what)
    raise UsageError(f"{what}: an item", found=item, expected=TYPE_NAMES[kind])


def _scalar(text: str, kind: ValueType, what: str) -> Any:
    if kind is ValueType.STRING:
        return text
    if kind is ValueType.BOOL:
        if text.lower() not in ("true", "false"):
            raise UsageError(what, found=text, expected="true or false")
        return text.lower() == "true"
    if not (_NUMBER if kind in _FLOATS else _WHOLE).fullmatch(text):
        raise UsageError(what, found=text, expected=f"a number, for {TYPE_NAMES[kind]}")
    number = float(text) if kind in _FLOATS else int(text)
    try:
        (stored,) = struct.unpack("<" + CODES[NUMBER_CODES[kind]], struct.pack("<" + CODES[NUMBER_CODES[kind]], number))
    except (struct.error, OverflowError):
        stored = math.inf
    if not math.isfinite(stored):
        raise UsageError(f"{what}: out of the range of {TYPE_NAMES[kind]}", found=text)
    return stored


def shown(value: Value | None, most: int = 60) -> str:
    """Return a value in one line, shortened."""
    if value is None:
        return "(absent)"
    kind = type_of(value) or "array"
    if value.type is not ValueType.ARRAY:
        text = str(value.first(most)) if value.type is ValueType.STRING else str(value.data)
        long = value.type is ValueType.STRING and len(value) > most
        return f"{text[:most]}{'…' if long else ''}:{kind}"
    few = ", ".join(str(item.data if isinstance(item, Value) else item) for item in value.first(5))
    return f"[{few[:most]}{', …' if len(value) > 5 or len(few) > most else ''}]:{kind} × {len(value)}"


def lines_of_change(key: str, old: Value | None, new: Value | None) -> list[str]:
    """Return a change as a diff: what goes after a minus, what comes after a plus, and where exactly they part.

    Of arrays of one length in which few items differ, those; of long texts, the parts that begin to differ.
    """
    places = _places(old, new)
    if old is not None and new is not None and 0 < len(places) <= 4:
        pairs = ((f"{key}[{place}]", old.data[place], new.data[place]) for place in places)
        return [line for name, a, b in pairs for line in (f"- {name} = {a}", f"+ {name} = {b}")]
    before, after = shown(old), shown(new)
    if old is not None and new is not None and before == after and old.type is new.type is ValueType.STRING:
        pairs_of = enumerate(zip(old.data, new.data, strict=False))
        at = next((place for place, (a, b) in pairs_of if a != b), min(len(old.data), len(new.data)))
        before, after = (f"{_from(value.data, at)} ({len(value.data):,} characters)" for value in (old, new))
    lines = [f"- {key} = {before}"] if old is not None else []
    lines += [f"+ {key} = {after}"] if new is not None else []
    return [*lines, f"  {len(places):,} items differ, the first is {places[0]:,}"] if places else lines


def _places(old: Value | None, new: Value | None) -> list[int]:
    """Return the places at which two arrays of one length and of plain items differ; none for anything else."""
    if old is None or new is None or old.type is not ValueType.ARRAY or new.type is not ValueType.ARRAY:
        return []
    if len(old) != len(new) or ValueType.ARRAY in (old.items, new.items):
        return []
    return [place for place, (a, b) in enumerate(zip(old.data, new.data, strict=True)) if a != b]


def _from(text: str, at: int, most: int = 60) -> str:
    """Return the part of a text in which something begins at `at`."""
    start = max(0, at - 10)
    return f"{'…' if start else ''}{text[start : start + most]}{'…' if len(text) > start + most else ''}"
