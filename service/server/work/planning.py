"""Plans that were asked for over HTTP: made in the background, kept in the database as the lines of a plan's file."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, cast

from ggferry.converters.conversion.options import PLAN_NAMES, option
from ggferry.formats.errors import GgferryError, NotFoundError, RefusedError, of_os
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.service.plan.make_plan import PlanRequest
from ggferry.service.plan.make_plan import plan as make
from ggferry.service.records.fields import PlanRecord
from ggferry.service.records.option_paths import with_paths
from ggferry.service.records.owners import is_dead, owner_name
from ggferry.service.records.plan_file import Entry, Head, digest_of, parse_plan, to_line
from ggferry.service.records.report import summary
from ggferry.service.server.guard.lookups import NAMES
from ggferry.service.server.settings import Settings
from ggferry.service.server.store import models
from ggferry.service.server.store.database import Store
from ggferry.service.server.work.inspectors import InspectorPool
from ggferry.service.server.work.sources import Place
from ggferry.service.storage.retry import names_within
from ggferry.service.storage.stores import is_remote, join
from ggferry.service.storage.urls import RETRY_TIMEOUT, Access, read_secrets, secrets_of, write_secrets
from ggferry.service.workers.analyze import check_recipe
from ggferry.support.heavy import sa

PLANNING, READY, BROKEN = "planning", "ready", "failed"
AT_ONCE = 2


class Planner:
    """Makes plans in threads; the headers are read in worker processes."""

    def __init__(self, store: Store, settings: Settings, inspectors: InspectorPool) -> None:
        self.store, self.settings, self.inspectors, self.owner = store, settings, inspectors, owner_name()
        self._pool = ThreadPoolExecutor(AT_ONCE, "ggferry-plan")
        self._work: dict[str, Future[None]] = {}
        self._lock = threading.Lock()

    def access(self) -> Access:
        """Return how this server reaches files."""
        return Access(retry_timeout=RETRY_TIMEOUT, private=self.settings.private)

    def begin(self, shown: str, place: Place, options: Mapping[str, Any], token: str) -> str:
        """Begin to plan what is at a place, and return the plan's id: the same for the same place and options.

        A plan that is being made is not begun again. Raises UsageError for options that no plan has.
        """
        recipe = dict(options)
        check_recipe(shown, recipe)
        plan = digest_of([place.path, recipe])[:16]
        table = self.store.t.plans
        values: JSONObject = {
            "state": PLANNING,
            "source": shown,
            "options": recipe,
            "trees": list(place.trees),
            "error": None,
        }
        values |= {"created": time.time(), "owner": self.owner}
        with self._lock:
            if plan in self._work and not self._work[plan].done():
                return plan
            insert = self.store._insert(table).values(id=plan, token=token, **values)
            self.store.do(lambda c: c.execute(insert.on_conflict_do_update(index_elements=["id"], set_=values)))
            self._work = {key: each for key, each in self._work.items() if not each.done()}
            self._work[plan] = self._pool.submit(self._make, plan, place, recipe)
        return plan

    def wait(self, plan: str, seconds: float) -> None:
        """Wait until a plan of this server is made, but not longer."""
        work = self._work.get(plan)
        if work is not None:
            with suppress(TimeoutError, CancelledError):
                work.result(seconds)

    def close(self) -> None:
        """Begin no further plan."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _make(self, plan: str, place: Place, recipe: Mapping[str, Any]) -> None:
        values: JSONObject
        try:
            with names_within(NAMES):
                head, entries = make(self._plan_request(plan, place, recipe), worker=self.inspectors)
            self._keep_secrets(entries)
            body = "\n".join([to_line(head), *map(to_line, entries)]) + "\n"
            models.index(self.store, plan, models.entries_of(head, entries))
            models.forget_plan(self.store, plan, [entry.id(head) for entry in entries])
            values = {"state": READY, "body": body, "summary": summary(entries, head)}
        except GgferryError as error:
            values = {"state": BROKEN, "error": {**error.as_dict(), "class": type(error).__name__}}
        except OSError as error:
            values = {"state": BROKEN, "error": of_os(error).as_dict()}
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            values = {"state": BROKEN, "error": {"code": "internal", "message": message, "hint": "please report it"}}
        table = self.store.t.plans
        self.store.run(sa.update(table).where(table.c.id == plan).values(**values))

    def _keep_secrets(self, entries: Sequence[Entry]) -> None:
        """Keep what web addresses hold besides their names, in a file of the owner's, for the next start."""
        names = {each.path for entry in entries for each in (*entry.files, *entry.beside)}
        if found := secrets_of(names):
            with self._lock:
                write_secrets(secrets_file(self.settings), {**read_secrets(secrets_file(self.settings)), **found})

    def _plan_request(self, plan: str, place: Place, recipe: Mapping[str, Any]) -> PlanRequest:
        more = {key: value for key, value in recipe.items() if key not in ("outtype", "verify")}
        limits = self.settings.limits
        return PlanRequest(
            (place.path,),
            join(self.settings.outputs, plan),
            str(recipe.get("outtype", "keep")),
            str(recipe.get("verify", "full")),
            more,
            False,
            self.settings.inspectors,
            limits,
            self.access(),
            None if is_remote(place.path) and not place.trees else place.trees,
        )

    # --- reading ---------------------------------------------------------------------------------------------------

    def show(self, plan: str) -> PlanRecord:
        """Return what is known of a plan, without its lines. Raises NotFoundError."""
        table = self.store.t.plans
        columns = [column for column in table.c if column.name not in ("body", "trees", "owner")]
        found = self.store.first(sa.select(*columns, table.c.owner).where(table.c.id == plan))
        if found is None:
            raise NotFoundError("no such plan", found=plan)
        if found["state"] == PLANNING and self._is_lost(plan, found["owner"]):
            change = sa.update(table).where(table.c.id == plan, table.c.state == PLANNING).values(**_LOST)
            if not self.store.run(change):
                return self.show(plan)  # it was recorded meanwhile
            found |= _LOST
        return cast("PlanRecord", {name: value for name, value in found.items() if name not in ("owner", "token")})

    def _is_lost(self, plan: str, owner: str) -> bool:
        """Return whether nobody makes a plan: its server ended, or this one could not write down what it had made."""
        if owner != self.owner:
            return is_dead(owner)
        with self._lock:
            work = self._work.get(plan)
        return work is None or work.done()

    def body(self, plan: str) -> str:
        """Return a plan's file. Raises NotFoundError, and RefusedError while it is not ready."""
        table = self.store.t.plans
        state = self.show(plan)["state"]
        if state != READY:
            raise RefusedError("the plan is not ready", found=state, expected=READY)
        found = self.store.first(sa.select(table.c.body).where(table.c.id == plan))
        return str(found["body"]) if found is not None else ""

    def read(self, plan: str) -> tuple[Head, list[Entry], tuple[str, ...]]:
        """Return a plan's head, its lines, and the folders that confine its jobs."""
        table = self.store.t.plans
        head, entries = parse_plan(self.body(plan).encode().splitlines(), f"plan {plan}")
        found = self.store.first(sa.select(table.c.trees).where(table.c.id == plan))
        return head, entries, tuple(found["trees"]) if found is not None else ()

    def trees(self, plan: str) -> list[str]:
        """Return the folders that confine what a plan names; the outputs are among them, for what was made again."""
        table = self.store.t.plans
        found = self.store.first(sa.select(table.c.trees).where(table.c.id == plan))
        return [*((found or {}).get("trees") or ()), self.settings.output_folder]

    def note_submitted(self, plan: str, run: str) -> None:
        """Record that jobs of a plan are entered in the ledger as `run`: servers work on them from now on."""
        table = self.store.t.plans
        self.store.run(sa.update(table).where(table.c.id == plan).values(submitted=time.time(), run=run))


_LOST: JSONObject = {
    "state": BROKEN,
    "error": {
        "code": "interrupted",
        "message": "the server ended, or its disk was full, while it planned",
        "hint": "plan again",
    },
}


def secrets_file(settings: Settings) -> str:
    """Return where the secrets of web addresses are kept, as `urls.write_secrets` names it."""
    return os.path.join(settings.data, "web")


def files_of(options: Mapping[str, Any], resolve: Callable[[str], Place]) -> JSONObject:
    """Return a plan's options with those that name files resolved as sources are.

    Those that state their default are left out: with and without them, the plan and its jobs are the same.
    """
    return {
        name: value
        for name, value in with_paths(options, lambda path: resolve(path).path).items()
        if name not in PLAN_NAMES or (type(value), value) != (type(option(name).default), option(name).default)
    }


def lines_of(entries: Sequence[Entry]) -> list[str]:
    """Return a plan's lines as its file has them."""
    return [to_line(entry) for entry in entries]
