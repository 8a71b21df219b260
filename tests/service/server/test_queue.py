"""The order of the queue: seen and changed over HTTP by who may, kept by claims, in SQLite and PostgreSQL."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from ggferry.formats.errors import RefusedError
from ggferry.service.server.store import queue
from ggferry.service.server.store.database import Store
from helpers.builders import Llama
from helpers.server import Server, ended, made_token, serving, start, submitted


@pytest.fixture
def store(ledger_place: str) -> Iterator[Store]:
    """A ledger with a plan that was submitted, of eight jobs, and one of `ggferry apply`."""
    store = Store(ledger_place)
    for table in (store.jobs, store.attempts, store.t.plans):  # of the test before, where they share a database
        store.run(sa.delete(table))
    store.put(store.t.plans, id="p" * 16, state="ready", run="plan", submitted=1.0)
    store.register("plan", [line(number) for number in range(8)])
    store.register("other", [line(number) for number in range(90, 93)])
    yield store
    store.close()


def line(number: int) -> Any:
    entry = {"source": f"/in/{number}", "verdict": "convert", "bytes_in": number % 3, "recipe": {}}
    return {"id": f"{number:032x}", "source": entry["source"], "entry": entry, "state": "queued"}


def order(store: Store) -> list[int]:
    return [int(each.id, 16) for each in queue.waiting(store)]


def moved(store: Store, number: int, place: str) -> int:
    return queue.move(store, queue.waiting(store), f"{number:032x}", place)


def test_any_moves_give_the_order_that_claims_have(store: Store) -> None:
    """What a list of Python becomes by the same moves."""
    chance = random.Random(3)
    expected = order(store)
    assert expected == [2, 5, 1, 4, 7, 0, 3, 6]
    for _ in range(60):
        number, place = chance.randrange(8), chance.choice(queue.PLACES)
        here = expected.index(number)
        there = {"top": 0, "up": max(0, here - 1), "down": min(7, here + 1), "bottom": 7}[place]
        expected.insert(there, expected.pop(here))
        assert moved(store, number, place) == there + 1
        assert order(store) == expected, (number, place)
    claimed = [store.claim("me", store.submitted(), 60) for _ in range(9)]
    assert [int(job.id, 16) for job in claimed if job is not None] == expected
    untouched = {row["id"]: row["priority"] for row in store.rows("other")}
    assert set(untouched.values()) == {0}


def test_a_move_that_is_done_twice_is_one(store: Store) -> None:
    """As where the answer of the database was lost."""
    first, *_ = order(store)
    store.do(lambda connection: queue._put_before(connection, store, f"{7:032x}", f"{1:032x}"))
    once = order(store)
    store.do(lambda connection: queue._put_before(connection, store, f"{7:032x}", f"{1:032x}"))
    assert order(store) == once == [first, 5, 7, 1, 4, 0, 3, 6]


def test_a_job_that_was_begun_meanwhile_is_not_moved(store: Store) -> None:
    seen = queue.waiting(store)
    job = store.claim("me", store.submitted(), 60)
    assert job is not None
    for place in ("down", "bottom"):
        with pytest.raises(RefusedError, match="does not wait any more"):
            queue.move(store, seen, job.id, place)
    with pytest.raises(RefusedError, match="does not wait any more"):
        queue.move(store, seen, seen[3].id, "top")
    assert order(store) == [5, 1, 4, 7, 0, 3, 6]


def test_what_is_tried_again_stands_where_it_would_have(store: Store) -> None:
    moved(store, 6, "top")
    job = store.claim("me", store.submitted(), 60)
    assert job is not None and int(job.id, 16) == 6
    store.finish(job, "failed", error={"class": "X"})
    store.requeue(job.id)
    assert order(store)[-1] == 6


# --- over HTTP -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that converts nothing, with models of alice's and of bob's."""
    folder = tmp_path_factory.mktemp("queue")
    for name in ("alice", "bob"):
        (folder / "root" / name).mkdir(parents=True)
        for number in range(2):
            Llama(n_ff=320 + 32 * number, kind="F16", container="ggjt", version=1).write(
                folder / "root" / name / f"{name}{number}.bin"
            )
    with serving(folder / "data", "--root", folder / "root", "--jobs", "0") as server:
        yield server


