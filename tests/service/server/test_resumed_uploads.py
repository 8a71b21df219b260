"""A server that starts goes on with the uploads of the one that was killed, each once."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from ggferry.formats.errors import ChecksumError, GgferryError
from ggferry.service.server.settings import Settings
from ggferry.service.server.store import tokens
from ggferry.service.server.store.database import Store
from ggferry.service.server.work import inspection
from ggferry.service.server.work.inspection import ACCEPTED, INSPECTING, RECEIVING
from ggferry.service.server.work.inspectors import InspectorPool
from ggferry.service.server.work.uploads import Uploads
from ggferry.service.workers.supervisor import Limits

CALLER: Any = SimpleNamespace(owner="t", quota=None, id="t")


class Recorded:
    """The pool of threads, which runs nothing and lists what it was given."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    def submit(self, work: Any, key: str) -> None:
        self.keys.append(key)


@pytest.fixture
def uploads(tmp_path: Path) -> Iterator[Uploads]:
    settings = Settings(str(tmp_path))
    for folder in (settings.uploads, settings.quarantine):
        Path(folder).mkdir(parents=True)
    store = Store(str(tmp_path / "ledger"))
    tokens.add(store, "t", "admin")
    yield Uploads(store, settings, SimpleNamespace(is_over=False))  # type: ignore[arg-type]
    store.close()


def begun(uploads: Uploads) -> str:
    return str(uploads.begin(CALLER, [{"name": "m.bin", "bytes": 4}])["id"])


def test_each_is_inspected_once(uploads: Uploads) -> None:
    """Killed between the last piece and the state that follows, an upload was inspected by two threads at the next
    start, and the one that came second refused what the other had moved into its place."""
    store, (complete, inspecting, receiving) = uploads.store, (begun(uploads) for _ in range(3))
    received, table = store.t.received, store.t.uploads
    store.run(sa.update(received).where(received.c.upload != receiving).values(offset=4))
    store.run(sa.update(table).where(table.c.id == inspecting).values(state=INSPECTING))
    pool: Any = Recorded()
    uploads.inspection._pool = pool
    uploads.inspection.resume()
    assert sorted(pool.keys) == sorted([complete, inspecting])
    states = {row["id"]: row["state"] for row in store.all(sa.select(table.c.id, table.c.state))}
    assert states == {complete: INSPECTING, inspecting: INSPECTING, receiving: RECEIVING}


def test_what_is_accepted_is_not_refused_by_who_comes_late(uploads: Uploads, monkeypatch: pytest.MonkeyPatch) -> None:
    key, table = begun(uploads), uploads.store.t.uploads

    def late(folder: str, listed: Any) -> None:
        uploads.store.run(sa.update(table).where(table.c.id == key).values(state=ACCEPTED))  # by another meanwhile
        raise ChecksumError("another's", path=folder)

    monkeypatch.setattr(uploads.inspection, "_check_digests", late)
    uploads.inspection.inspect(key)
    assert uploads.show(key, "t")["state"] == ACCEPTED


def test_what_is_inspected_when_the_server_ends_is_neither_refused_nor_waited_for(uploads: Uploads) -> None:
    """A question that came after the workers had ended was never answered: the process did not end, either."""
    key = begun(uploads)
    piece = uploads.open(key, "t", 0, 0, 4)
    piece.write(b"data")
    uploads.inspection.inspectors = InspectorPool(1, Limits(threads=1))
    uploads.inspection.inspectors.close()
    assert piece.close()
    uploads.inspection.close()
    uploads.inspection._pool.shutdown(wait=True)
    assert uploads.show(key, "t")["state"] == INSPECTING


def sent(uploads: Uploads) -> str:
    """An upload of a file for an option, which no worker looks at, complete; its inspection is left to the test."""
    uploads.inspection._pool = Recorded()  # type: ignore[assignment]
    key = str(uploads.begin(CALLER, [{"name": "m.bin", "bytes": 4}], "option")["id"])
    piece = uploads.open(key, "t", 0, 0, 4)
    piece.write(b"data")
    assert piece.close()
    return key


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EPERM])
def test_a_disk_that_fails_refuses_nothing(uploads: Uploads, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """A full disk at the move out of the quarantine refused a sound upload for good, with the server's own path."""
    key = sent(uploads)

    def failing(old: str, new: str) -> None:
        raise OSError(number, os.strerror(number), old)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", failing)
        assert not uploads.inspection.inspect(key)
    found = uploads.show(key, "t")
    message = (found["error"] or {})["message"]
    assert found["state"] == INSPECTING and os.strerror(number) in message and "quarantine" not in message
    uploads.inspection.inspect(key)
    assert uploads.show(key, "t")["state"] == ACCEPTED and uploads.show(key, "t")["error"] is None


def test_a_result_that_the_ledger_did_not_take_is_found_again(
    uploads: Uploads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger's disk was full when the result was to be written: the upload was being inspected for ever."""
    key = sent(uploads)

    def full(statement: Any) -> int:
        raise GgferryError("the ledger cannot be written: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(uploads.store, "run", full)
        uploads.inspection._run(key)
    assert uploads.show(key, "t")["state"] == INSPECTING
    pool = Recorded()
    uploads.inspection._pool = pool  # type: ignore[assignment]
    uploads.inspection.look_again()
    uploads.inspection.look_again()
    assert pool.keys == [key], "one that is under way is left alone"
    uploads.inspection._run(key)
    assert uploads.show(key, "t")["state"] == ACCEPTED


def test_a_server_looks_after_what_was_left(uploads: Uploads, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last piece was acknowledged, and the state that follows could not be written."""
    key, store = sent(uploads), uploads.store
    store.run(sa.update(store.t.uploads).values(state=RECEIVING))
    uploads.inspection._under_way.clear()
    monkeypatch.setattr(inspection, "WATCH", 0.01)
    uploads.inspection._pool = ThreadPoolExecutor(1)
    uploads.inspection.start()
    until = time.monotonic() + 30
    while uploads.show(key, "t")["state"] != ACCEPTED and time.monotonic() < until:
        time.sleep(0.01)
    uploads.inspection.close()
    assert uploads.show(key, "t")["state"] == ACCEPTED
