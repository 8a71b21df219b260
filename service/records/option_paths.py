"""The paths that the options of a plan name: as people write them, as they really are, as a worker finds them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from ggferry.converters.conversion.options import PLAN_NAMES, Kind, option
from ggferry.formats.files.named_texts import path_and_number
from ggferry.formats.json_files.kinds import JSONObject

UPLOAD = "upload:"


def with_paths(options: Mapping[str, Any], change: Callable[[str], str]) -> JSONObject:
    """Return options with what `change` gives in place of every path that one names; scales of adapters stay."""
    return {name: _changed(name, value, change) for name, value in options.items()}


def files_named(options: Mapping[str, Any]) -> list[str]:
    """Return the files of this machine that options name, of adapters' folders those that hold the adapter.

    What they hold decides what a conversion makes, as the model's own files do.
    """
    local = (path for path in _named(options) if "://" not in path)
    return [path for each in local for path in ([each] if os.path.isfile(each) else _of_adapter(each))]


def urls_named(options: Mapping[str, Any]) -> list[str]:
    """Return the URLs of files and folders that options name."""
    return [path for path in _named(options) if "://" in path]


def _named(options: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    with_paths(options, lambda path: found.append(path) or path)  # type: ignore[func-returns-value]
    return list(dict.fromkeys(found))


def _of_adapter(folder: str) -> list[str]:
    try:
        names = sorted(name for name in os.listdir(folder) if name.startswith("adapter"))
    except OSError:  # the conversion says what is wrong with it
        return []
    return [path for path in (os.path.join(folder, name) for name in names) if os.path.isfile(path)]


def _changed(name: str, value: Any, change: Callable[[str], str]) -> Any:
    kind = option(name).kind if name in PLAN_NAMES else None
    if kind is Kind.FILE and isinstance(value, str):
        return change(value)
    if kind is Kind.ADAPTERS and isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
        return [_adapter(each, change) for each in value]
    return value


def _adapter(text: str, change: Callable[[str], str]) -> str:
    """Return an adapter, PATH or PATH:SCALE, with its path changed. The digits of an upload's id are no scale."""
    if text.startswith(UPLOAD):
        key, colon, scale = text.removeprefix(UPLOAD).partition(":")
        return change(UPLOAD + key) + colon + scale
    path, _ = path_and_number(text)
    return change(path) + text[len(path) :]
