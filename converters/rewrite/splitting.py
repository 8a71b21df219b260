"""Cut a GGUF file into shards, join shards, and prove that shards and a whole file hold the same."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from ggferry.converters.metadata.file_names import shard_label
from ggferry.converters.rewrite.lineage import Lineage, begin
from ggferry.converters.rewrite.parts import Part, Stored, close, parse_parts
from ggferry.converters.rewrite.rewrite_output import NewFile, Wrote, digest_of, recovered, write
from ggferry.formats.errors import InconsistentError, UsageError, VerificationError
from ggferry.formats.files.digests import Digests
from ggferry.formats.files.opened_files import recorded
from ggferry.formats.gguf.header_layout import packed_key
from ggferry.formats.gguf.shards import (
    SET_DIGEST,
    SHARD_KEYS,
    SPLIT_KEYS,
    UNKNOWN_DIGEST,
    cut,
    shard_of,
    shortened,
    split_keys,
)
from ggferry.formats.gguf.values import ALIGNMENT_KEY, Value, string
from ggferry.support.progress import Phase, Stage, silent
from ggferry.support.threads import workers

MOST_TENSORS = 128
"""Tensors a shard where nothing is asked for: llama-gguf-split's number."""


@dataclass(frozen=True, slots=True)
class Cuts:
    """Where a file is cut.

    Attributes:
        tensors: Most tensors a shard; 0 for no limit.
        nbytes: Most bytes of tensors a shard; 0 for no limit.
        first: Whether the first shard holds tensors, and not the metadata alone.
    """

    tensors: int = 0
    nbytes: int = 0
    first: bool = True

    @property
    def with_default(self) -> Cuts:
        """The same, with the default where no limit is given."""
        return self if self.tensors or self.nbytes else replace(self, tensors=MOST_TENSORS)


def plan_split(parts: Sequence[Part], out: str | None, cuts: Cuts) -> list[NewFile]:
    """Return the shards of one GGUF file.

    Raises UsageError for what is split already, or where one shard would hold everything.
    """
    whole = parts[0]
    if len(parts) > 1:
        raise UsageError("split already", path=whole.file.path, found=f"{len(parts)} shards", hint="ggferry merge")
    cuts = cuts.with_default
    shards = cut(whole.tensors, lambda tensor: tensor.nbytes, cuts.tensors, cuts.nbytes, cuts.first)
    if len(shards) < 2:
        raise UsageError(
            "one shard would hold everything",
            path=whole.file.path,
            found=f"{len(whole.tensors)} tensors",
            hint="--split-max-tensors or --split-max-size, smaller",
        )
    stem = (whole.file.path if out is None else out).removesuffix(".gguf")
    return [
        NewFile(
            f"{stem}-{shard_label(number + 1, len(shards))}.gguf",
            _shard_keys(whole, number, len(shards)),
            tuple(tensors),
            whole,
        )
        for number, tensors in enumerate(shards)
    ]


def _shard_keys(whole: Part, number: int, count: int) -> dict[str, bytes]:
    """Return the keys of one shard: all in the first; in the others what its own layout needs."""
    kept = whole.keys if number == 0 else {k: raw for k, raw in whole.keys.items() if k == ALIGNMENT_KEY}
    split = {**split_keys(number, count, len(whole.tensors)), SET_DIGEST: string(UNKNOWN_DIGEST)}
    own = {key: packed_key(key, value, whole.version, whole.file.big_endian) for key, value in split.items()}
    return {key: raw for key, raw in kept.items() if key not in SHARD_KEYS} | own


def plan_merge(parts: Sequence[Part], out: str | None) -> NewFile:
    """Return the file that all shards together make. Raises UsageError for a file that is no shard."""
    first = parts[0]
    if len(parts) < 2 and "split.count" not in first.keys:
        raise UsageError("not a shard: nothing to merge", path=first.file.path)
    tensors = tuple(tensor for part in parts for tensor in part.tensors)
    keys = {key: raw for key, raw in first.keys.items() if key not in SHARD_KEYS}
    return NewFile(out or _whole_name(first.file.path), keys, tensors, first)


def _whole_name(path: str) -> str:
    name = shard_of(path)
    if name is None:
        raise UsageError("no output name", path=path, hint="--outfile FILE")
    return f"{name.stem}.gguf"


@dataclass(frozen=True, slots=True)
class Cutting:
    """What `split` or `merge` does, or did.

    Attributes:
        command: 'split' or 'merge'.
        read: Path and number of the files read.
        files: The files to write.
        notes: What a user should know.
    """

    command: str
    read: tuple[str, int]
    files: tuple[NewFile, ...]
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        return {
            "command": self.command,
            "files": [{"path": file.path, "tensors": len(file.tensors), "bytes": file.nbytes} for file in self.files],
            "notes": list(self.notes),
        }


