"""Folders are the registry: every module of a package that exposes a given name is found; none is listed."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from typing import Any


@cache
def scan(package: str, attribute: str) -> tuple[Any, ...]:
    """Return `attribute` of every module directly in `package` that has one, then of entry points.

    Modules come in the order of their names. Then come the entry points of the group `package`, by which another
    distribution can add a reader, an architecture or a codec.
    """
    return (*_exposed(package, attribute, _modules(package)), *_plugins(package))


@lru_cache(maxsize=64)
def mentioning(package: str, attribute: str, *words: str) -> tuple[Any, ...]:
    """Return what `scan` does, of those modules only in whose texts one of the words stands, so that no other need run.

    A word may stand in a module beside it whose name begins with '_', if the text names that one, directly or by way of
    others. It is the caller's law that what it looks for is written in a text, and not put together by a program. All
    modules are returned where other distributions add some, or where there are no texts.
    """
    texts = _texts(package)
    if not texts or _plugins(package):
        return scan(package, attribute)
    found: set[str] = set()
    looked_for = {word.encode() for word in words}
    while looked_for:
        more = {name for name, text in texts.items() if name not in found and any(word in text for word in looked_for)}
        found |= more
        looked_for = {name.encode() for name in more if name.startswith("_")}
    return tuple(_exposed(package, attribute, [name for name in _modules(package) if name in found]))


def _modules(package: str) -> list[str]:
    """Return the names of the modules directly in `package`: of its folder, or, where it has none, of its archive."""
    folders = importlib.import_module(package).__path__
    try:
        found = {name[:-3] for name in os.listdir(folders[0]) if name.endswith(".py")} - {"__init__"}
    except OSError:
        found = set()
    if not found or len(folders) > 1:
        from pkgutil import iter_modules

        found = {info.name for info in iter_modules(folders)}
    return sorted(found)


def _exposed(package: str, attribute: str, names: Iterable[str]) -> Iterator[Any]:
    for name in names:
        module = importlib.import_module(f"{package}.{name}")
        if hasattr(module, attribute):
            yield getattr(module, attribute)


@cache
def _texts(package: str) -> Mapping[str, bytes]:
    """Return the modules directly in `package` and their texts; nothing where one is not a file with a text."""
    found = {}
    folder = importlib.import_module(package).__path__[0]
    for name in _modules(package):
        try:
            with open(os.path.join(folder, f"{name}.py"), "rb", buffering=0) as file:
                found[name] = file.read()
        except OSError:
            return {}
    return found


@cache
def single(package: str, module: str, attribute: str) -> Any:
    """Return `attribute` of one module of `package`, None where there is none, without importing the others.

    It is for a name that says which module has it. Where other distributions may have it too, it returns None: `scan`.
    """
    if not module.isidentifier() or _plugins(package):
        return None
    try:
        return getattr(importlib.import_module(f"{package}.{module}"), attribute, None)
    except ModuleNotFoundError:
        return None


def _plugins(group: str) -> list[Any]:
    return [point.load() for point in _installed() if point.group == group]


@cache
def _installed() -> tuple[Any, ...]:
    """Return the entry points of other distributions for ggferry's groups.

    importlib.metadata costs 40 ms of CPU to import, so this is done only where some entry_points.txt names a group of
    ours.
    """
    if not any(b"[ggferry." in text for text in _entry_point_files()):
        return ()
    # All groups at once: every call of entry_points reads the metadata of every distribution again.
    from importlib.metadata import distributions

    points = (point for distribution in distributions() for point in distribution.entry_points)
    return tuple(point for point in points if point.group.startswith("ggferry."))


def _entry_point_files() -> Iterator[bytes]:
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for name in names:
            if name.endswith((".dist-info", ".egg-info")):
                try:
                    with open(os.path.join(folder, name, "entry_points.txt"), "rb") as file:
                        yield file.read()
                except OSError:
                    continue
