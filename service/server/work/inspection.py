"""Inspect complete uploads: a worker process plans them, and what holds a model leaves the quarantine.

A failure of the server's own, a full disk or a ledger that is away, refuses nothing: the upload is inspected again.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from ggferry.formats.errors import ChecksumError, Fault, GgferryError
from ggferry.formats.files.local_files import open_file
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.service.plan.make_plan import PlanRequest
from ggferry.service.plan.make_plan import plan as make
from ggferry.service.records.plan_file import Entry
from ggferry.service.records.report import summary
from ggferry.service.server.guard.problems import of_disk
from ggferry.service.server.incoming.contents import check_models
from ggferry.service.server.incoming.in_store import InStore
from ggferry.service.server.incoming.names import below
from ggferry.service.server.incoming.on_disk import OnDisk
from ggferry.service.server.settings import Settings
from ggferry.service.server.store.database import Store
from ggferry.service.server.work.inspectors import InspectorPool
from ggferry.service.storage.stores import join
from ggferry.service.storage.urls import Access
from ggferry.support.heavy import sa

RECEIVING, INSPECTING, ACCEPTED, REFUSED = ("receiving", "inspecting", "accepted", "refused")
MODEL, OPTION = "model", "option"
AT_ONCE = 2  # inspections
WATCH, LEFT = 30.0, 120.0  # seconds: how often, and after what silence, uploads that nobody inspects are looked after


def no_log(event: str, level: str = "info", **facts: object) -> None:
    """Log nothing."""


class Inspection:
    """The inspections of a server."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        inspectors: InspectorPool,
        files: OnDisk | InStore,
        log: Callable[..., None],
    ) -> None:
        self.store, self.settings, self.inspectors, self.files = store, settings, inspectors, files
        self._pool, self._over = ThreadPoolExecutor(AT_ONCE, "ggferry-inspect"), threading.Event()
        self._lock, self._log = threading.Lock(), log
        self._under_way: set[str] = set()
        self._stopped: set[str] = set()
        """Those that a failure of this server's stopped."""

    def start(self) -> None:
        """Continue what ended servers had begun, and from now on what failures stop."""
        self.resume()
        threading.Thread(target=self._watch, daemon=True, name="ggferry-uploads").start()

    def close(self) -> None:
        """Inspect nothing more; the next start does."""
        self._over.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def begin(self, key: str) -> None:
        """Inspect an upload whose bytes have all come, in a while."""
        table = self.store.t.uploads
        condition = (table.c.id == key) & (table.c.state == RECEIVING)
        if self.store.run(sa.update(table).where(condition).values(state=INSPECTING, updated=time.time())):
            self._submit(key)

    def resume(self) -> None:
        """Begin every inspection that is due and that nobody is at."""
        table = self.store.t.uploads
        inspecting = sa.select(table.c.id, table.c.updated).where(table.c.state == INSPECTING)
        begun = self.store.all(inspecting)  # before `begin` adds some
        self._begin_complete()
        for row in begun:
            if not self.files.shared or self._takes_over(row["id"], row["updated"]):
                self._submit(row["id"])

    def _begin_complete(self) -> None:
        """Begin the inspection of uploads whose bytes have come, of which that could not be recorded."""
        table, received = self.store.t.uploads, self.store.t.received
        joined = sa.select(table.c.id).join(received, received.c.upload == table.c.id).where(table.c.state == RECEIVING)
        complete = joined.group_by(table.c.id, table.c.bytes).having(sa.func.sum(received.c.offset) == table.c.bytes)
        for row in self.store.all(complete):
            self.begin(row["id"])

    def _watch(self) -> None:
        while not self._over.wait(WATCH):
            with suppress(GgferryError):  # the ledger is away: another time
                self.look_again()

    def look_again(self) -> None:
        """Inspect what failures have stopped. Servers that share a folder leave what another one inspects alone."""
        with self._lock:
            stopped, self._stopped = self._stopped, set()
        for key in stopped:
            self._submit(key)
        if self.files.shared:
            self.resume()
        else:
            self._begin_complete()

    def _takes_over(self, key: str, updated: float) -> bool:
        """Return whether this server inspects what another one has left, of which there was no sign for a while."""
        table, now = self.store.t.uploads, time.time()
        same = (table.c.id == key) & (table.c.state == INSPECTING) & (table.c.updated == updated)
        return now - updated > LEFT and bool(self.store.run(sa.update(table).where(same).values(updated=now)))

    def _submit(self, key: str) -> None:
        with self._lock:
            if key in self._under_way:
                return
            self._under_way.add(key)
        with suppress(RuntimeError):  # the server is ending; the next start inspects it
            self._pool.submit(self._run, key)

    def _run(self, key: str) -> None:
        settled = False
        try:
            settled = self.inspect(key)
        except GgferryError as error:  # the ledger is away: another time
            self._log("upload", "warning", upload=key, message=str(error))
        finally:
            with self._lock:
                self._under_way.discard(key)
                if not settled:
                    self._stopped.add(key)

    @contextmanager
    def _noting(self, key: str) -> Iterator[None]:
        """Note now and then that an upload is being inspected."""
        over, table = threading.Event(), self.store.t.uploads
        change = sa.update(table).where((table.c.id == key) & (table.c.state == INSPECTING))

        def note() -> None:
            while not over.wait(LEFT / 4):
                with suppress(GgferryError):
                    self.store.run(change.values(updated=time.time()))

        thread = threading.Thread(target=note, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def inspect(self, key: str) -> bool:
        """Inspect an upload, and record what was found; return False where it has to be inspected again.

        Raises GgferryError where the ledger cannot be written.
        """
        inside = os.path.join(self.settings.quarantine, key)
        values: JSONObject
        try:
            with self._noting(key) if self.files.shared else nullcontext():
                entries = self._inspected(key)
            if entries is None:
                return True  # removed, or on another server
            values = {"state": ACCEPTED, "summary": summary(entries), "error": None}
        except GgferryError as error:
            if error.fault is Fault.TRANSIENT:
                return False  # a store is away, or too much to inspect at once
            record = {**error.as_dict(), "class": type(error).__name__}
            values = {"state": REFUSED, "error": {**record, "path": below(record["path"], inside)}}
        except OSError as error:
            self._log("upload", "warning", upload=key, message=f"inspected again in a while: {error}")
            problem = of_disk(error)
            values = {"error": {"code": problem.code, "message": f"{problem.detail}: it is inspected again"}}
        except Exception as error:
            words = f"could not be inspected: {type(error).__name__}: {error}"
            values = {"state": REFUSED, "error": {"code": "internal", "message": words}}
        refused = values.get("state") == REFUSED
        if refused and self.inspectors.is_over:
            return True  # it is inspected at the next start
        table = self.store.t.uploads
        inspected = (table.c.id == key) & (table.c.state == INSPECTING)
        changed = self.store.run(sa.update(table).where(inspected).values(**values, updated=time.time()))
        if changed and "state" in values:
            with suppress(GgferryError):  # what stays goes with the upload
                self.files.remove_pieces(key)
        return "state" in values

    def _inspected(self, key: str) -> list[Entry] | None:
        """Return what an upload holds once it was moved out of the quarantine; None where this server has none of it.

        Raises GgferryError for what is not accepted, and OSError of the server's disk.
        """
        table = self.store.t.uploads
        found = self.store.first(sa.select(table.c.files, table.c.purpose).where(table.c.id == key))
        if found is None:
            return None
        is_model = (found["purpose"] or MODEL) == MODEL
        inside = self.files.whole(key, found["files"])
        if inside is None:  # perhaps killed between the move and its record
            outside = self.files.moved(key)
            return None if outside is None else self._planned(outside) if is_model else []
        self._check_digests(inside, found["files"])
        entries = self._planned(inside) if is_model else []
        if is_model:
            check_models(entries)
        self.files.accept(key, found["files"])
        return entries

    def _check_digests(self, folder: str, listed: Sequence[Mapping[str, Any]]) -> None:
        """Raise ChecksumError for a file that is not what its sender said."""
        for each in listed:
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
