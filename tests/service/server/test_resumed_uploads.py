"""A server that starts goes on with the uploads of the one that was killed, each once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from ggferry.formats.errors import ChecksumError
from ggferry.service.server.settings import Settings
from ggferry.service.server.store import tokens
from ggferry.service.server.store.database import Store
from ggferry.service.server.work.inspectors import InspectorPool
from ggferry.service.server.work.uploads import ACCEPTED, INSPECTING, RECEIVING, Uploads
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
    uploads._pool = pool
    uploads.resume()
    assert sorted(pool.keys) == sorted([complete, inspecting])
    states = {row["id"]: row["state"] for row in store.all(sa.select(table.c.id, table.c.state))}
    assert states == {complete: INSPECTING, inspecting: INSPECTING, receiving: RECEIVING}


def test_what_is_accepted_is_not_refused_by_who_comes_late(uploads: Uploads, monkeypatch: pytest.MonkeyPatch) -> None:
    key, table = begun(uploads), uploads.store.t.uploads

    def late(key: str, folder: str) -> None:
        uploads.store.run(sa.update(table).where(table.c.id == key).values(state=ACCEPTED))  # by another meanwhile
        raise ChecksumError("another's", path=folder)

    monkeypatch.setattr(uploads, "_check_digests", late)
    uploads._inspect(key)
    assert uploads.show(key, "t")["state"] == ACCEPTED


def test_what_is_inspected_when_the_server_ends_is_neither_refused_nor_waited_for(uploads: Uploads) -> None:
    """A question that came after the workers had ended was never answered: the process did not end, either."""
    key = begun(uploads)
    piece = uploads.open(key, "t", 0, 0, 4)
    piece.write(b"data")
    uploads.inspectors = InspectorPool(1, Limits(threads=1))
    uploads.inspectors.close()
    assert piece.close()
    uploads.close()
    uploads._pool.shutdown(wait=True)
    assert uploads.show(key, "t")["state"] == INSPECTING
