"""What `--delete-source` deletes: it is listed file by file before anything is done, and nothing else is deleted."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ggferry.converters.conversion.options import LEVELS
from ggferry.formats.errors import ChangedError, RefusedError, VerificationError
from ggferry.formats.files.digests import digest
from ggferry.formats.files.sources import LocalFile
from ggferry.service.records.plan_file import CONVERT, Entry, Head
from ggferry.service.records.receipts import receipts_of
from ggferry.service.storage import stores
from ggferry.service.storage.publish import object_digest
from ggferry.service.storage.stores import Found, is_remote
from ggferry.service.workers.existing_output import not_intact, unproved

DESPITE = "--delete-despite-drops"
SHOWN = 10  # files that a question names; --dry-run names all


@dataclass(frozen=True, slots=True)
class Deletion:
    """What a run will delete.

    Attributes:
        entries: By job, the plan's lines whose weights are deleted once their outputs are proved.
        spared: Sources that stay, with the reason.
    """

    entries: Mapping[str, Entry] = field(default_factory=dict)
    spared: Mapping[str, str] = field(default_factory=dict)

    @property
    def files(self) -> tuple[Found, ...]:
        """The files that will be deleted."""
        return tuple(each for entry in self.entries.values() for each in entry.files)

    def lines(self, shown: int | None = SHOWN) -> Iterator[str]:
        """Yield what is deleted and what stays, for a person; at most `shown` of each, None: all."""
        files = self.files
        yield from _some([f"  delete  {each.path}  {each.bytes:,} bytes" for each in files], shown)
        yield from _some([f"  keep    {source}: {why}" for source, why in self.spared.items()], shown)
        total = sum(each.bytes for each in files)
        yield f"{len(files)} files to delete, {total:,} bytes, each once its output is proved"


def _some(lines: Sequence[str], shown: int | None) -> Iterator[str]:
    yield from lines[:shown]
    if shown is not None and len(lines) > shown:
        yield f"  {'':7} and {len(lines) - shown} more (--dry-run names them)"


def require_proofs(plan: str, head: Head, entries: Iterable[Entry]) -> None:
    """Raise RefusedError when a line to convert asks for no proof: nothing is deleted without one."""
    for entry in entries:
        if entry.verdict == CONVERT and entry.recipe(head)["verify"] == LEVELS[0]:
            raise RefusedError(
                "--delete-source needs a proof, and the plan asks for none (verify: none)",
                path=plan,
                found=entry.source,
                hint="plan with --verify full or fast, or set the line to skip",
            )


def choose(
    entries: Mapping[str, Entry], left: Iterable[str], done: Mapping[str, Mapping[str, Any]], despite: bool
) -> Deletion:
    """Decide which sources may be deleted.

    Args:
        entries: The plan's lines, by job.
        left: The jobs that are still to be done.
        done: Rows of the ledger, with receipts, of jobs that are done and whose line still says convert.
        despite: Whether sources of which the output holds less may be deleted, too.

    Returns:
        What will be deleted, and what stays and why.
    """
    chosen: dict[str, Entry] = {}
    spared: dict[str, str] = {}
    for job in (*left, *done):
        entry = entries.get(job)
        if entry is None or entry.verdict != CONVERT:
            continue
        level = str(done[job]["entry"]["recipe"]["verify"]) if job in done else ""
        why = _unproved(receipts_of(done[job]["receipt"]), level) if job in done else None
        why = why or _unpinned(entry) or (None if despite else _lossy(entry, done.get(job)))
        if why is None:
            chosen[job] = entry
        else:
            spared[entry.source] = why
    for job, other in _shared(entries, chosen):
        spared[chosen.pop(job).source] = f"the line of {other} has the same file"
    return Deletion({job: _there(entry) if job in done else entry for job, entry in chosen.items()}, spared)


def _unproved(receipts: Sequence[Mapping[str, Any]], level: str) -> str | None:
    """Return why the receipts of a job's outputs are no proof of `level`; None when all of them are."""
    if not receipts:
        return "its output has no receipt"
    return next((why for receipt in receipts if (why := unproved(receipt, level))), None)


def _unpinned(entry: Entry) -> str | None:
    """Return why the source cannot be shown to be what was converted; None where its version shows it."""
    return None if stores.unpinned(entry.files) is None else "its place states no version: a change could not be told"


def _there(entry: Entry) -> Entry:
    """Return the entry with those of its files that still exist."""
    return replace(entry, files=tuple(each for each in entry.files if stores.exists(each.path)))


def _lossy(entry: Entry, row: Mapping[str, Any] | None) -> str | None:
    lost = [str(loss.get("reason")) for loss in entry.lost]
    if row is not None:
        dropped = (drop for receipt in receipts_of(row["receipt"]) for drop in receipt.get("dropped", ()))
        lost = [str(drop.get("reason")) for drop in dropped if drop.get("loses", True)]
    return f"its output does not hold all of it ({lost[0]}); {DESPITE} deletes it all the same" if lost else None


def _shared(entries: Mapping[str, Entry], chosen: Iterable[str]) -> list[tuple[str, str]]:
    """Return the `chosen` jobs that share a file with another line of the plan, each with that line's source.

    A link in another line counts as the file it leads to; of a chosen link, only the name itself would be deleted.
    """
    needed: dict[str, dict[str, str]] = {}
    for job, entry in entries.items():
        for each in (*entry.files, *entry.beside):
            for name in {each.path} if is_remote(each.path) else {each.path, os.path.realpath(each.path)}:
                needed.setdefault(name, {})[job] = entry.source
    found = []
    for job in chosen:
        names = {n for each in entries[job].files for n in _names(each.path)}
        if other := next((who for name in names for by, who in needed[name].items() if by != job), None):
            found.append((job, other))
    return found


def _names(path: str) -> tuple[str, ...]:
    return (path,) if is_remote(path) or os.path.islink(path) else (path, os.path.realpath(path))


def delete(
    entry: Entry, recipe: Mapping[str, Any], receipt: Mapping[str, Any], despite: bool, scratch: str
) -> list[str]:
    """Delete the weights of a finished job, and return their paths.

    They are deleted only when the proof is the one that was asked for, every output, read again, is what was proved,
    and the source is what was converted. Sidecar files (tokenizers, configurations, cards) and duplicates stay.
    `receipt` is as the ledger keeps it. Raises GgferryError; the source is then still there.
    """
    row, receipts = {"receipt": receipt}, receipts_of(receipt)
    why = _unproved(receipts, str(recipe["verify"])) or _unpinned(entry)
    if why := why or (None if despite else _lossy(entry, row)):
        raise VerificationError(f"the source stays: {why}", path=entry.source)
    if odd := not_intact(entry.outputs, receipt, scratch):
        raise VerificationError("the output is not what was proved; its source stays", path=odd)
    there = [each.path for each in entry.files if stores.exists(each.path)]
    expected = {record["blake3"] for record in receipt["source"]["files"]}
    for path in there:
        before = stores.stat(path)
        if _digest(path, scratch) not in expected:
            raise VerificationError("the source is not what was converted; it stays", path=path)
        if stores.stat(path) != before:
            raise ChangedError("the source changed while it was read; it stays", path=path)
    versions = {each.path: each.version for each in entry.files}
    for path in there:
        stores.remove(path, versions[path])
    return there


def _digest(path: str, scratch: str) -> str:
    if is_remote(path):
        return object_digest(path, scratch)
    with LocalFile(path) as file:
        return digest(file)
