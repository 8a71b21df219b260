"""The files of done jobs: opened only when they are what the receipt proved, with their sha256.

A job that was skipped because another did the same has the files of that one.
Receipts hold BLAKE3 (docs/decisions/digest.md). A client checks what it fetched by SHA-256, which every machine has, so
both are computed in one pass over the finished file: the first must be the receipt's, the second is kept beside it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from ggferry.converters.metadata.beside import MAX_RECEIPT, RECEIPT, is_folder
from ggferry.formats.errors import ChangedError, NotFoundError, RefusedError
from ggferry.service.records.fields import TriedRow
from ggferry.service.records.ledger import DONE, SKIPPED
from ggferry.service.records.plan_file import digest_of
from ggferry.service.records.receipts import OWN, files_kept, kept, place_of, receipt_of, receipts_of
from ggferry.service.server.settings import Settings
from ggferry.service.server.store.database import Store
from ggferry.service.server.work.outputs.left_over import sweep_store
from ggferry.service.server.work.outputs.readers import OutputReader, open_reader
from ggferry.service.server.work.outputs.tar_reader import Member, TarReader
from ggferry.service.server.work.sources import is_within
from ggferry.service.storage import stores
from ggferry.service.storage.backends import s3
from ggferry.service.storage.publish import Writer, publish_all, sweep
from ggferry.service.storage.retry import retrying_within
from ggferry.service.storage.stores import is_remote, join, split
from ggferry.support.heavy import sa

if TYPE_CHECKING:
    from ggferry.converters.metadata.receipt_fields import FileRecord, KeptReceipts, OutputRecord, Receipt

PIECE = 4 << 20
ANSWER = 5.0  # seconds for which a store in trouble is asked again while somebody waits
LAST = 1 << 62
"""A fence above all others: whoever held the job, nobody does any more."""


@dataclass(frozen=True, slots=True)
class OutputDigests:
    """A file of a done job with its digests in hex; `sha256` is "" until it was computed."""

    name: str
    bytes: int
    sha256: str
    blake3: str


@dataclass(frozen=True, slots=True)
class Output(OutputDigests):
    """A file of a done job, and the path to download it from this server."""

    url: str


@dataclass(frozen=True, slots=True)
class OutputFile(OutputDigests):
    """A file of a done job, and where it is: a path of this machine or the URL of an object.

    `stamp` changes whenever its bytes may have (`readers.OutputReader`).
    """

    path: str
    stamp: str = ""


class Outputs:
    """Finds the files of done jobs where the settings say that outputs are, on this machine or in a store.

    `mark`: of the ledger, in the names of partial uploads.
    """

    def __init__(self, store: Store, settings: Settings, mark: str) -> None:
        self.store, self.settings, self.mark = store, settings, mark

    def receipt(self, job: str, file: str | None = None) -> KeptReceipts:
        """Return the receipt of a job's output, with the sha256 of each file.

        Of several outputs that of the first, with the others in its member `further`; with `file`, that of the output
        which this file belongs to, alone. Raises RefusedError before the job is done, NotFoundError.
        """
        found = cast("KeptReceipts", self._maker(job)["receipt"])
        files = {each.name: each.sha256 for each in self.every(job)}
        chosen = receipts_of(found) if file is None else [receipt_of(found, file)]
        own: FileRecord | None = cast("Mapping[str, Any]", found).get(OWN)
        if own is not None:
            own = {**own, "sha256": files[own["name"]]}
        return kept([_with_sha256(each, files) for each in chosen], own)

    def every(self, job: str) -> list[OutputFile]:
        """Return the files of a done job. Raises RefusedError, and ChangedError where one is not what was proved."""
        row = self._maker(job)
        with retrying_within(ANSWER):
            return [self._file(row, number, each) for number, each in enumerate(_files(row))]

    def open(self, job: str, name: str) -> tuple[OutputReader, OutputFile]:
        """Return a reader of a file of a done job, and its facts. Raises as `every`, and NotFoundError."""
        row = self._maker(job)
        for number, each in enumerate(_files(row)):
            if each["name"] == name:
                with retrying_within(ANSWER):
                    found = self._file(row, number, each)
                    reader = self._open(found.path)
                if reader.size != found.bytes:
                    reader.close()
                    raise ChangedError("not the file that was proved", path=found.path)
                return reader, found
        raise NotFoundError("the job made no such file", found=name)

    def open_archive(self, job: str) -> tuple[TarReader, OutputFile]:
        """Return a reader of the folder that a done job made, as a tar file, and its facts. Raises as `every`.

        Its digest is one of the names and digests in it. Raises RefusedError for a job whose output is no folder.
        """
        row = self._maker(job)
        if not is_folder(cast("KeptReceipts", row["receipt"])):
            raise RefusedError("the job made no folder", hint="download its files one by one")
        with retrying_within(ANSWER):
            files = [self._file(row, number, each) for number, each in enumerate(_files(row))]
        members = [Member(each.name, each.bytes, each.blake3, each.path, each.stamp) for each in files]
        name = split(str(row["output"]))[1]
        return TarReader(name, members, self._open), OutputFile(
            f"{name}.tar", 0, "", digest_of([name, [(each.name, each.blake3) for each in files]]), str(row["output"])
        )

    def fetch(self, job: str, folder: str, files: Sequence[FileRecord]) -> list[str]:
        """Write some files of a done job, and their receipts, to a folder of this machine; return the files' paths.

        Raises ChangedError for a file that is not the one that was proved.
        """
        row, paths = self._maker(job), []
        for each in files:
            path = os.path.join(folder, each["name"])
            with closing(self._open(beside(row, each["name"]))) as reader, open(path, "xb") as out:
                self._digested(reader, each, out.write)
            paths.append(path)
            with suppress(NotFoundError):
                receipt = stores.read_whole(beside(row, each["name"] + RECEIPT), MAX_RECEIPT)
                with open(path + RECEIPT, "xb") as out:
                    out.write(receipt)
        return paths

    def publish(self, job: str, url: str, receipt: Mapping[str, Any], folder: str, scratch: str) -> None:
        """Put a finished output with its receipt, from a folder of this machine, into the store."""
        publish_all({url: receipt}, folder, scratch, Writer(self._mark_of(job)), lambda: None, lambda count: None)

    def _mark_of(self, job: str) -> str:
        return f"{self.mark}{job[:12]}"

    def remove(self, job: str) -> None:
        """Remove the files of a done job with their receipts, and the folders that are empty then.

        A file that another job has made again since stays. In a store, what an upload of this job left is ended, too.
        """
        row = self._row(job)
        jobs, output = self.store.jobs, str(row["output"])
        made = (jobs.c.output == output) & (jobs.c.id != job) & (jobs.c.state == DONE)
        if self.store.first(sa.select(jobs.c.id).where(made)) is not None:
            return
        names = [each["name"] for each in _files(row)]
        if not is_folder(row["receipt"] or {}):
            names += [each + RECEIPT for each in names]
        if is_remote(output):
            self._check_place(output)
            self._remove_objects(job, row, names)
        else:
            self._remove_files(place_of(output, row["receipt"] or {}), names)

    def _remove_files(self, folder: str, names: Sequence[str]) -> None:
        top = self.settings.output_folder
        if is_within(folder, top) and os.path.realpath(folder) == folder:
            for name in reversed(names):  # a receipt first: what is left is no finished output
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(folder, os.path.basename(name)))
            with suppress(OSError):
                while folder != top:
                    os.rmdir(folder)
                    folder = os.path.dirname(folder)

    def _remove_objects(self, job: str, row: Mapping[str, Any], names: Sequence[str]) -> None:
        """Remove objects, the receipts last: an object that stays behind is known by its receipt."""
        writer = Writer(self._mark_of(job), LAST)
        for name in names:
            sweep(beside(row, name), writer)
        for name in names:
            with suppress(NotFoundError):
                stores.remove(beside(row, name))

    def clear(self, job: str) -> None:
        """Remove what an ended server left in the store of a job that is not done: its record is about to go."""
        output = self.store.row(job)["output"]
        if output is not None and is_remote(output) and is_within(output, self.settings.outputs):
            with retrying_within(ANSWER):
                sweep_store(self.store, output.rpartition("/")[0], self.mark)

    def check(self) -> None:
        """Try whether the store of the outputs may be written and deleted in; on a disk that is known already.

        Raises AccessError, NotFoundError for a bucket that is not there, and UnreachableError.
        """
        url = self.settings.outputs
        if is_remote(url):
            s3.conditional(f"{url}/.ggferry-{os.urandom(6).hex()}.partial")

    def sweep(self) -> list[str]:
        """Remove what ended servers left in the store of the outputs, and return its names; on a disk there is none."""
        url = self.settings.outputs
        return sweep_store(self.store, url, self.mark) if is_remote(url) else []

    def _maker(self, job: str) -> TriedRow:
        """Return the row of the job that made the files: this one, or one of equal content for which it was skipped.

        Raises RefusedError and NotFoundError.
        """
        row = self.store.row(job)
        return self._row(row["same_as"] if row["state"] == SKIPPED and row["same_as"] else job)

    def _row(self, job: str) -> TriedRow:
        row = self.store.row(job)
        if row["state"] != DONE or row["receipt"] is None:
            raise RefusedError("the job is not done", found=row["state"], expected=DONE)
        return row

    def _open(self, path: str) -> OutputReader:
        self._check_place(path)
        return open_reader(path, self.settings.output_folder)

    def _check_place(self, path: str) -> None:
        """Raise RefusedError for an object that is not below this server's own destination."""
        if is_remote(path) and not is_within(path, self.settings.outputs):
            hint = "fetch it from there, or start the server with --dest of that store"
            raise RefusedError("the output is in another store", path=path, hint=hint)

    def _file(self, row: TriedRow, number: int, record: FileRecord) -> OutputFile:
        """Return a file's facts, from what is kept of it if it has not been touched since."""
        job = row["id"]
        path, table = beside(row, record["name"]), self.store.t.outputs
        kept = self.store.first(sa.select(table).where(table.c.job == job, table.c.file == number))
        with closing(self._open(path)) as reader:
            stamp = reader.stamp
            if kept is None or not stamp or kept["stamp"] != stamp or kept["blake3"] != record["blake3"]:
                kept = self._digested(reader, record) | {"stamp": stamp}
                values = {"path": path, "bytes": record["bytes"], **kept}
                insert = self.store._insert(table).values(job=job, file=number, **values)
                change = insert.on_conflict_do_update(index_elements=["job", "file"], set_=values)
                self.store.do(lambda connection: connection.execute(change))
        return OutputFile(record["name"], record["bytes"], kept["sha256"], record["blake3"], path, stamp)

    def _digested(
        self, reader: OutputReader, record: FileRecord, also: Callable[[bytes], object] = lambda piece: None
    ) -> dict[str, str]:
        """Return the digests of a file, each piece of which `also` gets. Raises ChangedError for another file."""
        from blake3 import blake3

        one, other, offset = blake3(), hashlib.sha256(), 0
        while piece := reader.read(offset, PIECE):
            one.update(piece)
            other.update(piece)
            also(piece)
            offset += len(piece)
        if one.hexdigest() != record["blake3"]:
            raise ChangedError("not the file that was proved", path=reader.path, hint="ggferry ledger recheck")
        return {"blake3": str(one.hexdigest()), "sha256": other.hexdigest()}


def beside(row: Mapping[str, Any], name: str) -> str:
    """Return where a file stands that was made with a job's first output, or in it, where that is a folder."""
    return join(place_of(str(row["output"]), row["receipt"] or {}), os.path.basename(name))


def _files(row: Mapping[str, Any]) -> list[FileRecord]:
    return files_kept(row["receipt"])


def _with_sha256(receipt: Receipt, files: Mapping[str, str]) -> Receipt:
    def listed(records: Sequence[FileRecord]) -> list[FileRecord]:
        return [{**each, "sha256": files[each["name"]]} for each in records]

    output: OutputRecord = {**receipt["output"], "files": listed(receipt["output"]["files"])}
    found: Receipt = {**receipt, "output": output}
    if "mmproj" in receipt:
        found["mmproj"] = listed(receipt["mmproj"])
    return found
