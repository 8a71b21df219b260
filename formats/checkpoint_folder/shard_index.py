"""Models in several files: the `.index.json` that says which tensor is in which file, compared with the files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ggferry.formats.checkpoint import TensorRef
from ggferry.formats.errors import (
    DuplicateError,
    InconsistentError,
    MissingError,
    NotFoundError,
    OutOfRangeError,
    UnexpectedTensorError,
)
from ggferry.formats.json_files import kinds as json_kinds
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.formats.json_files.text import read_text
from ggferry.formats.json_files.walk import Walk
from ggferry.formats.limits import MAX_SHARDS, MAX_TENSORS
from ggferry.formats.tensor_table import joined
from ggferry.support.records import dataclass

MAX_INDEX_VALUE = 1 << 16  # bytes of what an index says beside its weight_map: total_size and the like


@dataclass(frozen=True, slots=True)
class Index:
    """The content of an `.index.json`.

    Attributes:
        path: Path of the index.
        weight_map: Tensor name → file name, as the index states it.
        files: Paths of those files, each once, ordered by name.
        metadata: The index's `metadata` object.
    """

    path: str
    weight_map: Mapping[str, str]
    files: tuple[str, ...]
    metadata: Mapping[str, Any]


def read_index(path: str) -> Index:
    """Return the index at `path`, after checking that its files exist.

    Raises MissingError (no weight_map), InconsistentError (not names to names), OutOfRangeError (a file outside the
    folder, too many), NotFoundError (a file is absent).
    """
    weight_map, metadata = _parse(path)
    if weight_map is None:
        raise MissingError("index has no weight_map", path=path)
    names = sorted(set(weight_map.values()))
    if not 0 < len(names) <= MAX_SHARDS:
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
    return Index(path, weight_map, files, metadata)


def _parse(path: str) -> tuple[dict[str, str] | None, JSONObject]:
    """Return weight_map and metadata of the index at `path`, read line by line; everything else in it is ignored."""
    data, skipped = read_text(path)
    walk = Walk(data, path, skipped, constants=True)
    found: JSONObject = {}
    more = walk.enter("the index")
    while more:
        at, key = walk.key()
        if key in found:
            raise DuplicateError("duplicate JSON key", path=path, offset=skipped + at, found=key)
        found[key] = _weight_map(walk) if key == "weight_map" else walk.value(key, MAX_INDEX_VALUE)
        more = walk.more()
    walk.finish()
    return found.get("weight_map"), json_kinds.members(found, "metadata", path)


def _weight_map(walk: Walk) -> dict[str, str]:
    found: dict[str, str] = {}
    files: dict[str, str] = {}
    for at, name, file in walk.pairs("weight_map", MAX_INDEX_VALUE):
        place = walk.offset + at
        if name in found:
            raise DuplicateError("duplicate JSON key", path=walk.path, offset=place, found=name)
        if len(found) >= MAX_TENSORS:
            raise OutOfRangeError("number of tensors", path=walk.path, offset=place, expected=f"≤ {MAX_TENSORS}")
        found[name] = files.setdefault(file, file)
    return found


def _inside(name: str, path: str) -> str:
    """Return the file name, if it cannot lead out of the index's folder on any system."""
    parts = name.replace("\\", "/").split("/")
    if not name or "\0" in name or ":" in name or any(part in ("", ".", "..") for part in parts):
        raise OutOfRangeError(
            "index names a file outside its folder", path=path, found=name, expected="a plain file name"
        )
    return name


def left_out(what: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return a note that names what files hold besides tensors, and why it is not read; none for nothing."""
    more = f" and {len(names) - 8} more" if names[8:] else ""
    return (f"{what}, left out: {', '.join(names[:8])}{more}",) if names else ()


def join_files(
    parts: Sequence[tuple[str, Mapping[str, TensorRef]]], index: Index | None
) -> tuple[Mapping[str, TensorRef], tuple[str, ...]]:
    """Return the tensors of several files as one table, and notes for the user.

    A wrong `total_size` is reported, not refused: it is copied from tool to tool and often wrong, and every tensor was
    found.

    Args:
        parts: (path, tensors) of each file.
        index: The index that lists the tensors; None where there is none.

    Raises:
        DuplicateError: A tensor is in two files.
        OutOfRangeError: There are too many tensors.
        MissingError: The index lists a tensor that is not there.
        InconsistentError: A tensor is in another file than the index says.
        UnexpectedTensorError: A tensor is not in the index.
    """
    table = joined([tensors for _, tensors in parts])
    if len(table) > MAX_TENSORS:
        raise OutOfRangeError("number of tensors", path=parts[0][0], found=len(table), expected=f"≤ {MAX_TENSORS}")
    if len(parts) > 1 or index is not None:
        home = _homes(parts)
        if index is not None:
            _compare(index, home)
    return table, () if index is None else _total_note(index, sum(ref.nbytes for ref in table.values()))


def _homes(parts: Sequence[tuple[str, Mapping[str, TensorRef]]]) -> dict[str, str]:
    """Return tensor name → path of its file."""
    home: dict[str, str] = {}
    for path, tensors in parts:
        for name in tensors:
            if name in home:
                raise DuplicateError(f"tensor is also in {os.path.basename(home[name])}", path=path, found=name)
            home[name] = path
    return home


def _compare(index: Index, home: Mapping[str, str]) -> None:
    folder = os.path.dirname(index.path)
    paths = {file: os.path.join(folder, file) for file in set(index.weight_map.values())}
    for name, file in index.weight_map.items():
        if name not in home:
            raise MissingError(
                f"tensor listed in {os.path.basename(index.path)} is missing", path=paths[file], expected=name
            )
        if home[name] != paths[file]:
            raise InconsistentError(f"the file of {name!r}", path=index.path, found=file, expected=home[name])
    if len(home) > len(index.weight_map):
        name = next(name for name in home if name not in index.weight_map)
        hint = f"{os.path.basename(index.path)} belongs to another version of the files"
        raise UnexpectedTensorError("tensor is not listed in the index", path=home[name], found=name, hint=hint)


def _total_note(index: Index, nbytes: int) -> tuple[str, ...]:
    declared = index.metadata.get("total_size")
    if declared is None or declared == nbytes:
        return ()
    return (f"{os.path.basename(index.path)} states total_size {declared!r:.40}, the tensors hold {nbytes} bytes",)
