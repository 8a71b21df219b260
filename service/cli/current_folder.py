"""What `ggferry` without a command shows of the folder it stands in: the models there, and a command for each."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator

from ggferry.formats.errors import GgferryError
from ggferry.formats.files.local_files import Named, read_start
from ggferry.formats.gguf.shards import ShardName, shard_of
from ggferry.formats.reader import Kind, find_reader, kind_of, label_of, model_suffixes

MOST_ENTRIES, MOST_SHOWN = 1000, 5
PLAN_SUFFIX, PLAN_KEY = ".jsonl", b'{"ggferry_plan"'


def suggestions(folder: str = os.curdir) -> list[str]:
    """Return lines that name the models of a folder and what can be done with them; none where there are none.

    Only first bytes are read. The names are as they are in the file system: whoever prints the lines escapes them.
    """
    found = [*_here(folder)]
    lines = [f"  {what:<34} {command}" for what, command in found[:MOST_SHOWN]]
    if len(found) > 1:
        lines.append(f"  {f'all {len(found)} of them, as an archive':<34} ggferry plan . -o plan.jsonl --dest OUT")
    return ["", "In this folder:", *lines] if lines else []


def _here(folder: str) -> Iterator[tuple[str, str]]:
    """Yield what there is, in words, and a command for it: the folder itself where it is a checkpoint, or its files."""
    if (kind := _kind(folder)) is not None:
        yield f"this folder: {kind[1]}", _command(kind[0], os.curdir)
        return
    for name in _names(folder):
        path = os.path.join(folder, name)
        if os.path.isdir(path):
            if (kind := _kind(path)) is not None:
                yield f"{name}/: {kind[1]}", _command(kind[0], name)
        elif name.endswith(PLAN_SUFFIX):
            if _is_plan(path):
                yield f"{name}: a migration plan", f"ggferry apply {shlex.quote(name)}"
        elif name.lower().endswith(model_suffixes()) and (kind := _kind(path)) is not None:
            yield f"{name}: {kind[1]}", _command(kind[0], name)


def _names(folder: str) -> list[str]:
    """Return names in the folder, sorted, of sets of shards the first."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry, _ in zip(entries, range(MOST_ENTRIES), strict=False))
    except OSError:
        return []
    sets: set[ShardName] = set()
    kept = []
    for name in names:
        shard = shard_of(name)
        if not name.startswith(".") and shard not in sets:
            kept.append(name)
        if shard is not None:
            sets.add(shard)
    return kept


def _kind(path: str) -> tuple[str, str] | None:
    """Return a container and its name for people; None for what no reader claims, and for what cannot be opened."""
    try:
        _, match = find_reader(path)
    except (GgferryError, OSError):
        return None
    return match.container, label_of(match.container)


def _command(container: str, name: str) -> str:
    quoted = shlex.quote(name)
    if container == "gguf":
        shard = shard_of(name)
        stem = name.removesuffix(".gguf") if shard is None else shard.stem
        out = shlex.quote(f"{stem}-Q4_K_M.gguf")
        return f"ggferry quantize {quoted} {out} q4_k_m"
    if kind_of(container) is Kind.TRAINING:
        return f"ggferry convert {quoted} --outtype q4_k_m"
    return f"ggferry convert {quoted}"


def _is_plan(path: str) -> bool:
    try:
        return PLAN_KEY in read_start(Named(path), len(PLAN_KEY))
    except (GgferryError, OSError):
        return False
