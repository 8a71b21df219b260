"""Hold the blocks of a model's files against the digests in its receipt: all of them, or some drawn at random."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from math import ceil
from random import SystemRandom
from typing import Any

from ggferry.formats.errors import CorruptError, UsageError, VerificationError
from ggferry.formats.files.digests import Blocks, Record, root_of
from ggferry.formats.files.sources import Source, open_source
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.support.progress import Phase, Stage
from ggferry.support.records import dataclass

_DIGEST = 32
"""Bytes of a BLAKE3 digest."""
HEADER = "the header"
_DRAW = SystemRandom().sample


@dataclass(frozen=True, slots=True)
class ChangedBlock:
    """A block that is not what the receipt was written for.

    Attributes:
        file: The name of its file.
        block: Its number in the file, from 0.
        offset: Its first byte.
        bytes: Its size.
        tensors: The tensors that lie in it, or `HEADER`.
    """

    file: str
    block: int
    offset: int
    bytes: int
    tensors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BlockCheck:
    """What was read, and what differs.

    Attributes:
        files: Names of the files.
        blocks: How many blocks they have.
        checked: How many of them were read.
        bytes: Size of the files.
        bytes_read: How many of these were read.
        changed: The blocks that differ.
        chance: With what probability a single changed block, wherever it is, would have been found: 1 for all blocks.
    """

    files: tuple[str, ...]
    blocks: int
    checked: int
    bytes: int
    bytes_read: int
    changed: tuple[ChangedBlock, ...]
    chance: float


def sample_size(sample: str | None, blocks: int) -> int:
    """Return how many of so many blocks are read: N, N% (at least one), or all. Raises UsageError."""
    if sample is None:
        return blocks
    text = sample.strip().removesuffix("%")
    try:
        number = float(text) if sample.strip().endswith("%") else int(text)
    except ValueError:
        number = 0
    if not 0 < number < float("inf") or (sample.strip().endswith("%") and number > 100):
        raise UsageError("--sample", found=sample, expected="a number of blocks, or a percentage: 1%")
    share = ceil(blocks * number / 100) if sample.strip().endswith("%") else int(number)
    return max(1, min(blocks, share))


def check_blocks(
    path: str,
    receipt: JSONObject,
    sample: str | None,
    stage: Stage,
    draw: Callable[[Sequence[int], int], Sequence[int]] = _DRAW,
) -> BlockCheck:
    """Hold the files of a model against the digests of blocks in its receipt.

    Args:
        path: Its first file; the others lie beside it, under the names of the receipt.
        receipt: What its receipt says.
        sample: How many blocks are read, 'N' or 'N%'; None: all.
        stage: Opens a progress display.
        draw: Returns so many of these numbers; nobody who changes a file knows them before.

    Raises:
        VerificationError: A file has another size.
        CorruptError: The receipt has no digests of blocks, or they do not fit together.
        GgferryError: A file cannot be read.
    """
    records = [_record(each, path) for each in _files_of(receipt, path)]
    with ExitStack() as stack:
        files = []
        for number, record in enumerate(records):
            place = path if number == 0 else os.path.join(os.path.dirname(path), record["name"])
            files.append(stack.enter_context(_Opened(place)))
            if files[-1].size != record["bytes"]:
                found, expected = f"{files[-1].size:,} bytes", f"{record['bytes']:,}"
                raise VerificationError(
                    "not the file its receipt was written for", path=place, found=found, expected=expected
                )
        everything = [(number, block) for number, record in enumerate(records) for block in range(_count(record))]
        count = sample_size(sample, len(everything))
        drawn = sorted(draw(range(len(everything)), count)) if count < len(everything) else range(len(everything))
        total = sum(_span(records[everything[each][0]], everything[each][1])[1] for each in drawn)
        changed = []
        with stage(Phase.CHECKING, total) as progress:
            for number, block in (everything[each] for each in drawn):
                record = records[number]
                offset, size = _span(record, block)
                if root_of(files[number].source.read(offset, size)) != _digest(record, block):
                    tensors = _tensors_in(receipt, number, offset, offset + size)
                    changed.append(ChangedBlock(record["name"], block, offset, size, tensors))
                progress(size)
    return BlockCheck(
        tuple(record["name"] for record in records),
        len(everything),
        count,
        sum(record["bytes"] for record in records),
        total,
        tuple(changed),
        count / len(everything) if everything else 1.0,
    )


class _Opened:
    """A file that is read wherever its bytes are."""

    def __init__(self, path: str) -> None:
        self.source: Source = open_source(path)
        self.size = self.source.size

    def __enter__(self) -> _Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.source.close()


def _files_of(receipt: Mapping[str, Any], path: str) -> list[Any]:
    output = receipt.get("output")
    files = output.get("files") if isinstance(output, Mapping) else None
    if not isinstance(files, list) or not files:
        raise CorruptError("the receipt states no output files", path=path)
    return files


def _record(value: Any, path: str) -> Record:
    """Return the record of a file whose digests of blocks fit together. Raises CorruptError."""
    try:
        blocks: Blocks = value["blocks"]
    except (KeyError, TypeError):
        hint = "receipts have them since this version: convert again, or `ggferry verify FILE` without --sample"
        raise CorruptError("the receipt has no digests of blocks", path=path, hint=hint) from None
    try:
        record = Record(name=value["name"], bytes=value["bytes"], blake3=value["blake3"], blocks=blocks)
        digests, size = bytes.fromhex(blocks["blake3"]), blocks["bytes"]
        count = -(-record["bytes"] // size)
        plain = os.path.basename(record["name"]) == record["name"] and record["name"] not in ("", ".", "..")
        fits = type(size) is int and size > 0 and len(digests) == count * _DIGEST and root_of(digests) == blocks["root"]
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        plain = fits = False
    if not plain or not fits:
        raise CorruptError("the digests of blocks in the receipt do not fit together", path=path)
    return record


def _count(record: Record) -> int:
    return len(record["blocks"]["blake3"]) // (2 * _DIGEST)


def _span(record: Record, block: int) -> tuple[int, int]:
    """Return the first byte of a block, and its size."""
    offset = block * record["blocks"]["bytes"]
    return offset, min(record["blocks"]["bytes"], record["bytes"] - offset)


def _digest(record: Record, block: int) -> str:
    return record["blocks"]["blake3"][2 * _DIGEST * block : 2 * _DIGEST * (block + 1)].lower()


def _tensors_in(receipt: Mapping[str, Any], number: int, start: int, stop: int) -> tuple[str, ...]:
    """Return the names of the tensors that lie between two bytes of a file, by the receipt."""
    tensors = receipt.get("tensors")
    found, first = [], stop
    for each in tensors if isinstance(tensors, list) else ():
        if not isinstance(each, Mapping) or each.get("file", 0) != number:
            continue
        offset, size = each.get("offset"), each.get("bytes")
        if isinstance(offset, int) and isinstance(size, int):
            first = min(first, offset)
            if offset < stop and offset + size > start:
                found.append(str(each.get("name")))
    return (*((HEADER,) if start < first else ()), *found)
