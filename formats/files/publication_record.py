"""The record of a publication that changes several names: what each was, and what it is to be.

It is written down, to disk, before the first name changes, and removed after the last has. So whoever finds it knows
that a run ended in between, and how to go on (`publication.resolve`). It has the name of a partial that never gets its
own name, so nobody takes it for a model.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ggferry.formats.errors import GgferryError
from ggferry.formats.files.local_files import read_bytes
from ggferry.formats.files.opened_files import unrecorded
from ggferry.formats.files.partial_names import PARTIAL, Leftovers, partial_path
from ggferry.support.records import dataclass

SUFFIX = ".publication"
_MAX_BYTES = 1 << 26
"""4,096 shards of a few hundred bytes each come to 2 MB."""

State = tuple[int, int]
"""Bytes and mtime in ns: neither changes with a file's name."""


@dataclass(frozen=True, slots=True)
class Change:
    """What happens to one name.

    Attributes:
        target: The name.
        partial: Where the new bytes are until they have it; None where the name is only given up.
        aside: Where the old bytes are kept until all names have changed; None where there were none.
        first: Whether the old bytes are moved away before any name gets new ones: a receipt, and the shard by which
            loaders open a model.
        new: State of the new bytes; None where there are none.
        old: State of the old bytes; None where there were none.
    """

    target: str
    partial: str | None
    aside: str | None
    first: bool
    new: State | None
    old: State | None


def state_of(path: str) -> State | None:
    """Return the state of the file at `path`; None where there is none."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    return status.st_size, status.st_mtime_ns


def packed(changes: Sequence[Change]) -> bytes:
    """Return the record of changes, all of names in one folder."""
    return json.dumps({"publication": 1, "changes": [_as_dict(change) for change in changes]}).encode()


def _as_dict(change: Change) -> dict[str, Any]:
    names = {"target": change.target, "partial": change.partial, "aside": change.aside}
    plain = {key: None if path is None else os.path.basename(path) for key, path in names.items()}
    return {**plain, "first": change.first, "new": change.new, "old": change.old}


def load(path: str) -> tuple[Change, ...] | None:
    """Return the changes that the record at `path` lists; None where it was not written whole, or is not ours.

    A record names files of its own folder only, and partials only by names that a run would have given them: one that
    somebody put there cannot reach any other file.
    """
    try:
        with unrecorded():
            record = json.loads(read_bytes(path, _MAX_BYTES))
        changes = [_change(os.path.dirname(path), found) for found in record["changes"]]
    except (GgferryError, OSError, ValueError, KeyError, TypeError, IndexError, RecursionError):
        return None
    return tuple(changes) or None


def _change(folder: str, found: Any) -> Change:
    target = os.path.join(folder, _plain(found["target"]))
    partial, aside = (_of_target(folder, target, found[key]) for key in ("partial", "aside"))
    return Change(target, partial, aside, bool(found["first"]), _state(found["new"]), _state(found["old"]))


def _plain(name: Any) -> str:
    if (
        not isinstance(name, str)
        or name != os.path.basename(name)
        or name in ("", os.curdir, os.pardir)
        or "\0" in name
    ):
        raise ValueError(name)
    return name


def _of_target(folder: str, target: str, name: Any) -> str | None:
    if name is None:
        return None
    match = PARTIAL.fullmatch(_plain(name))
    if match is None or partial_path(target, match["token"]) != os.path.join(folder, name):
        raise ValueError(name)
    return os.path.join(folder, name)


def _state(found: Any) -> State | None:
    return None if found is None else (int(found[0]), int(found[1]))


def records_in(left: Leftovers) -> dict[str, tuple[Change, ...] | None]:
    """Return what each record in a folder lists; None for one that its writer has not finished."""
    return {path: load(path) for path in left.ending(SUFFIX)}


def kept_for(left: Leftovers) -> set[str]:
    """Return the partials in a folder that a record names: `publication.resolve` alone may move or remove them."""
    return {
        path
        for changes in records_in(left).values()
        for change in changes or ()
        for path in (change.partial, change.aside)
        if path is not None
    }


def is_interrupted(path: str) -> bool:
    """Return whether a publication that was to change the name `path` has not come to its end."""
    with suppress(OSError):
        left = Leftovers(os.path.dirname(path))
        return any(change.target == path for changes in records_in(left).values() for change in changes or ())
    return False
