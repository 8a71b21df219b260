"""Folders are the registry: every module of a package that exposes a given name is found; none is listed."""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any


@cache
def scan(package: str, attribute: str) -> tuple[Any, ...]:
    """Return `attribute` of every module directly in `package` that has one, then of entry points.

    Modules come in the order of their names. Then come the entry points of the group `package`, by which another
    distribution can add a reader, an architecture or a codec.
    """
    found = []
    root = importlib.import_module(package)
    for info in sorted(pkgutil.iter_modules(root.__path__), key=lambda info: info.name):
        module = importlib.import_module(f"{package}.{info.name}")
        if hasattr(module, attribute):
            found.append(getattr(module, attribute))
    found.extend(_plugins(package))
    return tuple(found)


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
