"""Webhooks in the Standard Webhooks form (standardwebhooks.com, version 1.0.0): signed notices of jobs that ended.

A notice is entered in the database before it is sent, and is sent again, after growing delays, until the receiver
answers with 2xx. Ids stay the same, so that a receiver recognizes what it has had. The connection is one of `storage`,
with its bounds on addresses.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from typing import Any, cast

from typing_extensions import TypedDict  # pydantic refuses that of typing below Python 3.12

from ggferry.formats.errors import GgferryError, NotFoundError, UsageError
from ggferry.service.records.plan_file import outputs_of
from ggferry.service.server.store.database import Store
from ggferry.service.server.store.removal import shown_state
from ggferry.service.server.store.secret_box import SecretBox
from ggferry.service.storage.backends import web_requests
from ggferry.service.storage.urls import WEB
from ggferry.support.heavy import sa

DELAYS = (0.0, 5.0, 300.0, 1800.0, 7200.0, 18000.0, 36000.0, 50400.0, 72000.0, 86400.0)
"""Seconds before each attempt, those that the specification recommends."""
ENDS = ("done", "failed", "quarantined", "skipped", "cancelled", "expired")
EVENTS = {state: f"job.{state}" for state in ENDS}
PREFIX = "whsec_"
EVERY = 1.0  # seconds between looks for notices to send
MOST = 100  # notices and events that are taken at a time
LONGEST_URL = 2000


class WebhookRecord(TypedDict):
    """A receiver as a list shows it, with the number of notices that wait for it and the last error of those."""

    id: str
    url: str
    created: float
    waiting: int
    error: str | None


class NoticeRow(TypedDict):
    """A notice as it is entered: `tries` so far, and when the next is due, in seconds since 1970."""

    id: str
    hook: str
    body: str
    tries: int
    next: float


def add(store: Store, box: SecretBox, url: str) -> dict[str, str]:
    """Enter a receiver and return its id and secret, which is not shown again. Raises UsageError."""
    if url.partition("://")[0] not in WEB or len(url) > LONGEST_URL or any(c <= " " for c in url):
        raise UsageError("the URL of a webhook", found=url[:200], expected="https://…")
    web_requests.origin(url)
    key, secret = os.urandom(6).hex(), PREFIX + b64encode(secrets.token_bytes(32)).decode()
    newest = store.first(sa.select(sa.func.max(store.t.events.c.id).label("id"))) or {}
    values = {"id": key, "url": url, "secret": box.seal(key, secret), "seen": int(newest.get("id") or 0)}
    store.put(store.t.hooks, **values, created=time.time())
    return {"id": key, "secret": secret}


def seal_all(store: Store, box: SecretBox) -> int:
    """Encrypt the secrets that an earlier version left plain, or that another key did, and return how many those were.

    What SQLite held of them is overwritten. Raises UsageError where one was encrypted by a key that is not given.
    """
    hooks = store.t.hooks
    rows = store.all(sa.select(hooks.c.id, hooks.c.secret))
    renewed = [(row, box.renewed(row["id"], row["secret"])) for row in rows]
    changed = [(row, sealed) for row, sealed in renewed if sealed != row["secret"]]

    def work(connection: Any) -> None:
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("PRAGMA secure_delete=ON")
        for row, sealed in changed:
            same = (hooks.c.id == row["id"]) & (hooks.c.secret == row["secret"])
            connection.execute(sa.update(hooks).where(same).values(secret=sealed))

    if changed:
        store.do(work)
        store.truncate_log()
    return len(changed)


def every(store: Store) -> list[WebhookRecord]:
    """Return the receivers, without their secrets, each with the number of notices that wait for it."""
    hooks, notices = store.t.hooks, store.t.notices
    waits = sa.select(sa.func.count()).where(notices.c.hook == hooks.c.id, notices.c.done.is_(None)).scalar_subquery()
    last = sa.select(sa.func.max(notices.c.error)).where(notices.c.hook == hooks.c.id, notices.c.done.is_(None))
    shown = (hooks.c.id, hooks.c.url, hooks.c.created, waits.label("waiting"), last.scalar_subquery().label("error"))
    return cast("list[WebhookRecord]", store.all(sa.select(*shown).order_by(hooks.c.created)))


def remove(store: Store, key: str) -> None:
    """Remove a receiver and what waits for it. Raises NotFoundError."""
    if not store.run(sa.delete(store.t.hooks).where(store.t.hooks.c.id == key)):
        raise NotFoundError("no such webhook", found=key)
    store.run(sa.delete(store.t.notices).where(store.t.notices.c.hook == key))


def test(store: Store, box: SecretBox, key: str) -> None:
    """Send a notice of no job to a receiver, now and once. Raises NotFoundError, and what the sending raises."""
    hook = store.first(sa.select(store.t.hooks).where(store.t.hooks.c.id == key))
    if hook is None:
        raise NotFoundError("no such webhook", found=key)
    body = _body("test", {"message": "ggferry serve webhook test"}, time.time())
    send(hook["url"], box.open(key, hook["secret"]), f"msg_{os.urandom(12).hex()}", body)


def sign(secret: str, message: str, seconds: int, body: str) -> str:
    """Return the header webhook-signature: HMAC-SHA256 of id, time and body, in base64, with its version."""
    key = b64decode(secret.removeprefix(PREFIX))
    signed = hmac.new(key, f"{message}.{seconds}.{body}".encode(), hashlib.sha256).digest()
    return f"v1,{b64encode(signed).decode()}"


def send(url: str, secret: str, message: str, body: str) -> None:
    """Send a notice. Raises AccessError, NotFoundError or TransientError unless the receiver took it."""
    seconds = int(time.time())
    headers = {
        "Content-Type": "application/json",
        "webhook-id": message,
        "webhook-timestamp": str(seconds),
        "webhook-signature": sign(secret, message, seconds, body),
    }
    web_requests.post(url, body.encode(), headers)


def _body(kind: str, data: Mapping[str, Any], at: float) -> str:
    when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f".{int(at % 1 * 1000):03}Z"
    return json.dumps({"type": kind, "timestamp": when, "data": data}, separators=(",", ":"), default=str)


class Notifier:
    """Makes notices of events and sends them; `count` is called with 'sent', 'again' or 'given up'."""

    def __init__(self, store: Store, box: SecretBox, count: Callable[[str], None], log: Callable[..., None]) -> None:
        self.store, self._box, self._count, self._log = store, box, count, log
        self._unreadable: set[str] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True, name="ggferry-webhooks")

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def close(self) -> None:
        """Send nothing more; what waits is sent by the next server."""
        self._over.set()

    def _serve(self) -> None:
        while not self._over.wait(EVERY):
            try:
                for hook in self.store.all(sa.select(self.store.t.hooks)):
                    if (secret := self._secret(hook)) is not None:
                        self._enter(hook)
                        self._send(hook, secret)
            except GgferryError as error:
                self._log("webhooks", "warning", message=str(error))

    def _secret(self, hook: Mapping[str, Any]) -> str | None:
        """Return the secret of a receiver; None where it is another server's to send there, which has the key."""
        try:
            return self._box.open(hook["id"], hook["secret"])
        except GgferryError as error:
            if hook["id"] not in self._unreadable:
                self._unreadable.add(hook["id"])
                self._log("webhooks", "error", webhook=hook["id"], message=str(error))
            return None

    def _enter(self, hook: Mapping[str, Any]) -> None:
        """Enter notices of the events that a receiver has not been told of."""
        events, hooks, jobs = self.store.t.events, self.store.t.hooks, self.store.jobs
        query = sa.select(events).where(events.c.id > hook["seen"]).order_by(events.c.id).limit(MOST)
        found = [{**each, "state": shown_state(each["state"], each["error"])} for each in self.store.all(query)]
        if not found:
            return
        reportable = [each for each in found if each["state"] in EVENTS]
        further = jobs.c.entry["further"].label("further")
        names = (jobs.c.id, jobs.c.source, jobs.c.output, jobs.c.bytes_in, jobs.c.bytes_out, further)
        rows = self.store.all(sa.select(*names).where(jobs.c.id.in_([each["job"] for each in reportable])))
        known = {row["id"]: row for row in rows}
        notices = [self._notice(hook, each, known.get(each["job"], {})) for each in reportable]
        insert = self.store._insert(self.store.t.notices).on_conflict_do_nothing()
        seen = sa.update(hooks).where(hooks.c.id == hook["id"]).values(seen=found[-1]["id"])

        def work(connection: Any) -> None:
            if notices:
                connection.execute(insert, notices)
            connection.execute(seen)

        self.store.do(work)

    def _notice(self, hook: Mapping[str, Any], event: Mapping[str, Any], job: Mapping[str, Any]) -> NoticeRow:
        data = {"job": event["job"], "state": event["state"], "error": event["error"], "attempt": event["attempt"]}
        more = {name: value for name, value in job.items() if name not in ("id", "further")}
        payload = {**data, **more, **({"outputs": outputs_of(job)} if job else {})}
        body = _body(EVENTS[event["state"]], payload, event["at"])
        key = f"msg_{hook['id']}{event['id']:012}"
        return {"id": key, "hook": hook["id"], "body": body, "tries": 0, "next": 0.0}

    def _send(self, hook: Mapping[str, Any], secret: str) -> None:
        """Send what is due to a receiver, the oldest first, until one fails."""
        table, now = self.store.t.notices, time.time()
        due = (table.c.hook == hook["id"]) & table.c.done.is_(None) & (table.c.next <= now)
        for notice in self.store.all(sa.select(table).where(due).order_by(table.c.id).limit(MOST)):
            if self._over.is_set() or not self._claim(notice):
                return
            values: dict[str, Any] = {"done": time.time(), "error": None}
            try:
                send(hook["url"], secret, notice["id"], notice["body"])
                self._count("sent")
            except GgferryError as error:
                given_up = notice["tries"] + 1 >= len(DELAYS)
                values = {"error": str(error)[:500], "done": time.time() if given_up else None}
                self._count("given up" if given_up else "again")
                self._log("webhook", "warning", notice=notice["id"], tries=notice["tries"] + 1, message=error.message)
            self.store.run(sa.update(table).where(table.c.id == notice["id"]).values(**values))
            if values["error"] is not None:
                return

    def _claim(self, notice: Mapping[str, Any]) -> bool:
        """Take a notice, so that of several servers one sends it; the time of its next attempt is set with that."""
        table, tries = self.store.t.notices, notice["tries"] + 1
        after = DELAYS[tries] if tries < len(DELAYS) else DELAYS[-1]
        condition = (table.c.id == notice["id"]) & (table.c.tries == notice["tries"]) & table.c.done.is_(None)
        return bool(
            self.store.run(sa.update(table).where(condition).values(tries=tries, next=time.time() + max(after, 1.0)))
        )
