"""Files that are sent to the server: received in pieces, durable when acknowledged, quarantined until inspected.

An upload is a folder of one or more files whose names and sizes are stated first. A piece goes to where the last one
ended. What was acknowledged is on the disk and in the database, so a kill at any instant loses none of it. When the
last byte has come, a worker process plans the folder; only where it holds a model, and nothing that is broken, does
the folder leave the quarantine.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, cast

from ggferry.formats.errors import BusyError, ChecksumError, GgferryError, NotFoundError, RefusedError, UsageError
from ggferry.formats.files.local_files import open_file
from ggferry.formats.files.partial_files import sync_folder
from ggferry.formats.files.partial_names import NAME_MAX
from ggferry.formats.free_space import free_bytes
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.service.plan.make_plan import PlanRequest
from ggferry.service.plan.make_plan import plan as make
from ggferry.service.records.fields import UploadRecord
from ggferry.service.records.plan_file import ARCHIVE, BAD, CONVERT, DUPLICATE, SKIP, Entry
from ggferry.service.records.report import summary
from ggferry.service.server.incoming.pieces import Digests, OffsetError, Piece
from ggferry.service.server.settings import Settings
from ggferry.service.server.store import asked
from ggferry.service.server.store.database import Store
from ggferry.service.server.store.tokens import ADMIN, Token
from ggferry.service.server.work.inspectors import InspectorPool
from ggferry.service.storage.stores import is_remote, join
from ggferry.service.storage.urls import Access
from ggferry.support.heavy import sa
from ggferry.support.platform import here

RECEIVING, INSPECTING, ACCEPTED, REFUSED = UPLOAD_STATES = ("receiving", "inspecting", "accepted", "refused")
MOST_FILES, DEEPEST = 1000, 8
MOST_OPEN = 1000  # uploads of one token that are not finished
INSPECTIONS = 2  # at a time
PURPOSES = MODEL, OPTION = ("model", "option")
SPARE = 256 << 20  # bytes of a disk that are left free


class Uploads:
    """The uploads of a server."""

    def __init__(self, store: Store, settings: Settings, inspectors: InspectorPool) -> None:
        self.store, self.settings, self.inspectors = store, settings, inspectors
        self._pool = ThreadPoolExecutor(INSPECTIONS, "ggferry-inspect")
        self._lock, self._digests = threading.Lock(), Digests()

    # --- beginning -------------------------------------------------------------------------------------------------

    def begin(self, token: Token, files: Sequence[Mapping[str, Any]], purpose: str = MODEL) -> UploadRecord:
        """Begin an upload of files, each with name, bytes and, where the sender knows it, sha256. Return it.

        `purpose`: MODEL, or OPTION for what an option of a conversion names, which need be no model. Raises UsageError
        for names that are no file's, RefusedError where there is no room or quota left.
        """
        listed = [_listed(each) for each in files]
        check_names([each["name"] for each in listed])
        total = sum(each["bytes"] for each in listed)
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
            self._make_files(key, listed)
            now = time.time()
            values = {"id": key, "token": token.owner, "state": RECEIVING, "files": listed, "bytes": total}
            values |= {"purpose": purpose}
            rows = [{"upload": key, "file": number, "offset": 0} for number in range(len(listed))]

            def enter(connection: Any) -> None:
                insert = self.store._insert(table).values(**values, created=now, updated=now).on_conflict_do_nothing()
                connection.execute(insert)
                connection.execute(self.store._insert(self.store.t.received).on_conflict_do_nothing(), rows)

            self.store.do(enter)
        if total == 0:
            self._finish(key)
        return self.show(key, token.owner)

    def _make_files(self, key: str, listed: Sequence[Mapping[str, Any]]) -> None:
        folder = os.path.join(self.settings.quarantine, key)
        os.mkdir(folder, 0o700)
        for each in listed:
            path = os.path.join(folder, each["name"])
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
            made = here.open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | here.NOFOLLOW | here.CLOEXEC, 0o600)
            os.close(made)
        for place, _, _ in os.walk(folder):
            sync_folder(os.path.join(place, ""))
        sync_folder(os.path.join(self.settings.quarantine, ""))

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
        files = [_shown(each, rows.get(number)) for number, each in enumerate(found["files"])]
        names = ("id", "state", "bytes", "summary", "error", "created", "updated")
        shown = {**{name: found[name] for name in names}, "source": f"upload:{key}", "files": files}
        return cast("UploadRecord", {**shown, "purpose": found["purpose"] or MODEL, "name": name_of(found["files"])})

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
        return os.path.join(self.settings.uploads, key)

    def place(self, key: str, owner: str) -> tuple[str, str]:
        """Return what an upload names, and its folder: the file or folder that it consists of, if that is all of it.

        Raises NotFoundError, and RefusedError for one that was not inspected.
        """
        folder = self.folder(key, owner)
        tops = {each["name"].partition("/")[0] for each in self.show(key, owner)["files"]}
        return os.path.join(folder, tops.pop()) if len(tops) == 1 else folder, folder

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
        path = os.path.join(self.settings.quarantine, key, file["name"])
        try:
            fd = here.open_file(path, os.O_RDWR | here.NOFOLLOW | here.CLOEXEC)
        except FileNotFoundError:
            raise NotFoundError("the upload is not on this server", found=key) from None
        try:
            here.lock(fd)
        except OSError:
            os.close(fd)
            raise BusyError("another request is sending this file", hint="wait until it has ended") from None
        try:
            os.ftruncate(fd, start)  # what was never acknowledged is not trusted
        except OSError:
            os.close(fd)  # and with it the lock, else nobody could send the rest
            raise
        digest = self._digests.at((key, number), fd, start)
        return Piece(
            fd, start, end, digest, partial(self.acknowledge, key, number), partial(self._digests.keep, (key, number))
        )

    def acknowledge(self, key: str, number: int, start: int, offset: int, sha256: str) -> bool:
        """Record that a file is on the disk up to `offset`, and its digest; return whether the upload is complete."""
        received, uploads = self.store.t.received, self.store.t.uploads
        condition = (received.c.upload == key) & (received.c.file == number) & (received.c.offset <= offset)

        def work(connection: Any) -> bool:
            connection.execute(sa.update(received).where(condition).values(offset=offset, sha256=sha256))
            connection.execute(sa.update(uploads).where(uploads.c.id == key).values(updated=time.time()))
            came = connection.execute(
                sa.select(sa.func.sum(received.c.offset)).where(received.c.upload == key)
            ).scalar()
            due = connection.execute(sa.select(uploads.c.bytes).where(uploads.c.id == key)).scalar()
            return due is not None and int(came or 0) == int(due)

        is_complete = self.store.do(work)
        if is_complete:
            self._finish(key)
        return is_complete

    def remove(self, key: str, token: Token) -> None:
        """Remove an upload that no job needs; an administrator may remove that of anybody.

        Raises NotFoundError, RefusedError while a job needs it.
        """
        table = self.store.t.uploads
        found = self.store.first(sa.select(table.c.token).where(table.c.id == key))
        self.show(key, found["token"] if found is not None and token.may(ADMIN) else token.owner)
        jobs, folder = self.store.jobs, os.path.join(self.settings.uploads, key)
        needed = jobs.c.source.startswith(folder, autoescape=True) & jobs.c.state.in_(
            ("queued", "running", "verifying")
        )
        if self.store.first(sa.select(jobs.c.id).where(needed)):
            raise RefusedError("a job still needs this upload", found=key, hint="cancel it, or wait")
        self.forget(key)

    def forget(self, key: str) -> None:
        """Remove an upload, files first."""
        for place in (self.settings.uploads, self.settings.quarantine):
            shutil.rmtree(os.path.join(place, key), ignore_errors=True)
        self.store.run(sa.delete(self.store.t.received).where(self.store.t.received.c.upload == key))
        self.store.run(sa.delete(self.store.t.uploads).where(self.store.t.uploads.c.id == key))

    # --- inspecting ------------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Continue what a server that ended had begun."""
        table = self.store.t.uploads
        begun = self.store.all(sa.select(table.c.id).where(table.c.state == INSPECTING))  # before `_finish` adds some
        for row in self.store.all(sa.select(table.c.id, table.c.bytes).where(table.c.state == RECEIVING)):
            received = self.store.t.received
            came = sa.select(sa.func.sum(received.c.offset).label("n")).where(received.c.upload == row["id"])
            if int((self.store.first(came) or {}).get("n") or 0) == row["bytes"]:
                self._finish(row["id"])
        for row in begun:
            self._pool.submit(self._inspect, row["id"])

    def close(self) -> None:
        """Inspect nothing more; the next start does."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _finish(self, key: str) -> None:
        table = self.store.t.uploads
        condition = (table.c.id == key) & (table.c.state == RECEIVING)
        if self.store.run(sa.update(table).where(condition).values(state=INSPECTING, updated=time.time())):
            with suppress(RuntimeError):  # the server is ending; the next start inspects it
                self._pool.submit(self._inspect, key)

    def _inspect(self, key: str) -> None:
        inside, outside = os.path.join(self.settings.quarantine, key), os.path.join(self.settings.uploads, key)
        values: JSONObject
        try:
            if not os.path.isdir(inside) and not os.path.isdir(outside):
                return  # removed, or on another server
            if os.path.isdir(inside):
                self._check_digests(key, inside)
                entries = self._planned(inside) if self._purpose(key) == MODEL else []
                if self._purpose(key) == MODEL:
                    check_models(entries)
                os.rename(inside, outside)
                sync_folder(os.path.join(self.settings.uploads, ""))
                sync_folder(os.path.join(self.settings.quarantine, ""))
            else:  # killed between the move and its record
                entries = self._planned(outside)
            values = {"state": ACCEPTED, "summary": summary(entries), "error": None}
        except GgferryError as error:
            record = {**error.as_dict(), "class": type(error).__name__}
            values = {"state": REFUSED, "error": {**record, "path": _below(record["path"], inside)}}
        except Exception as error:
            words = f"could not be inspected: {type(error).__name__}: {error}"
            values = {"state": REFUSED, "error": {"code": "internal", "message": words}}
        table = self.store.t.uploads
        inspected = (table.c.id == key) & (table.c.state == INSPECTING)
        self.store.run(sa.update(table).where(inspected).values(**values, updated=time.time()))

    def _purpose(self, key: str) -> str:
        table = self.store.t.uploads
        found = self.store.first(sa.select(table.c.purpose).where(table.c.id == key))
        return str((found or {}).get("purpose") or MODEL)

    def _check_digests(self, key: str, folder: str) -> None:
        """Raise ChecksumError for a file that is not what its sender said."""
        table = self.store.t.uploads
        found = self.store.first(sa.select(table.c.files).where(table.c.id == key)) or {"files": []}
        for each in found["files"]:
            if each.get("sha256"):
                with open(open_file(os.path.join(folder, each["name"]), folder), "rb") as file:
                    came = hashlib.file_digest(file, "sha256").hexdigest()
                if came != each["sha256"]:
                    words = "not the bytes that were announced"
                    raise ChecksumError(words, path=each["name"], found=came, expected=each["sha256"])

    def _planned(self, folder: str) -> list[Entry]:
        request = PlanRequest(
            (folder,),
            join(self.settings.outputs, "none"),
            verify="fast",
            digest=False,
            limits=self.settings.limits,
            access=Access(private=self.settings.private),
            trees=(folder,),
        )
        return make(request, worker=self.inspectors)[1]


def check_models(entries: Sequence[Entry]) -> None:
    """Raise the first error of files that are broken, or UsageError where none is a model."""
    from ggferry.service.storage.broker import revive

    for entry in entries:
        if entry.verdict in (*BAD, ARCHIVE):
            name = os.path.basename(entry.source)
            raise revive(entry.error, name) if entry.error else UsageError(entry.reason or entry.verdict, path=name)
    if not any(entry.verdict in (CONVERT, SKIP, DUPLICATE) for entry in entries):
        raise UsageError("there is no model in it", hint="a model's weights, with the files that stand beside them")


def check_names(names: Sequence[str]) -> None:
    """Raise UsageError for what is not the relative path of a file, or given twice."""
    if not names or len(names) > MOST_FILES:
        raise UsageError("the files of an upload", found=len(names), expected=f"1 to {MOST_FILES}")
    taken: set[str] = set()
    for name in names:
        parts = name.split("/")
        bad = len(parts) > DEEPEST or any(not _is_name(part) for part in parts)
        above = {"/".join(parts[:n]) for n in range(1, len(parts))}
        if bad or name in taken or above & set(names):
            raise UsageError("the name of a file", found=name[:200], expected="a relative path that no other file has")
        taken.add(name)


def _is_name(part: str) -> bool:
    fits = 0 < len(part.encode("utf-8", "surrogatepass")) <= NAME_MAX - 64
    return fits and not part.startswith(".") and part.isprintable() and "\\" not in part


def name_of(files: Sequence[Mapping[str, Any]]) -> str:
    """Return what an upload is called: its file, its folder, or the first of several files."""
    names = [str(each["name"]) for each in files]
    tops = {name.partition("/")[0] for name in names}
    if len(tops) == 1:
        return tops.pop()
    return f"{names[0]} and {len(names) - 1} more"


def _shown(file: Mapping[str, Any], row: Mapping[str, Any] | None) -> JSONObject:
    """Return a file of an upload: `sha256` is of what was received, `announced` what its sender said of the whole."""
    found: JSONObject = {"name": file["name"], "bytes": file["bytes"], "offset": row["offset"] if row else 0}
    if file.get("sha256"):
        found["announced"] = file["sha256"]
    if not found["offset"]:
        return {**found, "sha256": hashlib.sha256().hexdigest()}
    return {**found, "sha256": row["sha256"]} if row and row["sha256"] else found


def _listed(each: Mapping[str, Any]) -> JSONObject:
    digest = each.get("sha256")
    return {"name": str(each["name"]), "bytes": int(each["bytes"]), **({"sha256": digest.lower()} if digest else {})}


def _below(path: Any, folder: str) -> Any:
    return os.path.relpath(path, folder) if isinstance(path, str) and path.startswith(folder + os.sep) else path
