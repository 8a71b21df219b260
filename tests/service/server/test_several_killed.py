"""Several servers over one PostgreSQL ledger and one data folder, any of them killed under load: nothing is lost."""

from __future__ import annotations

import hashlib
import random
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from ggferry.service.server.store.database import Store
from helpers.archive_tools import command
from helpers.builders import Llama
from helpers.server import ENDED, Server, span, start

SERVERS, KILLS, MODELS = 3, 6, 14
BLOCK = 40_000  # bytes of a piece of an upload


@dataclass
class Fleet:
    """The servers, one of which may be away, and what any of them acknowledged."""

    servers: list[Server]
    token: str
    jobs: dict[str, int] = field(default_factory=dict)
    uploads: dict[str, bytes] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    http: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=30))

    def ask(self, method: str, path: str, seconds: float = 120, **more: object) -> httpx.Response:
        """The answer of whichever server answers; a request whose answer was lost is sent to another."""
        until, headers = time.monotonic() + seconds, {"Authorization": f"Bearer {self.token}"}
        headers |= more.pop("headers", {})  # type: ignore[arg-type]
        while time.monotonic() < until:
            server = random.choice(self.servers)
            with suppress(httpx.TransportError):
                url = f"{server.url}/api/v1{path}"
                answer = self.http.request(method, url, headers=headers, **more)  # type: ignore[arg-type]
                if answer.status_code not in (429, 502, 503):
                    return answer
            time.sleep(0.2)
        raise AssertionError(f"{method} {path}: no server answered")


def convert(fleet: Fleet, number: int, source: Path) -> None:
    """Have a model converted: every other one is sent, piece by piece, each to any server."""
    key, content = str(source), source.read_bytes()
    if number % 2:
        announced = {"files": [{"name": source.name, "bytes": len(content)}]}
        once = {"Idempotency-Key": f"upload {number}"}
        found = fleet.ask("POST", "/uploads", json=announced, headers=once).json()
        fleet.uploads[found["id"]] = content
        offset = 0
        while offset < len(content):
            piece = content[offset : offset + BLOCK]
            headers = span(content, offset, offset + len(piece))
            answer = fleet.ask("PUT", f"/uploads/{found['id']}/files/0", content=piece, headers=headers)
            if answer.status_code == 200:
                assert answer.json()["offset"] == offset + len(piece)
                offset += len(piece)
            else:  # what arrived of a piece whose server died counts
                assert answer.status_code in (404, 409), answer.text
                after = fleet.ask("GET", f"/uploads/{found['id']}").json()["files"][0]["offset"]
                assert after >= offset, "what was acknowledged is there"
                offset = after
        while (state := fleet.ask("GET", f"/uploads/{found['id']}").json()["state"]) in ("receiving", "inspecting"):
            time.sleep(0.2)
        assert state == "accepted"
        key = f"upload:{found['id']}"
    options = {"verify": "fast", **({"to": "safetensors", "max_shard_size": "20K"} if number % 3 == 2 else {})}
    while True:
        plan = fleet.ask("POST", "/plans", json={"source": key, "options": options}).json()
        if plan.get("state") == "ready":
            break
        assert plan.get("state") in ("planning", "failed"), plan
        time.sleep(0.2)
    answer = fleet.ask("POST", "/jobs", json={"plan": plan["id"]})
    assert answer.status_code == 202, answer.text
    fleet.jobs.update(dict.fromkeys(answer.json()["jobs"], number))


@pytest.mark.slow
def test_any_of_three_servers_is_killed_under_load(postgres: str, tmp_path: Path) -> None:
    root, data, rng = tmp_path / "root", tmp_path / "data", random.Random(7)
    root.mkdir()
    data.mkdir(mode=0o700)
    sources = [
        Llama(n_ff=64 + 32 * (number % 5), seed=number, kind="F16", container="ggjt", version=1).write(
            root / f"{number}.bin"
        )
        for number in range(MODELS)
    ]
    token = command("serve", "--data", data, "--ledger", postgres, "token", "add", "ci", "--scope", "admin").stdout
    options = ("--root", root, "--ledger", postgres, "--jobs", "1", "--rate", "0", "--drain", "1")
    fleet = Fleet([start(data, *options) for _ in range(SERVERS)], token.strip())

    def client(numbers: range) -> None:
        try:
            for number in numbers:
                convert(fleet, number, sources[number])
        except (AssertionError, KeyError, ValueError) as error:
            fleet.failures.append(f"{type(error).__name__}: {error}")

    clients = [threading.Thread(target=client, args=(range(first, MODELS, 2),)) for first in (0, 1)]
    try:
        for each in clients:
            each.start()
        for _ in range(KILLS):
            time.sleep(rng.uniform(0.2, 2.0))
            place = rng.randrange(SERVERS)
            fleet.servers[place].kill()
            fleet.servers[place] = start(data, *options)
        for each in clients:
            each.join(240)
        assert not fleet.failures and not any(each.is_alive() for each in clients), fleet.failures
        assert len(fleet.jobs) == MODELS
        for job in fleet.jobs:
            found = wait(fleet, job)
            assert found["state"] == "done", found["error"]
            files = fleet.ask("GET", f"/jobs/{job}/files").json()
            assert (len(files) > 5) is (fleet.jobs[job] % 3 == 2)
            for file in files:
                content = fleet.ask("GET", str(file["url"]).removeprefix("/api/v1")).content
                assert hashlib.sha256(content).hexdigest() == file["sha256"]
        for key, content in fleet.uploads.items():
            name = fleet.ask("GET", f"/uploads/{key}").json()["files"][0]["name"]
            assert (data / "uploads" / key / name).read_bytes() == content
        assert not [path for path in (data / "outputs").rglob("*") if "partial" in path.name]
    finally:
        fleet.http.close()
        codes = [server.stop() for server in fleet.servers]
    assert codes == [0] * SERVERS
    store = Store(postgres)
    entered = store.all(store.t.audit.select().where(store.t.audit.c.action == "POST /api/v1/jobs"))
    store.close()
    assert len([each for each in entered if each["status"] == 202]) >= MODELS


def wait(fleet: Fleet, job: str) -> dict[str, object]:
    """A job once it has ended."""
    until = time.monotonic() + 240
    while True:
        found: dict[str, object] = fleet.ask("GET", f"/jobs/{job}").json()
        if found["state"] in ENDED:
            return found
        assert time.monotonic() < until, found
        time.sleep(0.3)
