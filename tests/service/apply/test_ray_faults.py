"""A Ray cluster that dies, lacks a node, or is of two minds: no healthy model pays for it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

import ggferry
from ggferry.formats.errors import RefusedError, UnreachableError
from ggferry.service.apply.job import Settings
from ggferry.service.apply.migration import Migration, MigrationRequest
from ggferry.service.records.ledger import DONE, FAILED, QUARANTINED, QUEUED, Ledger
from ggferry.service.workers.supervisor import Limits
from helpers.archive_tools import GGFERRY, command, plan, rows, write
from helpers.builders import Llama
from helpers.processes import below, listening

pytestmark = pytest.mark.attack

LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


def prepare(tmp_path: Path, count: int = 4) -> Path:
    for seed in range(count):
        write(tmp_path / "in" / f"{seed}.bin", Llama(seed=seed, kind="F16", version=1))
    path = tmp_path / "plan.jsonl"
    plan(tmp_path / "in", path, "--dest", tmp_path / "out", "-j", "1", "--verify", "none", "--no-digest")
    return path


def apply(path: Path) -> list[str]:
    options = ["-j", "2", "--threads", "1", "--memory", "1G", "--engine", "ray", "--json"]
    return [*GGFERRY, "apply", str(path), *options]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """`apply` on a cluster of its own, at its first job."""
    path = prepare(tmp_path)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    run = subprocess.Popen(apply(path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert run.stdout is not None and run.stderr is not None
    for line in run.stdout:
        if json.loads(line).get("state") == "running":
            break
    else:
        raise AssertionError(run.stderr.read())
    try:
        yield run, path
    finally:
        if run.poll() is None:
            run.kill()
            run.communicate()


def kill(run: subprocess.Popen[str], name: str) -> None:
    found = [pid for pid, arguments in below(run.pid).items() if name in arguments]
    assert found, name
    os.kill(found[0], signal.SIGKILL)


def ended(run: subprocess.Popen[str], within: float) -> tuple[list[dict[str, Any]], str]:
    out, errors = run.communicate(timeout=within)
    return [json.loads(line) for line in out.splitlines()], errors


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"), [("raylet/raylet ", "its raylet on this machine died"), ("gcs_server", "its head at")]
)
def test_a_dead_cluster_ends_the_run_and_quarantines_nothing(
    name: str, words: str, running: tuple[subprocess.Popen[str], Path], tmp_path: Path
) -> None:
    run, path = running
    kill(run, name)
    _, errors = ended(run, 55)  # Ray itself ends a process whose head is gone after 60 s, wordless
    assert run.returncode == 3, errors
    assert "the Ray cluster is gone" in errors and words in errors and "the same command continues" in errors
    book = Ledger(f"{path}.ledger")
    counts = book.counts()
    assert counts[QUARANTINED] == counts[FAILED] == 0 and counts[QUEUED] + counts[DONE] == 4
    assert all(row["attempts"] <= 1 for row in book.rows())
    book.close()
    command("apply", path, "-j", "1")
    assert len(list((tmp_path / "out").glob("*.gguf"))) == 4 and not list((tmp_path / "out").glob("*.partial*"))


@pytest.mark.slow
def test_a_cluster_of_this_machine_is_reached_from_this_machine_only(
    running: tuple[subprocess.Popen[str], Path],
) -> None:
    run, _ = running
    processes = below(run.pid)
    assert any("gcs_server" in arguments for arguments in processes.values())
    found = listening([run.pid, *processes])
    assert found and found <= LOOPBACK, found
    run.send_signal(signal.SIGINT)
    ended(run, 40)
    assert run.returncode in (0, 130)  # all four models may have been done by then


@pytest.mark.slow
def test_a_job_that_no_node_can_take_is_told_and_the_rest_is_done(tmp_path: Path) -> None:
    path = prepare(tmp_path, 3)
    head, *lines = map(json.loads, path.read_text().splitlines())
    lines[0]["memory"], lines[1]["gpus"] = 10**13, 1
    path.write_text("".join(json.dumps(line) + "\n" for line in (head, *lines)))
    run = subprocess.run(apply(path), capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 1, run.stderr
    found = {Path(source).name: row for source, row in rows(f"{path}.ledger").items()}
    assert found["2.bin"]["state"] == DONE
    for name, lacking in (("0.bin", "9,313.2 GiB of memory"), ("1.bin", "1 GPU")):
        error = found[name]["error"]
        assert found[name]["state"] == FAILED and error["class"] == "NoNode" and lacking in error["message"], error
        assert "the most a node has" in error["message"] and "--retry-failed" in error["hint"]


@pytest.fixture
def two_nodes() -> Iterator[Callable[..., Any]]:
    """A cluster of two nodes on this machine; the second one's environment is given."""
    from ray.cluster_utils import Cluster

    begun = []

    def begin(**environment: str) -> Any:
        options = {"memory": 2 << 30, "object_store_memory": 80 << 20}
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, **options})
        begun.append(cluster)
        cluster.add_node(num_cpus=1, env_vars=environment, **options)
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
        return cluster

    yield begin
    ray.shutdown()
    for cluster in begun:
        cluster.shutdown()


