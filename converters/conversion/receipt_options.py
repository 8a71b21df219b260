"""The options of a conversion as its receipt states them, and read back from there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from functools import reduce
from typing import Any

from ggferry.converters.adapters.merge_parts import receipt_form
from ggferry.converters.conversion.options import OPTIONS, Kind, Option
from ggferry.converters.conversion.request import Request
from ggferry.formats.errors import CorruptError

_FILES = (Kind.FILE, Kind.ADAPTERS)
"""What receipts state the names of, which are not enough to find it again."""


def declared_options(request: Request, *, adapter: bool = False) -> dict[str, Any]:
    """Return what was asked for as a receipt states it: of files their names."""
    found = {**asdict(request.options), "hparams": dict(request.hparams), "vocab": asdict(request.vocab)}
    for each in _declared(adapter):
        value = _at(request, each)
        if each.kind is Kind.FILE:
            value = os.path.basename(os.path.normpath(value)) if value else None
        elif each.kind is Kind.ADAPTERS:
            value = [receipt_form(text) for text in value]
        holder, key = _holder(found, each)
        holder[key] = list(value) if isinstance(value, tuple) else value
    return found


def missing_files(request: Request, declared: Mapping[str, Any]) -> list[str]:
    """Return a line for every file that a receipt's options name and this request does not."""
    lines = []
    for each in _declared(adapter=True):
        holder, key = _holder(declared, each)
        name = holder.get(key) if isinstance(holder, Mapping) else None
        if each.kind in _FILES and name and not _at(request, each):
            name = " ".join(map(str, name)) if isinstance(name, list) else name
            lines.append(f"it was converted with {each.flag} {name}: give it here, too")
    return lines


def with_receipt_options(request: Request, declared: Mapping[str, Any], path: str) -> Request:
    """Return the request with the options that a receipt states for what it leaves at its defaults. Files among them
    are told by name only and must be given again. Raises CorruptError for options of another kind."""
    try:
        for each in _declared(adapter=True):
            holder, key = _holder(declared, each)
            if not isinstance(holder, Mapping):
                raise TypeError(f"{holder!r} is not an object")
            if each.kind in _FILES or each.target == "level" or key not in holder:
                continue
            default, given = _at(Request(""), each), _at(request, each)
            value = _of_kind(holder[key], default, each)
            if each.kind is Kind.PAIRS:
                request = _with(request, each, {**value, **given})
            elif given == default:
                request = _with(request, each, value)
    except (TypeError, AttributeError) as error:
        raise CorruptError(f"the receipt's options: {error}", path=path) from None
    return request


def _declared(adapter: bool) -> Iterator[Option]:
    """The options that receipts state, of adapters or of models."""
    return (each for each in OPTIONS if each.receipt is not None and (adapter or not each.of_adapters))


def _holder(options: Mapping[str, Any], each: Option) -> tuple[Any, str]:
    """Where among a receipt's options one is, and under which key."""
    holder, _, key = (each.receipt or "").rpartition(".")
    return (options.get(holder) or {} if holder else options), key


def _at(request: Request, each: Option) -> Any:
    return reduce(getattr, (each.target or "").split("."), request)


def _with(request: Request, each: Option, value: Any) -> Request:
    holder, _, key = (each.target or "").rpartition(".")
    return replace(request, **{holder: replace(getattr(request, holder), **{key: value})} if holder else {key: value})


_FORMS: dict[Kind, type] = {
    Kind.JSON_FILE: dict,
    Kind.PAIRS: dict,
    Kind.NUMBER: int,
    Kind.SIZE: int,
    Kind.FLAG: bool,
}


def _of_kind(value: Any, default: Any, each: Option) -> Any:
    """`value`, if it is of the kind that a receipt has for this option. Raises TypeError."""
    if isinstance(default, tuple):
        if not isinstance(value, list):
            raise TypeError(f"{value!r} is not a list")
        return tuple(tuple(item) if isinstance(item, list) else _of_text(item) for item in value)
    kind = _FORMS.get(each.kind, str)
    if type(value) is not kind and not (value is None and default is None):
        raise TypeError(f"{value!r} is not of type {kind.__name__}")
    pairs: Any = value
    return {str(key): str(item) for key, item in pairs.items()} if each.kind is Kind.PAIRS else value


def _of_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value
