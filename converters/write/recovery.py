"""Finish what a run that was killed while it published has left behind.

A publication that changes several names has written down how to go on (`publication`). One of a single new output has
not: there outputs get their names first, the receipt last, and a kill in between leaves the complete receipt under its
partial's name. If every file that it lists is there with exactly the bytes it states, the publication is finished. Any
other file is left alone and never gets that receipt.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack, suppress

from ggferry.converters.metadata.beside import MAX_RECEIPT, RECEIPT
from ggferry.formats.errors import GgferryError
from ggferry.formats.files.digests import digest
from ggferry.formats.files.partial_files import claim, claimed_only, name_new, sync_folder
from ggferry.formats.files.partial_names import Leftovers, leftovers
from ggferry.formats.files.publication import Outcome, resolve
from ggferry.formats.files.sources import LocalFile
from ggferry.formats.json_files.text import load_object

Files = dict[str, tuple[int, str]]
"""Path → bytes and BLAKE3, as a receipt states them."""


def recover(out: str) -> Outcome | None:
    """Finish, or undo, what a killed run began to publish as `out`.

    Returns:
        What was done; None where there was nothing to do.

    Raises:
        BusyError: Another writer is at work on it.
        RefusedError: Another file has taken its place since.
    """
    folder, receipt = os.path.dirname(out), out + RECEIPT
    if not os.path.isdir(folder or os.curdir):
        return None
    found = leftovers(folder)
    outcome = resolve(out, found)
    left = (leftovers(folder) if outcome else found).of(receipt)
    if left:
        files = {name: None for path in left for name in files_of(path, out) or ()}
        with ExitStack() as stack:
            held = [stack.enter_context(partial) for partial in claim([*{**files, out: None, receipt: None}])]
            outcome = "finished" if finish_new(out) else outcome
            for partial in held:
                partial.sweep()
    return outcome


def finish_new(out: str) -> bool:
    """Give a new output the names that lack, for the holder of the claims; return whether that was done."""
    left, receipt = leftovers(os.path.dirname(out)), out + RECEIPT
    if os.path.lexists(receipt):
        return False
    for path in left.of(receipt):
        files = files_of(path, out)
        if files is not None and _finish({**_found(files, left), receipt: path}):
            return True
    return False


def files_of(path: str, out: str) -> Files | None:
    """Return what the receipt at `path` states about the files of output `out`.

    None where it is no receipt of ours, or the receipt of another output.
    """
    try:
        receipt = load_object(path, MAX_RECEIPT)
        records = [(str(r["name"]), int(r["bytes"]), str(r["blake3"])) for r in receipt["output"]["files"]]
        ours = isinstance(receipt["ggferry"], str) and isinstance(receipt["format"], int)
    except (GgferryError, KeyError, TypeError, ValueError):
        return None
    if not ours or not records or records[0][0] != os.path.basename(out):
        return None
    folder = os.path.dirname(out)
    return {os.path.join(folder, os.path.basename(name)): (size, blake3) for name, size, blake3 in records}


def _found(files: Files, left: Leftovers) -> dict[str, str | None]:
    """Return where each file of a receipt is now, or None; the file that gets its name last comes last.

    An empty result means that none of them has its name: then nothing was published, and the conversion is run again.
    """
    if not any(map(os.path.lexists, files)):
        return {}
    places = {target: left.of(target) if _is_free(target) else [target] for target in reversed(files)}
    return {target: next((p for p in places[target] if _is(p, *files[target])), None) for target in reversed(files)}


def _is_free(target: str) -> bool:
    """Return whether a name is free, or was only claimed (`partial_files.name_new`)."""
    return not os.path.lexists(target) or claimed_only(target)


def _finish(places: Mapping[str, str | None]) -> bool:
    """Give every file its name, in this order; return whether all of them were there."""
    if len(places) < 2 or None in places.values():
        return False
    for target, path in places.items():
        if path is not None and path != target:
            with suppress(FileExistsError):
                if os.path.lexists(target):  # empty: the name was claimed, where there is no better way
                    os.replace(path, target)
                else:
                    name_new(path, target)
    sync_folder(next(iter(places)))
    return True


def _is(path: str, size: int, blake3: str) -> bool:
    try:
        with LocalFile(path) as file:
            return file.size == size and digest(file) == blake3
    except GgferryError:
        return False
