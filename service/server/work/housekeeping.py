"""What is removed with time: unfinished uploads, outputs and uploads past their days, ended jobs past theirs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ggferry.formats.errors import GgferryError
from ggferry.service.records.ledger import DONE, FAILED, QUARANTINED, SKIPPED
from ggferry.service.server.settings import DAY, Settings
from ggferry.service.server.store import audit, models, removal, tokens
from ggferry.service.server.store.database import Store
from ggferry.service.server.work.inspection import ACCEPTED, RECEIVING, REFUSED
from ggferry.service.server.work.outputs.output_files import Outputs
from ggferry.service.server.work.uploads import Uploads
from ggferry.support.heavy import sa

EVERY = 600.0  # seconds between rounds
UNFINISHED = DAY  # of silence, then an upload is removed; a refused one stays as long, to be inspected
EVENTS_KEPT = 30 * DAY
ENDED = (DONE, FAILED, QUARANTINED, SKIPPED)
MOST = 1000  # rows a round


class Housekeeper:
    """Goes its round in a thread."""

    def __init__(
        self, store: Store, settings: Settings, uploads: Uploads, outputs: Outputs, log: Callable[..., None]
    ) -> None:
        self.store, self.settings, self.uploads, self.outputs, self._log = store, settings, uploads, outputs, log
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True, name="ggferry-housekeeping")

    def start(self) -> None:
        """Begin with a round."""
        self._thread.start()

    def close(self) -> None:
        """Begin no further round."""
        self._over.set()

    def _serve(self) -> None:
        while not self._over.is_set():
            try:
                self.round()
            except (GgferryError, OSError) as error:
                self._log("housekeeping", "warning", message=str(error))
            self._over.wait(EVERY)

    def round(self) -> None:
        """Remove what is past its time."""
        now = time.time()
        tokens.prune(self.store)
        models.index_unknown(self.store)
        for name, removed in (
            ("uploads", self._uploads(now)),
            ("outputs", self._outputs(now)),
            ("records", self._records(now)),
            ("unfinished objects", self._left_over()),
        ):
            if removed:
                self._log("removed", what=name, count=removed)
                audit.note(self.store, "the server", f"removed {name} past their time", detail=f"{removed}")
        if self.settings.keep_audit is not None:
            audit.prune(self.store, now - self.settings.keep_audit)
        table = self.store.t.events
        self.store.run(sa.delete(table).where(table.c.at < now - EVENTS_KEPT))
        answers = self.store.t.answers
        self.store.run(sa.delete(answers).where(answers.c.created < now - DAY))

    def _uploads(self, now: float) -> int:
        table, jobs = self.store.t.uploads, self.store.jobs
        past = table.c.state.in_((RECEIVING, REFUSED)) & (table.c.updated < now - UNFINISHED)
        if self.settings.keep_outputs is not None:
            past |= (table.c.state == ACCEPTED) & (table.c.updated < now - self.settings.keep_outputs)
        gone = 0
        for row in self.store.all(sa.select(table.c.id).where(past).limit(MOST)):
            needed = self.uploads.of_jobs(row["id"]) & jobs.c.state.not_in(ENDED)
            if self.store.first(sa.select(jobs.c.id).where(needed)) is None:
                self.uploads.forget(row["id"])
                gone += 1
        return gone

    def _outputs(self, now: float) -> int:
        """Remove the files of jobs that ended long ago; nothing but what this server's plans made."""
        if self.settings.keep_outputs is None:
            return 0
        jobs, gone = self.store.jobs, []
        past = sa.func.coalesce(jobs.c.finished, jobs.c.updated) < now - self.settings.keep_outputs
        condition = (jobs.c.state == DONE) & jobs.c.plan.in_(self.store.submitted())
        for row in self.store.all(sa.select(jobs.c.id, jobs.c.output).where(condition, past).limit(MOST)):
            try:
                self.outputs.remove(row["id"])
                gone.append(row["id"])
            except (GgferryError, OSError) as error:
                self._log("housekeeping", "warning", job=row["id"], message=str(error))
        removal.expire(self.store, gone)
        return len(gone)

    def _left_over(self) -> int:
        """Remove what ended servers left in the store of the outputs; one that does not answer is asked again later."""
        try:
            return len(self.outputs.sweep())
        except GgferryError as error:
            self._log("housekeeping", "warning", message=str(error))
            return 0

    def _records(self, now: float) -> int:
        """Remove jobs that ended long ago, with their attempts, from the ledger and the index."""
        if self.settings.keep_records is None:
            return 0
        jobs = self.store.jobs
        past = jobs.c.state.in_(ENDED) & (
            sa.func.coalesce(jobs.c.finished, jobs.c.updated) < now - self.settings.keep_records
        )
        condition = jobs.c.plan.in_(self.store.submitted())
        ids = [row["id"] for row in self.store.all(sa.select(jobs.c.id).where(past, condition).limit(MOST))]
        removal.forget(self.store, ids)
        return len(ids)