@pytest.mark.slow
def test_a_node_with_another_ggferry_is_refused(two_nodes: Callable[..., Any], tmp_path: Path) -> None:
    path = prepare(tmp_path, 1)
    fake = tmp_path / "site" / "ggferry"
    fake.mkdir(parents=True)
    (fake / "__init__.py").write_text('__version__ = "0.0.7"\n')
    two_nodes(PYTHONPATH=str(fake.parent))
    asked = MigrationRequest(str(path), str(tmp_path / "ledger"), "ray", 2, Settings(Limits(threads=1)))
    migration = Migration(asked, lambda event: None)
    with pytest.raises(RefusedError) as caught:
        migration.run(migration.prepare())
    assert caught.value.found == "0.0.7" and caught.value.expected == ggferry.__version__ and caught.value.path
    assert migration.ledger.counts()[QUEUED] == 1 and not (tmp_path / "out").exists()
    migration.ledger.close()


@pytest.mark.slow
def test_a_node_that_dies_costs_its_jobs_nothing(two_nodes: Callable[..., Any], tmp_path: Path) -> None:
    path = prepare(tmp_path, 4)
    cluster = two_nodes()
    events: list[dict[str, Any]] = []
    node = cluster.list_all_nodes()[-1]

    def end_node() -> None:
        raylet = node.all_processes["raylet"][0].process.pid
        while not any(arguments.startswith("ray::_do") for arguments in below(raylet).values()):
            time.sleep(0.05)
        cluster.remove_node(node, allow_graceful=False)

    asked = MigrationRequest(str(path), str(tmp_path / "ledger"), "ray", 2, Settings(Limits(threads=1), attempts=1))
    migration = Migration(asked, events.append)
    left = migration.prepare()
    killer = threading.Thread(target=end_node, daemon=True)
    killer.start()
    migration.run(left)
    killer.join(30)
    counts = migration.ledger.counts()
    assert counts[DONE] == 4, (counts, [event for event in events if event["event"] == "job"])
    again = [event["error"] for event in events if event.get("state") == "again"]
    assert again and all(error["fault"] == "passing" for error in again), again
    assert max(row["attempts"] for row in migration.ledger.rows()) == 1
    migration.ledger.close()


@pytest.mark.unix("Ray")
def test_a_cluster_that_is_not_there_is_told_in_words(tmp_path: Path) -> None:
    path = prepare(tmp_path, 1)
    migration = Migration(
        MigrationRequest(str(path), str(tmp_path / "ledger"), "ray", address="nobody"), lambda event: None
    )
    with pytest.raises(UnreachableError, match="the Ray cluster cannot be reached"):
        migration.run(migration.prepare())
    migration.ledger.close()


def test_a_node_that_does_not_start_in_time_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine at a load of 12 Ray gave up its own start after 30 seconds, by a bare Exception: exit code 70."""
    from ggferry.service.apply import ray_cluster

    def late(**options: Any) -> None:
        raise Exception("The current node timed out during startup.\nThis could happen because …")

    monkeypatch.setattr(ray, "init", late)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(UnreachableError, match="timed out during startup"), ray_cluster.connected(None):
        pass
