"""Two servers and `ggferry apply` on one PostgreSQL ledger: no job is done twice, and each hears of all."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from ggferry.service.server.store import asked, models, removal
from ggferry.service.server.store.database import Store
from helpers.archive_tools import command
from helpers.builders import Llama
from helpers.server import ended, start, submitted


@pytest.mark.slow
def test_two_servers_share_the_work(postgres: str, tmp_path: Path) -> None:
    root, shared = tmp_path / "root", tmp_path / "shared"
    root.mkdir()
    shared.mkdir()
    for number in range(6):
        Llama(n_ff=192 + 32 * number, kind="F16", container="ggjt", version=1).write(root / f"{number}.bin")
    options = ("--root", root, "--ledger", postgres, "--dest", shared)
    servers = [start(tmp_path / name, *options) for name in ("one", "two")]
    try:
        one, two = (server.client(servers[0].token) for server in servers)  # a token of one is a token of all
        jobs = submitted(one, root, verify="fast")
        assert len(jobs) == 6
        with httpx.stream("GET", f"{servers[1].url}/api/v1/events?since=0", headers=dict(two.headers)) as stream:
            seen = ""
            for text in stream.iter_text():
                seen += text
                if seen.count('"state": "done"') == 6:
                    break
        assert {ended(two, job)["state"] for job in jobs} == {"done"}
        attempts = [row for job in jobs for row in two.get(f"/jobs/{job}").json()["tried"]]
        assert [row["outcome"] for row in attempts] == ["done"] * 6
        for job in jobs:  # made by either, given by both
            (file,) = two.get(f"/jobs/{job}/files").json()
            assert one.get(file["url"].removeprefix("/api/v1")).status_code == 200
    finally:
        assert [server.stop() for server in servers] == [0, 0]


@pytest.mark.slow
def test_apply_shares_the_work_of_a_server(postgres: str, tmp_path: Path) -> None:
    """A server that converts nothing itself; `apply` with its plan's file and ledger does its jobs."""
    root = tmp_path / "root"
    root.mkdir()
    Llama(n_ff=448, kind="F16", container="ggjt", version=1).write(root / "m.bin")
    server = start(tmp_path / "data", "--root", root, "--ledger", postgres, "--jobs", "0")
    try:
        client = server.client(made_token_in(tmp_path / "data", postgres))
        plan = client.post("/plans", json={"source": str(root / "m.bin"), "options": {"verify": "fast"}}).json()
        (job,) = client.post("/jobs", json={"plan": plan["id"]}).json()["jobs"]
        file = tmp_path / "plan.jsonl"
        file.write_text(client.get(f"/plans/{plan['id']}/file").text)
        command("apply", file, "--ledger", postgres, "-j", "1")
        assert ended(client, job)["state"] == "done"
        assert client.get(f"/jobs/{job}/receipt").status_code == 200
    finally:
        assert server.stop() == 0


def made_token_in(data: Path, ledger: str) -> str:
    """A token in a ledger of any kind."""
    return command("serve", "--data", data, "--ledger", ledger, "token", "add", "ci", "--scope", "admin").stdout.strip()


@pytest.mark.slow
def test_columns_and_states_of_the_server_in_postgresql(postgres: str) -> None:
    """States beyond the ledger's are found."""
    store = Store(postgres)
    try:
        assert store.all(store.t.received.select()) == []
        jobs = [f"{number:032x}" for number in range(3)]
        entry: Any = {"source": "/a/m.bin", "verdict": "convert"}
        store.register("1" * 16, [{"id": job, "source": "/a/m.bin", "entry": entry, "state": "queued"} for job in jobs])  # type: ignore[list-item]
        models.index_unknown(store)
        token: Any = SimpleNamespace(owner="t", name="alice")
        asked.note(store, jobs, token)
        asked.note(store, jobs, SimpleNamespace(owner="u", name="bob"), again=jobs[:1])  # type: ignore[arg-type]
        store.cancel(jobs[0])
        done = store.claim("w", "1" * 16, 60)
        assert done is not None
        store.finish(done, "done")
        removal.expire(store, [done.id])
        found = {row["state"]: row["asked_by"] for row in models.find(store, models.Query(plan="1" * 16)).items}
        assert found.keys() == {"cancelled", "expired", "queued"} and found["cancelled"] == "bob"
        assert models.find(store, models.Query(plan="1" * 16, states=("expired",))).total == 1
        assert removal.counts(store)["cancelled"] == 1
        assert sorted(removal.requeue_requested(store, jobs)) == sorted([jobs[0], done.id])
        removal.forget(store, jobs)
        assert models.find(store, models.Query(plan="1" * 16)).total == 3, "what waits is not forgotten"
    finally:
        store.close()
