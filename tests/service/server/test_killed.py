"""A server killed at random moments: no acknowledged byte or job is lost, and nothing that is not proved is shown."""

from __future__ import annotations

import hashlib
import os
import random
import threading
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from ggferry.service.records.ledger import Ledger
from helpers.builders import Llama
from helpers.server import ENDED, Server, made_token, span, start

OPTIONS: tuple[dict[str, Any], ...] = (
    *({"outtype": outtype, "allow_requantize": True} for outtype in ("keep", "f16", "q8_0", "f32")),
    {"to": "safetensors", "max_shard_size": "300K"},
)


@dataclass
class Acknowledged:
    """What the server said it has: offsets of uploads, ids of jobs, digests of files it gave out."""

    uploads: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    jobs: set[str] = field(default_factory=set)
    plans: set[str] = field(default_factory=set)


def fresh(data: bytes, number: int) -> bytes:
    """A model of other bytes: its last weights changed, so that it is no twin of another."""
    return data[:-4] + number.to_bytes(2, "little") + data[-2:]


def work(server: Server, token: str, data: bytes, number: int, known: Acknowledged, rng: random.Random) -> None:
    """Send a model in pieces, have it converted, ask for what is done; until the server is gone."""
    headers = {"Authorization": f"Bearer {token}"}
    with suppress(httpx.TransportError), httpx.Client(base_url=server.url + "/api/v1", headers=headers) as client:
        for key, (content, offset) in list(known.uploads.items()):
            check_upload(client, key, content, offset)
        content = fresh(data, number)
        made = client.post("/uploads", json={"files": [{"name": f"m{number}.bin", "bytes": len(content)}]})
        if made.status_code != 201:
            return
        key = made.json()["id"]
        known.uploads[key] = (content, 0)
        offset = 0
        while offset < len(content):
            piece = content[offset : offset + rng.randint(20_000, 200_000)]
            headers = span(content, offset, offset + len(piece))
            answer = client.put(f"/uploads/{key}/files/0", content=piece, headers=headers)
            offset = answer.json()["offset"]
            known.uploads[key] = (content, offset)
        while client.get(f"/uploads/{key}").json()["state"] in ("receiving", "inspecting"):
            time.sleep(0.05)
        options = {**OPTIONS[number % len(OPTIONS)], "verify": "fast"}
        plan = client.post("/plans", json={"source": f"upload:{key}", "options": options}).json()
        if plan.get("state") == "ready":
            answer = client.post("/jobs", json={"plan": plan["id"]})
            if answer.status_code == 202:
                known.jobs.update(answer.json()["jobs"])
        while True:
            check_done(client, known, server)
            time.sleep(0.2)


def check_upload(client: httpx.Client, key: str, content: bytes, offset: int) -> None:
    """What was acknowledged is there, and the upload goes on from there."""
    answer = client.get(f"/uploads/{key}")
    assert answer.status_code == 200, f"upload {key} is lost: {answer.text}"
    found = answer.json()
    assert found["files"][0]["offset"] >= offset, f"{offset} bytes were acknowledged, {found}"
    assert found["state"] != "refused", found


def check_done(client: httpx.Client, known: Acknowledged, server: Server) -> None:
    """Every job that is shown as done has a file whose digest is the receipt's."""
    for job in list(known.jobs):
        answer = client.get(f"/jobs/{job}")
        assert answer.status_code == 200, f"job {job} is lost"
        if answer.json()["state"] == "done":
            receipt = client.get(f"/jobs/{job}/receipt")
            assert receipt.status_code == 200, receipt.text
            for file in receipt.json()["output"]["files"]:
                data = client.get(f"/jobs/{job}/files/{file['name']}").content
                assert hashlib.sha256(data).hexdigest() == file["sha256"]


def finished(server: Server, token: str, known: Acknowledged) -> dict[str, dict[str, Any]]:
    """Every acknowledged job, once it has ended."""
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=server.url + "/api/v1", headers=headers, timeout=60) as client:
        for key, (content, offset) in known.uploads.items():
            check_upload(client, key, content, offset)
            found = client.get(f"/uploads/{key}").json()
            if found["state"] == "accepted":
                assert (server.data / "uploads" / key / found["files"][0]["name"]).read_bytes() == content
        until = time.monotonic() + 300
        jobs: dict[str, dict[str, Any]] = {}
        while set(jobs) != known.jobs:
            assert time.monotonic() < until, jobs
            for job in known.jobs - set(jobs):
                found = client.get(f"/jobs/{job}").json()
                if found["state"] in ENDED:
                    jobs[job] = found
            time.sleep(0.2)
        check_done(client, known, server)
        return jobs


def killed(tmp_path: Path, data: bytes, kills: int, seed: int) -> None:
    rng, known, place = random.Random(seed), Acknowledged(), tmp_path / "data"
    place.mkdir()
    token = made_token(place, "killer", "admin")
    failures: list[BaseException] = []
    for number in range(kills):
        server = start(place, "--rate", "0", "--jobs", "1")

        def run(server: Server = server, number: int = number) -> None:
            try:
                work(server, token, data, number, known, rng)
            except AssertionError as error:
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        time.sleep(rng.uniform(0, 3.0))
        server.kill()
        thread.join()
        assert not failures, failures[0]
    server = start(place, "--rate", "0", "--jobs", "2")
    try:
        jobs = finished(server, token, known)
    finally:
        assert server.stop() == 0
    assert len(known.uploads) > kills // 4
    assert len(jobs) >= kills // 20
    assert {job["state"] for job in jobs.values()} <= {"done"}, [job["error"] for job in jobs.values()]
    check_outputs(place, jobs)


def check_outputs(place: Path, jobs: dict[str, dict[str, Any]]) -> None:
    """Nothing stands in the folder of outputs but proved files with their receipts.

    A job may be done although the server was killed before it could acknowledge it.
    """
    with closing(Ledger(str(place / "ledger"), must_exist=True)) as ledger:
        made = {row["output"] for row in ledger.rows(None, ("done",), full=False)}
    assert made >= {job["output"] for job in jobs.values()}
    files = {os.path.join(folder, name) for folder, _, names in os.walk(place / "outputs") for name in names}
    assert files == made | {f"{path}.receipt.json" for path in made}
    assert not [path for path in files if "partial" in path]


@pytest.mark.slow
def test_killed_five_times(tmp_path: Path) -> None:
    data = Llama(n_ff=192, kind="F16", container="ggjt", version=1).write(tmp_path / "m.bin").read_bytes()
    killed(tmp_path, data, 5, 1)


@pytest.mark.slow
@pytest.mark.kills
def test_killed_a_hundred_times(tmp_path: Path) -> None:
    data = Llama(n_ff=192, kind="F16", container="ggjt", version=1).write(tmp_path / "m.bin").read_bytes()
    killed(tmp_path, data, 100, 2)
