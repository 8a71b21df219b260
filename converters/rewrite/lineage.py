"""The receipt of a file that is written again: it goes on with what was done, or it is said that it no longer fits."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ggferry.converters.metadata.beside import MAX_RECEIPT, RECEIPT
from ggferry.formats.errors import GgferryError, InconsistentError
from ggferry.formats.files.digests import Digests, Record, Taken
from ggferry.formats.files.local_files import Named, read_bytes
from ggferry.formats.files.sources import Source
from ggferry.formats.json_files.parse import parse_json
from ggferry.support.records import dataclass

FILLER = "ggferry.filler"
"""A key that takes the room of what was removed, so that no tensor data has to move."""
EDITS = "edits"
"""The list of a receipt that says what was done to the output after it was proved."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """The receipt beside a model that is written again.

    Attributes:
        receipt: The receipt; None where there is none that can be read.
        records: Functions that return what the files are, once they have been read.
        notes: What a user should know of it.
    """

    receipt: Mapping[str, Any] | None = None
    records: tuple[Taken, ...] = ()
    notes: tuple[str, ...] = ()


def begin(files: Sequence[Source], digests: Digests) -> Lineage:
    """Read the receipt beside the first of `files`, if there is one, and begin to digest them."""
    path = files[0].path + RECEIPT
    if not os.path.lexists(path):
        return Lineage()
    receipt = load(path)
    if receipt is None:
        return Lineage(notes=(f"{os.path.basename(path)} is no receipt of ggferry: it was not carried on",))
    return Lineage(receipt, tuple(digests.begin(files, beside=1)))


def load(path: str) -> dict[str, Any] | None:
    """Return a receipt that states its output's files; None where there is no file, or one of something else.

    Raises what keeps a file from being read: a proof that may be there is not dropped without a word.
    """
    if not os.path.lexists(path):
        return None
    try:
        receipt = parse_json(read_bytes(Named(path), MAX_RECEIPT), path)
    except GgferryError as error:
        error.hint = f"restore the receipt, or move it away: {os.path.basename(path)}"
        raise
    try:
        known = isinstance(receipt["ggferry"], str) and _digests(receipt["output"]["files"]) is not None
    except (KeyError, TypeError):
        return None
    return receipt if known and isinstance(receipt.get(EDITS, []), list) else None


def carried_on(
    lineage: Lineage, written: Sequence[Record], command: str, done: Mapping[str, Any], *, strict: bool = False
) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    """Return the receipt of the files written, and notes; None for the receipt where there is none to carry on.

    Args:
        lineage: The receipt of the files that were read.
        written: What the new files are.
        command: Which command wrote them.
        done: What it did.
        strict: Whether a receipt of other bytes is an error: InconsistentError.
    """
    if lineage.receipt is None:
        return None, lineage.notes
    before = [take() for take in lineage.records]
    if not fits(lineage.receipt, before):
        if strict:
            raise _other_bytes(lineage.receipt, before)
        note = "the receipt beside the source was not written for these bytes: the new file has none"
        return None, (*lineage.notes, note)
    return with_edit(lineage.receipt, before, written, command, done), lineage.notes


def _other_bytes(receipt: Mapping[str, Any], files: Sequence[Record]) -> InconsistentError:
    declared = _digests(receipt["output"]["files"]) or []
    strange = [str(file["name"]) for file in files if str(file["blake3"]) not in declared]
    return InconsistentError(
        "not what the receipt beside the first shard describes",
        path=strange[0] if strange else str(files[0]["name"]),
        found=f"{len(strange)} of {len(files)} files with other bytes",
        hint="fetch the shards again, or move the receipt away if one was edited",
    )


def fits(receipt: Mapping[str, Any], files: Sequence[Record]) -> bool:
    """Return whether a receipt was written for files of these digests."""
    return _digests(receipt["output"]["files"]) == [str(file["blake3"]) for file in files]


def with_edit(
    receipt: Mapping[str, Any], before: Sequence[Record], after: Sequence[Record], command: str, done: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the receipt of files that were made of those it was written for."""
    step = {"command": command, "from": list(before), **done}
    output = {**receipt["output"], "files": list(after)}
    return {**receipt, "output": output, EDITS: [*receipt.get(EDITS, []), step]}


def _digests(records: Any) -> list[str] | None:
    try:
        return [str(record["blake3"]) for record in records] or None
    except (TypeError, KeyError):
        return None


def edited_keys(receipt: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the keys that were edited after the conversion, as a receipt that goes on says; the filler among them."""
    steps = receipt.get(EDITS, ())
    found = [step.get("keys", {}) for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []
    keys = [key for each in found if isinstance(each, dict) for key in each]
    return (*dict.fromkeys(keys), FILLER) if found and keys else ()