def planned(command: str, parts: Sequence[Part], out: str | None, cuts: Cuts = Cuts()) -> Cutting:
    """Return what `split` or `merge` would do, without reading tensor data."""
    files = plan_split(parts, out, cuts) if command == "split" else [plan_merge(parts, out)]
    notes = [note for part in parts for note in part.file.notes]
    if parts[0].version == 1:
        notes.append("GGUF v1 stays v1, which llama.cpp does not read; ggferry convert writes v3")
    if command == "split" and any(key in parts[0].keys for key in SPLIT_KEYS):
        notes.append("split.* keys of the source are replaced, and a merge removes them")
    return Cutting(command, (parts[0].file.path, len(parts)), tuple(files), tuple(dict.fromkeys(notes)))


def plan(command: str, path: str, out: str | None = None, cuts: Cuts = Cuts()) -> Cutting:
    """Return what `split` or `merge` of a path would do. Raises as `carry_out` before it writes."""
    parts = parse_parts(path)
    try:
        return planned(command, parts, out, cuts)
    finally:
        close(parts)


def carry_out(
    command: str, path: str, out: str | None = None, cuts: Cuts = Cuts(), *, force: bool = False, stage: Stage = silent
) -> tuple[Cutting, Wrote]:
    """Split or merge, prove the result and publish it. Raises one of `formats.errors`; then nothing is left."""
    recovered(path)
    with recorded() as opened, ExitStack() as stack:
        parts = parse_parts(path)
        stack.callback(close, parts)
        cutting = planned(command, parts, out, cuts)
        digests = stack.enter_context(Digests(workers()))
        lineage = begin([part.source for part in parts], digests)
        done = {"files": [os.path.basename(file.path) for file in cutting.files]}
        tied = _tied(parts, lineage) if command == "merge" else _Tie()
        wrote = write(
            cutting.files,
            lineage,
            digests,
            opened,
            command=command,
            done=done,
            stage=stage,
            force=force,
            digested=tied.check,
            strict=command == "merge",
        )
        return cutting, replace(wrote, notes=(*wrote.notes, *tied.notes))


@dataclass(frozen=True, slots=True)
class _Tie:
    """What shows that shards are of one model.

    Attributes:
        declared: The digest of the set that every shard holds; '' where none does.
        path: The first shard.
        notes: What a user should know.
    """

    declared: str = ""
    path: str = ""
    notes: tuple[str, ...] = ()

    def check(self, digest: str) -> None:
        """Raise InconsistentError where the data of the shards is not that of their set."""
        if self.declared and digest != self.declared:
            raise InconsistentError(
                "the shards do not hold the data that their set was cut from",
                path=self.path,
                found=digest,
                expected=self.declared,
                hint="fetch the shards again",
            )


def _tied(parts: Sequence[Part], lineage: Lineage) -> _Tie:
    """Return what ties shards together: a digest in each of them (the reader compares these), or their receipt."""
    path = parts[0].file.path
    declared = parts[0].metadata.get(SET_DIGEST)
    if declared is not None:
        return _Tie(str(declared.data), path)
    nothing = "nothing ties these shards together, neither a digest of the whole nor a receipt: only their names do"
    return _Tie("", path, () if lineage.receipt else (nothing,))


def check(shards: str, whole: str, stage: Stage = silent) -> tuple[int, int]:
    """Prove that shards hold what a whole file holds: every key and every byte of every tensor.

    Returns:
        The number of shards and of tensors.

    Raises:
        VerificationError: They differ; the message names the first difference.
        UsageError: The first is no shard, or the second no whole file.
    """
    with ExitStack() as stack:
        parts, entire = parse_parts(shards), parse_parts(whole)
        stack.callback(close, [*parts, *entire])
        if len(entire) > 1:
            raise UsageError("not a whole file", path=whole, found=f"{len(entire)} shards")
        file = plan_merge(parts, whole)
        _same_keys(parts[0].metadata, entire[0].metadata, parts[0].file.path)
        there = {tensor.name: tensor for tensor in entire[0].tensors}
        _same_tensors(file.tensors, there, parts[0].file.path)
        with stage(Phase.VERIFYING, 2 * sum(tensor.nbytes for tensor in file.tensors)) as progress:
            for tensor in file.tensors:
                other = there[tensor.name]
                if digest_of(tensor.source, tensor.offset, tensor.nbytes, progress) != digest_of(
                    other.source, other.offset, other.nbytes, progress
                ):
                    raise VerificationError(f"tensor {tensor.name!r}: bytes differ", path=tensor.source.path)
        return len(parts), len(file.tensors)


def _same_keys(ours: Mapping[str, Value], theirs: Mapping[str, Value], path: str) -> None:
    wrong = [key for key in {**ours, **theirs} if key not in SHARD_KEYS and ours.get(key) != theirs.get(key)]
    if wrong:
        raise VerificationError("keys differ", path=path, found=shortened(wrong))


def _same_tensors(ours: Sequence[Stored], theirs: Mapping[str, Stored], path: str) -> None:
    missing = [name for name in theirs if name not in {tensor.name for tensor in ours}]
    if missing:
        raise VerificationError("tensors missing", path=path, found=shortened(missing))
    for tensor in ours:
        other = theirs.get(tensor.name)
        if other is None or other.facts != tensor.facts:
            expected = "nothing" if other is None else other.facts
            raise VerificationError("a tensor differs", path=path, found=tensor.facts, expected=expected)
