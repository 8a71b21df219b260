"""A Ray cluster of two nodes on this machine, a worker killed in the middle: every file right, nothing done twice."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import ray

from ggferry.service.apply.job import Settings
from ggferry.service.apply.migration import Migration, MigrationRequest
from ggferry.service.records.ledger import Ledger
from ggferry.service.records.plan_file import outputs_of
from ggferry.service.records.receipts import receipts_of
from ggferry.service.workers.supervisor import Limits
from helpers.archive_tools import plan, spoil, write
from helpers.builders import Llama
from helpers.processes import Process, every


@pytest.fixture(scope="module")
def cluster() -> Any:
    """Two nodes with room for one job each."""
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    memory = 2 << 30
    head = {"num_cpus": 1, "memory": memory, "object_store_memory": 80 << 20, "include_dashboard": False}
    found = Cluster(initialize_head=True, head_node_args=head)
    found.add_node(num_cpus=1, memory=memory, object_store_memory=80 << 20)
    found.wait_for_nodes()
    ray.init(address=found.address, log_to_driver=False, configure_logging=False)
    yield found
    ray.shutdown()
    found.shutdown()


@pytest.mark.slow
def test_two_nodes_and_a_killed_worker(cluster: Any, tmp_path: Path, fixtures: Path) -> None:
    root, dest, path = tmp_path / "in", tmp_path / "out", tmp_path / "plan.jsonl"
    states = spoil(root, fixtures, tmp_path / "canary")
    for seed in range(8):
        write(root / f"{seed}.bin", Llama(seed=seed, kind="F16", version=1))
        states[f"{seed}.bin"] = "done"
    plan(root, path, "--dest", dest, "-j", "1", "--verify", "fast")
    events: list[dict[str, Any]] = []
    asked = MigrationRequest(str(path), str(tmp_path / "ledger"), "ray", 2, Settings(Limits(threads=1)))
    migration = Migration(asked, events.append)
    left = migration.prepare()
    assert len(left) == 8
    killed: list[str] = []
    threading.Thread(target=_kill_one, args=(killed, events), daemon=True).start()
    migration.run(left)
    assert killed, "nothing was killed: the test shows nothing"
    rows = {os.path.relpath(row["source"], root): row for row in migration.ledger.rows()}
    assert {name: rows[name]["state"] for name in states} == states
    assert len(list(dest.rglob("*.gguf"))) == 8 and not list(dest.rglob("*.partial"))
    again = [event for event in events if event["event"] == "job" and event["state"] == "again"]
    assert any(event["error"]["class"] == "WorkerDied" for event in again), events
    with migration.ledger.engine.connect() as connection:
        tried = connection.execute(migration.ledger.attempts.select()).mappings().all()
    done = [row["job"] for row in tried if row["outcome"] == "done"]
    assert len(done) == len(set(done)) == 8, "a job was done twice"
    migration.ledger.close()


def _kill_one(killed: list[str], events: list[dict[str, Any]]) -> None:
    """SIGKILL for a Ray worker that is at a job of ours, once two have ended."""
    while sum(event.get("state") == "done" for event in events) < 2:
        time.sleep(0.05)
    while not killed:
        for process in _tasks():
            os.kill(process.pid, signal.SIGKILL)
            killed.append(process.command)
            return
        time.sleep(0.02)


@pytest.mark.slow
def test_a_worker_serves_many_models(cluster: Any, tmp_path: Path) -> None:
    """Starting a process of Ray and a worker in it for each of many tiny models takes a hundred times as long."""
    root, dest, path = tmp_path / "in", tmp_path / "out", tmp_path / "plan.jsonl"
    for seed in range(12):
        write(root / f"{seed}.bin", Llama(seed=seed, kind="F16", version=1))
    plan(root, path, "--dest", dest, "-j", "1", "--verify", "fast")
    asked = MigrationRequest(str(path), str(tmp_path / "ledger"), "ray", 2, Settings(Limits(threads=1)))
    migration = Migration(asked, lambda event: None)
    left = migration.prepare()
    seen: set[int] = set()
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            found = every()
            tasks = {one.pid for one in found if one.command.startswith("ray::")}
            workers = [one for one in found if "ggferry.service.workers" in one.command]
            seen.update(one.pid for one in workers if one.parent in tasks)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        migration.run(left)
    finally:
        over.set()
        watcher.join()
    assert len(list(dest.rglob("*.gguf"))) == 12
    assert 1 <= len(seen) <= 4, seen  # one on each node, and what takes the place of one that Ray ended
    migration.ledger.close()


@pytest.mark.slow
def test_stopping_ends_the_work(cluster: Any, tmp_path: Path) -> None:
    """A stopped run leaves no process of ours on any node, and its jobs queued."""
    root, path = tmp_path / "in", tmp_path / "plan.jsonl"
    for seed in range(4):
        write(root / f"{seed}.bin", Llama(seed=seed))
    plan(root, path, "--dest", tmp_path / "out", "-j", "1")
    stopped = threading.Event()

    def stop(event: dict[str, Any]) -> None:
        if event.get("state") == "running" and not stopped.is_set():
            stopped.set()
            raise KeyboardInterrupt

    migration = Migration(
        MigrationRequest(str(path), str(tmp_path / "ledger"), "ray", 2, Settings(Limits(threads=1))), stop
    )
    left = migration.prepare()
    with pytest.raises(KeyboardInterrupt):
        migration.run(left)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and _tasks():
        time.sleep(0.2)
    assert not _tasks()
    book = Ledger(str(tmp_path / "ledger"))
    book.reclaim()
    assert book.counts()["done"] < 4
    assert book.counts()["queued"] + book.counts()["running"] + book.counts()["done"] == 4


def _tasks() -> list[Process]:
    return [process for process in every() if process.command.startswith("ray::_do")]


@pytest.mark.slow
def test_a_line_of_several_outputs(cluster: Any, tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.bin", Llama(kind="F16", version=1))
    path = tmp_path / "plan.jsonl"
    (line,) = plan(
        tmp_path / "in", path, "--dest", tmp_path / "out", "-j", "1", "--verify", "fast", "--outtype", "q8_0,f16"
    )
    migration = Migration(
        MigrationRequest(str(path), str(tmp_path / "ledger"), "ray", 1, Settings(Limits(threads=1))), print
    )
    migration.run(migration.prepare())
    (row,) = migration.ledger.rows()
    assert row["state"] == "done", row["error"]
    assert outputs_of(row["entry"]) == [line["output"], line["further"][0]["output"]]
    for output, receipt in zip(outputs_of(row["entry"]), receipts_of(row["receipt"]), strict=True):
        assert json.loads(Path(f"{output}.receipt.json").read_text()) == receipt
