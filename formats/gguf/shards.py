"""Open GGUF models that llama-gguf-split or gguf-py cut into NAME-00001-of-0000N.gguf as one checkpoint.

Each shard is a GGUF file of its own: the first holds all metadata, and every one holds `split.no` (from 0),
`split.count` and `split.tensors.count` (llama.cpp, tools/gguf-split; gguf-py, add_shard_kv_data).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from ggferry.formats import limits
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import DuplicateError, InconsistentError, NotFoundError, OutOfRangeError
from ggferry.formats.files.sources import Source, open_source
from ggferry.formats.gguf.values import ALIGNMENT_KEY, Value, i32, u16
from ggferry.formats.tensor_table import joined
from ggferry.support.records import dataclass

# '.partial': the shards of a model that is being written are re-read before they get their names (`partials`)
_SHARD = re.compile(
    r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<tail>\.gguf(?:\.ggferry-[0-9a-f]{16}\.partial)?)", re.DOTALL
)

Item = TypeVar("Item")
SPLIT_KEYS = ("split.no", "split.count", "split.tensors.count")
SET_DIGEST = "ggferry.split.digest"
"""The same text in every shard of one set: the digest of its tensors' data. No loader of others reads it."""
SHARD_KEYS = (*SPLIT_KEYS, SET_DIGEST)
UNKNOWN_DIGEST = "0" * 64
"""Stands in a header for the digest of a set until its data has been read, and takes as many bytes."""


@dataclass(frozen=True, slots=True)
class ShardName:
    """What the name of a finished shard states: the name of its model, and the number of shards."""

    stem: str
    count: int


def shard_of(name: str) -> ShardName | None:
    """Return the model of which a file of this name is a shard; None for any other name."""
    match = _SHARD.fullmatch(name)
    whole = match is not None and match["stem"] and match["tail"] == ".gguf"
    return ShardName(match["stem"], int(match["count"])) if match is not None and whole else None


def names_of_shards(path: str) -> list[str]:
    """Return the files of the model whose first shard would have this name; the name alone where it is no shard's."""
    match = _SHARD.fullmatch(path)
    if match is None or not match["stem"] or match["tail"] != ".gguf" or int(match["number"]) != 1:
        return [path]
    count = min(int(match["count"]), limits.MAX_SHARDS)
    return [f"{match['stem']}-{number:05}-of-{match['count']}.gguf" for number in range(1, count + 1)]


def cut(
    items: Sequence[Item], nbytes: Callable[[Item], int], most: int, most_bytes: int, first: bool = True
) -> list[list[Item]]:
    """Return the tensors of each shard, in order: a shard is full when the next tensor would exceed either limit.

    Args:
        items: The tensors.
        nbytes: Returns the bytes of one.
        most: Most tensors in a shard; 0 for no limit.
        most_bytes: Most bytes of tensors in a shard; 0 for no limit. A tensor larger than that has a shard of its own.
        first: Whether the first shard holds tensors, and not the metadata alone.
    """
    if not most and not most_bytes:
        return [list(items)]
    shards: list[list[Item]] = [[]] if first else [[], []]
    size = 0
    for item in items:
        full = (most and len(shards[-1]) >= most) or (most_bytes and size + nbytes(item) > most_bytes)
        if full and shards[-1]:
            shards.append([])
            size = 0
        shards[-1].append(item)
        size += nbytes(item)
    return shards


def split_keys(number: int, count: int, tensors: int) -> dict[str, Value]:
    """Return the keys that make a file shard `number` (from 0) of `count`, of a model of so many tensors.

    The types (u16, u16, i32) are those of llama.cpp's gguf-split.
    """
    values = (u16(number), u16(count), i32(tensors))
    return dict(zip(SPLIT_KEYS, values, strict=True))


Parse = Callable[[Source, int], Checkpoint]


def shard_number(path: str) -> int:
    """Return the number, from 0, that the name gives a shard; 0 for any other name."""
    match = _SHARD.fullmatch(path)
    return max(0, int(match["number"]) - 1) if match else 0


