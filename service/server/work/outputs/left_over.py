"""What ended servers left in a store: partial objects, multipart uploads, outputs of jobs that ended otherwise.

Whoever takes a job up again removes what its earlier holders left (`publish.prepare`). This is for the jobs that nobody
takes up: cancelled, deleted, failed. A prefix belongs to one ledger; other ledgers' partials stay until they are old.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ggferry.converters.metadata.beside import FOLDER_RECEIPT, MMPROJ, RECEIPT
from ggferry.formats.errors import NotFoundError
from ggferry.service.records.ledger import DONE, HELD, QUEUED
from ggferry.service.records.plan_file import outputs_of
from ggferry.service.records.receipts import files_kept
from ggferry.service.server.settings import DAY
from ggferry.service.server.store.database import Store
from ggferry.service.storage.backends import s3
from ggferry.service.storage.publish import STALE, Partial, mark_of_upload, parse_partial
from ggferry.service.storage.stores import remove
from ggferry.support.heavy import sa

UNKNOWN = DAY  # age at which what no job in the ledger explains goes: an edit enters its job at its end


def sweep_store(store: Store, url: str, mark: str) -> list[str]:
    """Remove what nobody is working on below `url`, and return its names.

    The store is listed before the ledger is asked: who writes an object that is listed has claimed its job before.
    """
    begun = [*s3.begun_like(f"{url}/")]
    partials, bare = _listed(url)
    ledger = _Jobs(store, mark)
    gone = [each for each in partials if ledger.is_over(partials[each])]
    for name in gone:
        _remove(name)
    live = {each.copy for name, each in partials.items() if name not in gone}
    over = {partials[name].copy for name in gone}
    for each in begun:
        partial = parse_partial(each.url)
        if partial is not None and ledger.is_over(partial):
            over.add(partial.copy)
        elif partial is not None:
            live.add(partial.copy)
    for each in begun:
        partial = parse_partial(each.url)
        copy = mark_of_upload(each.upload)
        if ledger.is_over(partial) if partial is not None else copy in over or (copy not in live and ledger.left(each)):
            s3.abort(s3.Copying(each.url, each.upload))
            gone.append(each.url)
    for name in ledger.unaccounted(bare):
        _remove(name)
        gone.append(name)
    return gone


def _listed(url: str) -> tuple[dict[str, Partial], set[str]]:
    """Return the partial objects below a URL, and what has no receipt beside it, or in its folder."""
    partials: dict[str, Partial] = {}
    bare: set[str] = set()
    whole: set[str] = set()
    with suppress(NotFoundError):  # nothing has been written there yet
        for found in s3.listing(url):
            partial = parse_partial(found.path)
            if partial is not None:
                partials[found.path] = partial
            elif found.path.endswith(f"/{FOLDER_RECEIPT}"):  # objects come in the order of names
                whole.add(found.path.removesuffix(FOLDER_RECEIPT))
            elif found.path.endswith(RECEIPT):
                bare.discard(found.path.removesuffix(RECEIPT))
            else:
                bare.add(found.path)
    return partials, {name for name in bare if name.rpartition("/")[0] + "/" not in whole}


def _remove(name: str) -> None:
    with suppress(NotFoundError):
        remove(name)


class _Jobs:
    """What the ledger says of objects."""

    def __init__(self, store: Store, mark: str) -> None:
        self._store, self._mark = store, mark
        self._folders: dict[str, list[Mapping[str, Any]]] = {}

    def is_over(self, partial: Partial) -> bool:
        """Return whether nobody writes a partial any more."""
        age, mark, jobs = time.time() - partial.begun, partial.writer.mark, self._store.jobs
        if not mark.startswith(self._mark):
            return age > STALE
        query = sa.select(jobs.c.state, jobs.c.claims).where(jobs.c.id.startswith(mark[len(self._mark) :]))
        rows = self._store.all(query)
        if not rows:
            return age > UNKNOWN
        return not any(row["state"] in HELD and row["claims"] == partial.writer.fence for row in rows)

    def left(self, begun: s3.Begun) -> bool:
        """Return whether a multipart upload of a final name that no partial goes with is nobody's any more."""
        rows = self._around(begun.url)
        if not rows:
            return time.time() - begun.at > UNKNOWN
        return not any(row["state"] in HELD for row in rows)

    def unaccounted(self, names: Iterable[str]) -> list[str]:
        """Return those of the objects that are outputs of jobs which ended without being done, and of no other."""
        found = []
        for name in sorted(names):
            rows = self._around(name)
            if any(row["state"] in (QUEUED, *HELD) for row in rows):
                continue
            last = name.rpartition("/")[2]
            done = [files_kept(row["receipt"]) for row in rows if row["state"] == DONE]
            if last in {file["name"] for files in done for file in files}:
                continue
            others = [outputs_of(row["entry"]) for row in rows if row["state"] != DONE]
            if any(name.rpartition("/")[0] in outputs or _is_of(last, outputs) for outputs in others):
                found.append(name)
        return found

    def _around(self, url: str) -> list[Mapping[str, Any]]:
        """Return the jobs whose outputs go to the folder of an object, or are that folder."""
        folder, jobs = url.rpartition("/")[0], self._store.jobs
        if folder not in self._folders:
            inside = jobs.c.output.startswith(f"{folder}/", autoescape=True)
            columns = (jobs.c.output, jobs.c.state, jobs.c.entry, jobs.c.receipt)
            rows = self._store.all(sa.select(*columns).where(inside | (jobs.c.output == folder)))
            self._folders[folder] = [
                row for row in rows if folder in (row["output"], str(row["output"]).rpartition("/")[0])
            ]
        return self._folders[folder]


def _is_of(name: str, outputs: Sequence[str]) -> bool:
    """Return whether a file is one that a job with these outputs makes: one of them, a shard of it, its mmproj file."""
    if name in [each.rpartition("/")[2] for each in outputs]:  # of whisper.cpp's
        return True
    stems = [re.escape(each.rpartition("/")[2].removesuffix(".gguf")) for each in outputs]
    return any(re.fullmatch(rf"({MMPROJ}-)?{stem}(-\d{{5}}-of-\d{{5}})?\.gguf", name) for stem in stems)
