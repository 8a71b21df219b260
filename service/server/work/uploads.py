"""Files that are sent to the server: received in pieces, durable when acknowledged, quarantined until inspected.

An upload is a folder of one or more files whose names and sizes are stated first. A piece goes to where the last one
ended. What was acknowledged is on the disk and in the database, so a kill at any instant loses none of it. When the
last byte has come, a worker process plans the folder; only where it holds a model, and nothing that is broken, does
the folder leave the quarantine.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, cast

from ggferry.formats.errors import NotFoundError, RefusedError, UsageError
from ggferry.formats.free_space import free_bytes
from ggferry.service.records.fields import UploadRecord
from ggferry.service.records.ledger import HELD, QUEUED
from ggferry.service.server.incoming.in_store import InStore
from ggferry.service.server.incoming.names import check_names, listed, name_of, shown
from ggferry.service.server.incoming.on_disk import OnDisk
from ggferry.service.server.incoming.pieces import Digests, OffsetError, Piece
from ggferry.service.server.settings import Settings
from ggferry.service.server.store import asked
from ggferry.service.server.store.database import Store
from ggferry.service.server.store.tokens import ADMIN, Token
from ggferry.service.server.work.inspection import ACCEPTED, INSPECTING, MODEL, RECEIVING, Inspection, no_log
from ggferry.service.server.work.inspectors import InspectorPool
from ggferry.service.storage.stores import is_remote, join
from ggferry.support.heavy import sa

MOST_OPEN = 1000  # uploads of one token that are not finished
SPARE = 256 << 20  # bytes of a disk that are left free


class Uploads:
    """The uploads of a server."""

    def __init__(
        self, store: Store, settings: Settings, inspectors: InspectorPool, log: Callable[..., None] = no_log
    ) -> None:
        self.store, self.settings = store, settings
        self._lock, self._digests, self._on_disk = threading.Lock(), Digests(), OnDisk(settings)
        self.files: OnDisk | InStore = self._on_disk if settings.uploads_in is None else InStore(settings, store)
        self.inspection = Inspection(store, settings, inspectors, self.files, log)

    # --- beginning -------------------------------------------------------------------------------------------------

    def begin(self, token: Token, files: Sequence[Mapping[str, Any]], purpose: str = MODEL) -> UploadRecord:
        """Begin an upload of files, each with name, bytes and, where the sender knows it, sha256. Return it.

        `purpose`: MODEL, or OPTION for what an option of a conversion names, which need be no model. Raises UsageError
        for names that are no file's, RefusedError where there is no room or quota left.
        """
        announced = [listed(each) for each in files]
        check_names([each["name"] for each in announced])
        total = sum(each["bytes"] for each in announced)
        if total > self.settings.upload_bytes:
            raise RefusedError(
                "the upload is larger than this server takes", found=total, expected=f"≤ {self.settings.upload_bytes}"
            )
        table, key = self.store.t.uploads, os.urandom(12).hex()
        with self._lock:
            self.check_free_space(token, total)
            is_open = (table.c.token == token.owner) & table.c.state.in_((RECEIVING, INSPECTING))
            count = self.store.first(sa.select(sa.func.count().label("n")).where(is_open))
            if count is not None and count["n"] >= MOST_OPEN:
                raise RefusedError("too many unfinished uploads", found=count["n"], hint="finish or delete some")
            self.files.make(key, announced)
            now = time.time()
            values = {"id": key, "token": token.owner, "state": RECEIVING, "files": announced, "bytes": total}
            values |= {"purpose": purpose}
            rows = [{"upload": key, "file": number, "offset": 0} for number in range(len(announced))]

            def enter(connection: Any) -> None:
                insert = self.store._insert(table).values(**values, created=now, updated=now).on_conflict_do_nothing()
                connection.execute(insert)
                connection.execute(self.store._insert(self.store.t.received).on_conflict_do_nothing(), rows)

            self.store.do(enter)
        if total == 0:
            self.inspection.begin(key)
        return self.show(key, token.owner)

    def check_output_space(self, token: Token, more: int) -> None:
        """Raise RefusedError where a token's quota, or the disk if outputs stay on it, has no room for `more` bytes."""
        self.check_free_space(token, more, stays=not is_remote(self.settings.outputs))

    def check_free_space(self, token: Token, more: int, *, stays: bool = True) -> None:
        """Raise RefusedError where a token's quota, or the disk where the bytes stay here, has no room for `more`."""
        quota = self.settings.quota if token.quota is None else token.quota
        used = self.used(token.owner)
        if used + more > quota:
            words = "the token's quota has no room for it"
            raise RefusedError(
                words, found=used + more, expected=f"≤ {quota}", hint="delete uploads or outputs, or ask for more"
            )
        room = free_bytes(self.settings.quarantine) - self._pending() - SPARE
        if stays and more > room:
            raise RefusedError("the server's disk has no room for it", found=more, expected=f"≤ {max(0, room)}")

    def used(self, owner: str) -> int:
        """Return the bytes that a token stores or has announced: its uploads, and the outputs it asked for."""
        uploads = self.store.t.uploads
        held = self.store.first(sa.select(sa.func.sum(uploads.c.bytes).label("n")).where(uploads.c.token == owner))
        return int((held or {}).get("n") or 0) + asked.bytes_of(self.store, owner)

    def _pending(self) -> int:
        """Return the bytes that are announced and have not come."""
        uploads, received = self.store.t.uploads, self.store.t.received
        is_open = uploads.c.state == RECEIVING
        due = self.store.first(sa.select(sa.func.sum(uploads.c.bytes).label("n")).where(is_open))
        condition = sa.select(uploads.c.id).where(is_open)
        came = self.store.first(
            sa.select(sa.func.sum(received.c.offset).label("n")).where(received.c.upload.in_(condition))
        )
        return int((due or {}).get("n") or 0) - int((came or {}).get("n") or 0)

    # --- reading ---------------------------------------------------------------------------------------------------

    def show(self, key: str, owner: str) -> UploadRecord:
        """Return an upload: id, state, files with offsets, error. Raises NotFoundError for that of another token."""
        table, received = self.store.t.uploads, self.store.t.received
        found = self.store.first(sa.select(table).where(table.c.id == key, table.c.token == owner))
        if found is None:
            raise NotFoundError("no such upload", found=key[:100])
        columns = (received.c.file, received.c.offset, received.c.sha256)
        rows = {row["file"]: row for row in self.store.all(sa.select(*columns).where(received.c.upload == key))}
        files = [shown(each, rows.get(number)) for number, each in enumerate(found["files"])]
        names = ("id", "state", "bytes", "summary", "error", "created", "updated")
        record = {**{name: found[name] for name in names}, "source": f"upload:{key}", "files": files}
        return cast("UploadRecord", {**record, "purpose": found["purpose"] or MODEL, "name": name_of(found["files"])})

    def every(self, owner: str) -> list[UploadRecord]:
        """Return a token's uploads, the newest first."""
        table = self.store.t.uploads
        rows = self.store.all(
            sa.select(table.c.id).where(table.c.token == owner).order_by(table.c.created.desc()).limit(1000)
        )
        return [self.show(row["id"], owner) for row in rows]

    def folder(self, key: str, owner: str) -> str:
        """Return the folder of an upload that was inspected. Raises NotFoundError, and RefusedError for any other."""
        found = self.show(key, owner)
        if found["state"] != ACCEPTED:
            words = "the upload is in quarantine"
            raise RefusedError(
                words, found=found["state"], expected=ACCEPTED, hint=(found["error"] or {}).get("message")
            )
        return self._accepted(key)

    def _accepted(self, key: str) -> str:
        """Return the folder of an accepted upload, or its URL."""
        here_ = os.path.join(self.settings.uploads, key)  # of before the uploads went to a store
        return here_ if os.path.isdir(here_) else self.files.source(key)

    def place(self, key: str, owner: str) -> tuple[str, str]:
        """Return what an upload names, and its folder: the file or folder that it consists of, if that is all of it.

        Raises NotFoundError, and RefusedError for one that was not inspected.
        """
        folder = self.folder(key, owner)
        tops = {each["name"].partition("/")[0] for each in self.show(key, owner)["files"]}
        return join(folder, tops.pop()) if len(tops) == 1 else folder, folder

    # --- receiving -------------------------------------------------------------------------------------------------

    def open(self, key: str, owner: str, number: int, start: int, end: int) -> Piece:
        """Open a file of an upload for bytes `start` to `end`. Close what is returned.

        Raises NotFoundError, UsageError, RefusedError where they are not the next (`found` is where those begin), and
        OSError of the server's disk.
        """
        upload = self.show(key, owner)
        if not 0 <= number < len(upload["files"]):
            raise NotFoundError("the upload has no such file", found=number)
        file = upload["files"][number]
        if not 0 <= start <= end <= file["bytes"]:
            raise UsageError("a range outside the file", found=f"{start}-{end}", expected=f"0-{file['bytes']}")
        if upload["state"] != RECEIVING or start != file["offset"]:
            raise OffsetError(file["offset"], start)
        sink = self.files.open(key, number, file["name"], start)
        try:
            digest = self._digests.at((key, number), sink.read, start)
        except BaseException:
            sink.close()
            raise

        def done(first: int, offset: int, sha256: str) -> bool:
            return self.acknowledge(key, number, first, offset, sha256, sink.objects)

        return Piece(sink, start, end, digest, done, partial(self._digests.keep, (key, number)))

    def acknowledge(
        self, key: str, number: int, start: int, offset: int, sha256: str, objects: Sequence[tuple[str, int]] = ()
    ) -> bool:
        """Record that a file is kept up to `offset`, and its digest; return whether the upload is complete.

        `objects`: those in a store that hold its bytes from `start` on, each with how many. Raises OffsetError where
        another server has recorded others meanwhile.
        """
        received, uploads, pieces = self.store.t.received, self.store.t.uploads, self.store.t.pieces
        own = (received.c.upload == key) & (received.c.file == number)
        ends = accumulate((size for _, size in objects), initial=start)
        rows = [
            {"upload": key, "file": number, "start": at, "bytes": size, "url": url}
            for at, (url, size) in zip(ends, objects, strict=False)
        ]

        def work(connection: Any) -> bool:
            change = sa.update(received).where(own, received.c.offset == start).values(offset=offset, sha256=sha256)
            if not connection.execute(change).rowcount:
                at = connection.execute(sa.select(received.c.offset).where(own)).scalar()
                if at != offset or objects:  # else this very change, made before the answer was lost
                    raise OffsetError(int(at or 0), start)
            if rows:
                connection.execute(self.store._insert(pieces), rows)
            connection.execute(sa.update(uploads).where(uploads.c.id == key).values(updated=time.time()))
            came = connection.execute(
                sa.select(sa.func.sum(received.c.offset)).where(received.c.upload == key)
            ).scalar()
            due = connection.execute(sa.select(uploads.c.bytes).where(uploads.c.id == key)).scalar()
            return due is not None and int(came or 0) == int(due)

        is_complete = self.store.do(work)
        if is_complete:
            self.inspection.begin(key)
        return is_complete

    def remove(self, key: str, token: Token) -> None:
        """Remove an upload that no job needs; an administrator may remove that of anybody.

        Raises NotFoundError, RefusedError while a job needs it.
        """
        table = self.store.t.uploads
        found = self.store.first(sa.select(table.c.token).where(table.c.id == key))
        self.show(key, found["token"] if found is not None and token.may(ADMIN) else token.owner)
        jobs = self.store.jobs
        if self.store.first(sa.select(jobs.c.id).where(self.of_jobs(key), jobs.c.state.in_((QUEUED, *HELD)))):
            raise RefusedError("a job still needs this upload", found=key, hint="cancel it, or wait")
        self.forget(key)

    def of_jobs(self, key: str) -> Any:
        """Return the condition for jobs whose source is an upload, or in it."""
        return self.store.jobs.c.source.startswith(self._accepted(key), autoescape=True)

    def forget(self, key: str) -> None:
        """Remove an upload, files first."""
        self._on_disk.forget(key)
        if self.files is not self._on_disk:
            self.files.forget(key)
        self.store.run(sa.delete(self.store.t.received).where(self.store.t.received.c.upload == key))
        self.store.run(sa.delete(self.store.t.uploads).where(self.store.t.uploads.c.id == key))
