"""The files of done jobs: opened only when they are what the receipt proved, with their sha256.

Receipts hold BLAKE3 (docs/decisions/digest.md). A client checks what it fetched by SHA-256, which every machine has, so
both are computed in one pass over the finished file: the first must be the receipt's, the second is kept beside it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from ggferry.converters.metadata.beside import RECEIPT, files_written
from ggferry.formats.errors import ChangedError, NotFoundError, RefusedError
from ggferry.formats.files.local_files import open_file
from ggferry.service.records.fields import TriedRow
from ggferry.service.records.ledger import DONE
from ggferry.service.records.receipts import kept, receipt_of, receipts_of
from ggferry.service.server.store.database import Store
from ggferry.service.server.work.sources import is_within
from ggferry.service.storage.stores import is_remote
from ggferry.support.heavy import sa
from ggferry.support.platform import here

if TYPE_CHECKING:
    from ggferry.converters.metadata.receipt_fields import FileRecord, KeptReceipt, OutputRecord, Receipt

PIECE = 4 << 20


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
    """A file of a done job, and where it is on this server."""

    path: str


class Outputs:
    """Finds the files of done jobs below `folders`."""

    def __init__(self, store: Store, folders: Callable[[str], str]) -> None:
        self.store, self._folder = store, folders

    def receipt(self, job: str, file: str | None = None) -> KeptReceipt:
        """Return the receipt of a job's output, with the sha256 of each file.

        Of several outputs that of the first, with the others in its member `further`; with `file`, that of the output
        which this file belongs to, alone. Raises RefusedError before the job is done, NotFoundError.
        """
        found, files = (
            cast("KeptReceipt", self._row(job)["receipt"]),
            {each.name: each.sha256 for each in self.every(job)},
        )
        chosen = receipts_of(found) if file is None else [receipt_of(found, file)]
        return kept([_with_sha256(each, files) for each in chosen])

    def every(self, job: str) -> list[OutputFile]:
        """Return the files of a done job. Raises RefusedError, and ChangedError where one is not what was proved."""
        row = self._row(job)
        return [self._file(job, row, number, each) for number, each in enumerate(_files(row))]

    def open(self, job: str, name: str) -> tuple[int, OutputFile]:
        """Return an open descriptor of a file of a done job, and its facts."""
        row = self._row(job)
        for number, each in enumerate(_files(row)):
            if each["name"] == name:
                found = self._file(job, row, number, each)
                fd = self._open(found.path)
                if os.fstat(fd).st_size != found.bytes:
                    os.close(fd)
                    raise ChangedError("not the file that was proved", path=found.path)
                return fd, found
        raise NotFoundError("the job made no such file", found=name)

    def remove(self, job: str) -> None:
        """Remove the files of a done job with their receipts, and the folders that are empty then.

        A file that another job has made again since stays.
        """
        row = self._row(job)
        jobs, output = self.store.jobs, str(row["output"])
        if is_remote(output):
            raise RefusedError("the output is in a store", path=output, hint="remove it there")
        made = (jobs.c.output == output) & (jobs.c.id != job) & (jobs.c.state == DONE)
        if self.store.first(sa.select(jobs.c.id).where(made)) is not None:
            return
        top, folder = self._folder(output), os.path.dirname(output)
        names = [each["name"] for each in _files(row)]
        receipts = [name + RECEIPT for name in names]
        if is_within(folder, top) and os.path.realpath(folder) == folder:
            for name in (*names, *receipts):
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(folder, os.path.basename(name)))
            with suppress(OSError):
                while folder != top:
                    os.rmdir(folder)
                    folder = os.path.dirname(folder)

    def _row(self, job: str) -> TriedRow:
        row = self.store.row(job)
        if row["state"] != DONE or row["receipt"] is None:
            raise RefusedError("the job is not done", found=row["state"], expected=DONE)
        return row

    def _open(self, path: str) -> int:
        return open_file(path, self._folder(path))

    def _file(self, job: str, row: Mapping[str, Any], number: int, record: FileRecord) -> OutputFile:
        """Return a file's facts, from what is kept of it if it has not been touched since."""
        if is_remote(row["output"]):
            raise RefusedError("the output is in a store", path=row["output"], hint="fetch it from there")
        path = os.path.join(os.path.dirname(row["output"]), record["name"])
        table = self.store.t.outputs
        kept = self.store.first(sa.select(table).where(table.c.job == job, table.c.file == number))
        fd = self._open(path)
        try:
            stamp = _stamp(fd)
            if kept is None or kept["stamp"] != stamp or kept["blake3"] != record["blake3"]:
                kept = self._digested(fd, path, record) | {"stamp": stamp}
                values = {"path": path, "bytes": record["bytes"], **kept}
                insert = self.store._insert(table).values(job=job, file=number, **values)
                change = insert.on_conflict_do_update(index_elements=["job", "file"], set_=values)
                self.store.do(lambda connection: connection.execute(change))
        finally:
            os.close(fd)
        return OutputFile(record["name"], record["bytes"], kept["sha256"], record["blake3"], path)

    def _digested(self, fd: int, path: str, record: FileRecord) -> dict[str, str]:
        from blake3 import blake3

        one, other, offset = blake3(), hashlib.sha256(), 0
        while piece := here.pread(fd, PIECE, offset):
            one.update(piece)
            other.update(piece)
            offset += len(piece)
        if one.hexdigest() != record["blake3"]:
            raise ChangedError("not the file that was proved", path=path, hint="ggferry ledger recheck")
        return {"blake3": str(one.hexdigest()), "sha256": other.hexdigest()}


def _files(row: Mapping[str, Any]) -> list[FileRecord]:
    return files_written(*receipts_of(row["receipt"]))


def _with_sha256(receipt: Receipt, files: Mapping[str, str]) -> Receipt:
    def listed(records: Sequence[FileRecord]) -> list[FileRecord]:
        return [{**each, "sha256": files[each["name"]]} for each in records]

    output: OutputRecord = {**receipt["output"], "files": listed(receipt["output"]["files"])}
    found: Receipt = {**receipt, "output": output}
    if "mmproj" in receipt:
        found["mmproj"] = listed(receipt["mmproj"])
    return found


def _stamp(fd: int) -> str:
    status = os.fstat(fd)
    return f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}"