def shard_paths(path: str, count: object) -> list[str]:
    """Return the paths of all shards of the model to which the shard at `path` belongs.

    `count` is the number of shards that it states. Raises NotFoundError for a name from which the others cannot be
    derived and for an absent shard, OutOfRangeError for an impossible count.
    """
    if not isinstance(count, int) or not 2 <= count <= limits.MAX_SHARDS:
        raise OutOfRangeError("split.count", path=path, found=count, expected=f"0..{limits.MAX_SHARDS}")
    match = _SHARD.fullmatch(path)
    if match is None or int(match["count"]) != count:
        raise NotFoundError(
            "the other shards of this split model cannot be found by this file's name",
            path=path,
            expected=f"NAME-00001-of-{count:05}.gguf",
            hint="give the shards the names they were made with",
        )
    paths = [f"{match['stem']}-{number:05}-of-{count:05}{match['tail']}" for number in range(1, count + 1)]
    for name in paths:
        if not os.path.exists(name):
            raise NotFoundError(f"a shard of {os.path.basename(path)} is missing", path=name)
    return paths


def open_shards(found: Checkpoint, number: int, parse: Parse) -> Checkpoint:
    """Return all shards as one checkpoint.

    Args:
        found: The shard that was opened.
        number: Its number, from 0.
        parse: `parse(source, file)` reads a single file, whose spans carry the number `file`.
    """
    shards: list[Checkpoint] = []
    try:
        paths = shard_paths(found.path, found.metadata["split.count"].data)
        for other, path in enumerate(paths):
            shard = found if other == number else parse(open_source(path), other)
            shards.append(shard)
            _check(shard, other, len(paths), shards[0])
            if other:
                shards[other] = replace(shard, metadata={}, header={})  # each may state a vocabulary
        return _join(shards)
    except BaseException:
        for shard in (found, *shards):
            shard.close()
        raise


def _join(shards: Sequence[Checkpoint]) -> Checkpoint:
    """Join shards: metadata, header and alignment of the first; tensors, files and notes of all."""
    first = shards[0]
    names: set[str] = set()
    for shard in shards:
        if len(names) + len(shard.tensors) > limits.MAX_TENSORS:
            raise OutOfRangeError(
                "number of tensors", path=shard.path, expected=f"≤ {limits.MAX_TENSORS} in all shards"
            )
        for name in shard.tensors:
            if name in names:
                raise DuplicateError(f"tensor {name!r} is in an earlier shard too", path=shard.path)
            names.add(name)
    total = first.metadata.get("split.tensors.count")
    if total is not None and total.data != len(names):
        raise InconsistentError("split.tensors.count", path=first.path, found=total.data, expected=len(names))
    files = tuple(shard.files[0] for shard in shards)
    notes = tuple(f"{os.path.basename(shard.path)}: {note}" for shard in shards for note in shard.notes)
    return replace(first, tensors=joined([shard.tensors for shard in shards]), files=files, notes=notes)


def _check(shard: Checkpoint, number: int, count: int, first: Checkpoint) -> None:
    """Raise InconsistentError when the shard is not number `number` of the model whose first shard is `first`."""
    for key, expected in (("split.no", number), ("split.count", count)):
        value = shard.metadata.get(key)
        if value is None or value.data != expected:
            found = "nothing" if value is None else value.data
            raise InconsistentError(
                f"{key} contradicts the file's name", path=shard.path, found=found, expected=expected
            )
    if shard.big_endian != first.big_endian:
        raise InconsistentError("shards of different byte order", path=shard.path)
    if SET_DIGEST in first.metadata and SET_DIGEST not in shard.metadata:
        message = "not of the set that the first shard belongs to"
        raise InconsistentError(message, path=shard.path, found=f"no {SET_DIGEST}", expected="the first shard's")
    own = ("split.no", ALIGNMENT_KEY)
    differing = [key for key, value in shard.metadata.items() if key not in own and first.metadata.get(key) != value]
    if differing:
        message = "metadata that differs from the first shard's"
        raise InconsistentError(message, path=shard.path, found=shortened(differing))


def shortened(names: Sequence[str], most: int = 5) -> str:
    """Return the first few names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
