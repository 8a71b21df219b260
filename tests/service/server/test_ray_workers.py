"""A server whose jobs Ray carries out: a worker and the server are killed under load, and nothing is lost."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from helpers import processes
from helpers.archive_tools import command
from helpers.builders import Llama
from helpers.server import Server, ended, start, submitted

MODELS = 8
TASK = "ray::_do"


@contextmanager
def ray_server(data: Path, root: Path) -> Iterator[Server]:
    options = ("--root", root, "--engine", "ray", "--jobs", "2", "--threads", "1", "--memory", "1GiB", "--drain", "5")
    server = start(data, *options, RAY_ADDRESS="local")
    try:
        yield server
    finally:
        if server.process.poll() is None:
            assert server.stop() == 0
        lines = server.log.read_text().splitlines()
        assert not [line for line in lines if not line.startswith("{")], "the log is JSON lines alone"


def models(root: Path, first: int) -> None:
    for seed in range(first, first + MODELS):
        Llama(n_ff=192, seed=seed, kind="F16", container="ggjt", version=1).write(root / f"{seed}.bin")


def at_work(server: Server, seconds: float = 60) -> int:
    """The process of Ray that does a job of the server, once there is one."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for pid, name in processes.below(server.process.pid).items():
            if name.startswith(TASK):
                return pid
        time.sleep(0.02)
    raise AssertionError(server.log.read_text())


def check_done(client: httpx.Client, jobs: list[str]) -> None:
    for job in jobs:
        found = ended(client, job, 180)
        assert found["state"] == "done", found["error"]
        (file,) = client.get(f"/jobs/{job}/files").json()
        content = client.get(file["url"].removeprefix("/api/v1")).content
        assert hashlib.sha256(content).hexdigest() == file["sha256"]


@pytest.mark.slow
def test_killed_under_load(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    root.mkdir()
    models(root, 0)
    with ray_server(data, root) as server:
        client = server.client()
        jobs = submitted(client, root, verify="fast")
        assert len(jobs) == MODELS
        os.kill(at_work(server), signal.SIGKILL)
        check_done(client, jobs)
        tried = [each for job in jobs for each in client.get(f"/jobs/{job}").json()["tried"]]
        died = [each for each in tried if each["outcome"] != "done"]
        assert died and all(each["error"]["class"] == "WorkerDied" for each in died), "nothing was killed"
        # the same server takes what is submitted later, and is killed itself
        models(root, MODELS)
        more = [job for job in submitted(client, root, verify="fast") if job not in jobs]
        assert len(more) == MODELS
        at_work(server)
        below = processes.below(server.process.pid)
        server.kill()
    wait_for_the_end_of(below)
    with ray_server(data, root) as server:
        client = server.client()
        check_done(client, [*jobs, *more])
        (job,) = (each for each in submitted(client, root / "0.bin", outtype="q8_0", verify="fast"))
        assert ended(client, job, 120)["state"] == "done"
        below = processes.below(server.process.pid)
    wait_for_the_end_of(below)
    outputs = [path.name for path in (data / "outputs").rglob("*") if path.is_file()]
    assert len(outputs) == 2 * (2 * MODELS + 1) and not [name for name in outputs if "partial" in name]


def wait_for_the_end_of(below: dict[int, str]) -> None:
    """No process of Ray that works outlives the server that began it; its agents look for their raylet now and then."""
    until = time.monotonic() + 60
    while left := {pid: name for pid, name in below.items() if is_there(pid) and not name.endswith("Agent")}:
        assert time.monotonic() < until, left
        time.sleep(0.2)
    for pid, name in below.items():
        if is_there(pid) and name.endswith("Agent"):
            os.kill(pid, signal.SIGKILL)


def is_there(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.slow
def test_a_job_on_ray_is_cancelled_and_drained(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    root.mkdir()
    Llama(n_ff=2048, n_layer=6, seed=1, kind="F16", container="ggjt", version=1).write(root / "large.bin")
    models(root, 0)
    with ray_server(data, root) as server:
        client = server.client()
        jobs = submitted(client, root, verify="fast")
        at_work(server)
        busy = next(job for job in jobs if client.get(f"/jobs/{job}").json()["state"] != "done")
        assert client.post(f"/jobs/{busy}/cancel").status_code == 200
        left = [job for job in jobs if job != busy]
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 40
    with ray_server(data, root) as server:
        client = server.client()
        check_done(client, left)
        assert client.get(f"/jobs/{busy}").json()["state"] == "cancelled"


def test_an_engine_that_is_none(tmp_path: Path) -> None:
    done = command("serve", "--data", tmp_path, "--engine", "dask", code=2)
    assert "local, ray" in done.stderr
