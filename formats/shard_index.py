"""Models in several files: the `.index.json` that says which tensor is where, and the accounting against the files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ggferry.formats import json_kinds
from ggferry.formats.checkpoint import TensorRef
from ggferry.formats.errors import (
    DuplicateError,
    InconsistentError,
    MissingError,
    NotFoundError,
    OutOfRangeError,
    UnexpectedTensorError,
)
from ggferry.formats.json_text import load_object
from ggferry.formats.limits import MAX_SHARDS, MAX_TENSORS


@dataclass(frozen=True, slots=True)
class Index:
    """`weight_map`: tensor name → file as the index names it. `files`: those files' paths, once each, by name."""

    path: str
    weight_map: Mapping[str, str]
    files: tuple[str, ...]
    metadata: Mapping[str, Any]


def read_index(path: str) -> Index:
    """The index at `path`, its files known to exist.

    Raises MissingError (no weight_map), InconsistentError (not names to names), OutOfRangeError (a file outside the
    folder, too many), NotFoundError (a file is absent).
    """
    found = load_object(path)
    weight_map = found.get("weight_map")
    if weight_map is None:
        raise MissingError("an index without weight_map", path=path)
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise InconsistentError("weight_map", path=path, expected="tensor names to file names")
    names = sorted(set(weight_map.values()))
    if not 0 < len(names) <= MAX_SHARDS or len(weight_map) > MAX_TENSORS:
        raise OutOfRangeError("number of files", path=path, found=len(names), expected=f"1 to {MAX_SHARDS}")
    folder = os.path.dirname(path)
    files = tuple(os.path.join(folder, _inside(name, path)) for name in names)
    missing = [name for name, file in zip(names, files, strict=True) if not os.path.exists(file)]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise NotFoundError(
            f"{len(missing)} of the {len(names)} files it names are missing: {', '.join(missing[:3])}{more}",
            path=path,
            hint="fetch them: a model is converted whole or not at all",
        )
    return Index(path, weight_map, files, json_kinds.members(found, "metadata", path))


def _inside(name: str, path: str) -> str:
    """The file name, if it cannot lead out of the index's folder on any system."""
    parts = name.replace("\\", "/").split("/")
    if not name or "\0" in name or ":" in name or any(part in ("", ".", "..") for part in parts):
        raise OutOfRangeError("a file outside the index's folder", path=path, found=name, expected="a plain file name")
    return name


def join_files(
    parts: Sequence[tuple[str, Mapping[str, TensorRef]]], index: Index | None
) -> tuple[dict[str, TensorRef], tuple[str, ...]]:
    """All tensors of the files `(path, tensors)` and what a user should know.

    Raises DuplicateError (a tensor in two files); with an index also MissingError (listed, not there),
    InconsistentError (in another file than listed) and UnexpectedTensorError (there, not listed).

    A wrong `total_size` is told, not refused: it is copied from tool to tool, often wrong, and every tensor was found.
    """
    joined: dict[str, TensorRef] = {}
    home: dict[str, str] = {}
    for path, tensors in parts:
        for name, ref in tensors.items():
            if name in joined:
                raise DuplicateError(f"a tensor that {os.path.basename(home[name])} holds too", path=path, found=name)
            joined[name], home[name] = ref, path
    if index is None:
        return joined, ()
    folder = os.path.dirname(index.path)
    for name, file in index.weight_map.items():
        wanted = os.path.join(folder, file)
        if name not in joined:
            raise MissingError(f"a tensor that {os.path.basename(index.path)} lists", path=wanted, expected=name)
        if home[name] != wanted:
            raise InconsistentError(f"the file of {name!r}", path=index.path, found=file, expected=home[name])
    for name in joined:
        if name not in index.weight_map:
            hint = f"{os.path.basename(index.path)} belongs to another version of the files"
            raise UnexpectedTensorError("a tensor that the index does not list", path=home[name], found=name, hint=hint)
    return joined, _total_note(index, sum(ref.nbytes for ref in joined.values()))


def _total_note(index: Index, nbytes: int) -> tuple[str, ...]:
    stated = index.metadata.get("total_size")
    if stated is None or stated == nbytes:
        return ()
    return (f"{os.path.basename(index.path)} states total_size {stated!r:.40}, the tensors hold {nbytes} bytes",)