@pytest.mark.slow
def test_who_may_move_what(idle: Server) -> None:
    root = idle.data.parent / "root"
    people = {name: idle.client(made_token(idle.data, name, "submit")) for name in ("alice", "bob")}
    reader, admin = idle.client(made_token(idle.data, "reader", "read")), idle.client()
    for name, client in people.items():
        submitted(client, root / name, verify="none", outtype="f32")

    def names() -> list[str]:
        found = reader.get("/queue").json()
        assert found["queued"] == 4 and [each["position"] for each in found["items"]] == [1, 2, 3, 4]
        return [Path(each["source"]).stem for each in found["items"]]

    ids = {Path(each["source"]).stem: each["id"] for each in reader.get("/queue").json()["items"]}
    for number, name in enumerate(("alice1", "bob1", "alice0", "bob0"), 1):
        for _ in range(4 - number):
            assert admin.post(f"/jobs/{ids[name]}/move", json={"to": "bottom"}).status_code == 200
    for name in ("bob0", "alice0", "bob1", "alice1"):
        admin.post(f"/jobs/{ids[name]}/move", json={"to": "top"})
    assert names() == ["alice1", "bob1", "alice0", "bob0"]

    def move(client: httpx.Client, name: str, to: str) -> int:
        return client.post(f"/jobs/{ids[name]}/move", json={"to": to}).status_code

    assert move(reader, "alice1", "down") == 403
    assert move(people["bob"], "alice1", "down") == 403
    assert move(people["alice"], "alice0", "up") == 403, "before bob's"
    assert names() == ["alice1", "bob1", "alice0", "bob0"]
    assert move(people["alice"], "alice1", "down") == 200 and names() == ["bob1", "alice1", "alice0", "bob0"]
    assert move(people["alice"], "alice0", "up") == 200 and names() == ["bob1", "alice0", "alice1", "bob0"]
    assert move(people["alice"], "alice0", "top") == 403
    assert move(admin, "bob0", "top") == 200 and names() == ["bob0", "bob1", "alice0", "alice1"]
    assert move(admin, "bob0", "sideways") == 422
    assert admin.post(f"/jobs/{'0' * 32}/move", json={"to": "up"}).status_code == 404
    first, second = (reader.get("/queue", params={"limit": 3, "cursor": cursor}).json() for cursor in (0, 3))
    assert (len(first["items"]), first["next"], second["next"]) == (3, 3, None)
    assert second["items"][0]["asked_by"] == "alice"

    entries = admin.get("/audit", params={"limit": 100}).json()["items"]
    mine = [each for each in entries if each["action"] == "POST /api/v1/jobs/{job}/move"]
    assert {each["actor"] for each in mine} >= {"alice", "bob"}
    assert any(each["detail"] == "top: now 1 of 4" and ids["bob0"] in each["subject"] for each in mine)
    assert any(each["status"] == 403 and each["actor"] == "bob" for each in mine)


@pytest.mark.slow
def test_jobs_are_done_in_the_order_that_was_given(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    for number in range(5):
        Llama(n_ff=320 + 32 * number, kind="F16", container="ggjt", version=1).write(
            tmp_path / "root" / f"{number}.bin"
        )
    with serving(tmp_path / "data", "--root", tmp_path / "root", "--jobs", "0") as first:
        client = first.client()
        jobs = submitted(client, tmp_path / "root", verify="none", outtype="f32")
        waiting = client.get("/queue").json()["items"]
        assert [Path(each["source"]).stem for each in waiting] == ["4", "3", "2", "1", "0"]
        for each in waiting[1::2]:
            assert client.post(f"/jobs/{each['id']}/move", json={"to": "top"}).status_code == 200
        port = first.port
    second = start(tmp_path / "data", "--root", tmp_path / "root", "--jobs", "1", port=port)
    try:
        found = [ended(second.client(first.token), job) for job in jobs]
        begun = sorted(found, key=lambda each: each["started"])
        assert [Path(each["source"]).stem for each in begun] == ["1", "3", "4", "2", "0"]
    finally:
        second.stop()
