"""A server of a test's own: `ggferry serve` as a user starts it, on loopback, and a client for it."""

from __future__ import annotations

import base64
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from ggferry.service.server.store import tokens
from ggferry.service.server.store.database import Store

ENDED = ("done", "failed", "quarantined", "skipped", "cancelled", "expired")
SECRETS = {"AWS_SECRET_ACCESS_KEY": "never", "HF_TOKEN": "never"}


@dataclass
class Server:
    """A running server; `link` is the address it printed, `token` that address's token."""

    data: Path
    process: subprocess.Popen[bytes]
    link: str
    log: Path
    clients: list[httpx.Client] = field(default_factory=list)

    @property
    def url(self) -> str:
        return "/".join(self.link.split("/", 3)[:3])

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def cookie(self) -> str:
        return f"ggferry_session_{self.port}"

    @property
    def token(self) -> str:
        return self.link.partition("token=")[2]

    def client(self, token: str | None = None) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.token if token is None else token}"}
        self.clients.append(httpx.Client(base_url=self.url + "/api/v1", headers=headers, timeout=60))
        return self.clients[-1]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        for client in self.clients:
            client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def start(data: Path, *options: str | Path, port: int = 0, popen: Any = subprocess.Popen, **env: str) -> Server:
    """Start a server and wait until it says its link; `popen` starts the process."""
    data.mkdir(exist_ok=True, mode=0o700)
    log = data / f"log-{time.monotonic_ns()}"
    command = [sys.executable, "-m", "ggferry", "serve", "--data", str(data), "--port", str(port)]
    with log.open("wb") as out:
        process = popen([*command, *map(str, options)], stderr=out, stdout=out, env={**os.environ, **SECRETS, **env})
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        if '"event": "open"' in log.read_text():
            return Server(data, process, (data / "sign-in-link").read_text().strip(), log)
        time.sleep(0.02)
    process.kill()
    raise AssertionError(log.read_text())


@contextmanager
def serving(data: Path, *options: str | Path, **env: str) -> Iterator[Server]:
    """A server for the time of the context; it must end in order."""
    server = start(data, *options, **env)
    try:
        with suppress(httpx.TransportError):  # it says its link before it listens to signals; what answers does
            httpx.get(server.url, timeout=30)
        yield server
    finally:
        code = server.stop()
        assert "Traceback" not in server.log.read_text(), server.log.read_text()
    assert code == 0, server.log.read_text()


def made_token(data: Path, name: str, scope: str, **more: Any) -> str:
    """A token as `ggferry serve token add` makes it."""
    store = Store(str(data / "ledger"))
    try:
        return tokens.add(store, name, scope, **more)
    finally:
        store.close()


def planned(client: httpx.Client, source: str | Path, **options: Any) -> dict[str, Any]:
    """A plan that is ready."""
    answer = client.post("/plans", json={"source": str(source), "options": options})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    assert found["state"] == "ready", found
    return found


def submitted(client: httpx.Client, source: str | Path, **options: Any) -> list[str]:
    """The jobs of what is at a source."""
    answer = client.post("/jobs", json={"plan": planned(client, source, **options)["id"]})
    assert answer.status_code == 202, answer.text
    return list(answer.json()["jobs"])


def ended(client: httpx.Client, job: str, seconds: float = 60) -> dict[str, Any]:
    """A job once it has ended."""
    until = time.monotonic() + seconds
    while True:
        found: dict[str, Any] = client.get(f"/jobs/{job}").json()
        if found["state"] in ENDED:
            return found
        assert time.monotonic() < until, found
        time.sleep(0.05)


def span(content: bytes, start: int, end: int) -> dict[str, str]:
    """The headers of a piece of a file: where it stands, and the digest of all up to its end."""
    digest = base64.b64encode(hashlib.sha256(content[:end]).digest()).decode()
    return {
        "Content-Range": f"bytes {start}-{end - 1}/{len(content)}",
        "Upload-Digest": f"sha-256=:{digest}:",
    }


def sent(client: httpx.Client, files: dict[str, bytes], **more: str) -> dict[str, Any]:
    """An upload of files by name, once it was inspected."""
    listed = [{"name": name, "bytes": len(data)} for name, data in files.items()]
    answer = client.post("/uploads", json={"files": listed, **more})
    assert answer.status_code == 201, answer.text
    key = answer.json()["id"]
    for number, data in enumerate(files.values()):
        if data:
            assert client.put(f"/uploads/{key}/files/{number}", content=data).status_code == 200
    return inspected(client, key)


def inspected(client: httpx.Client, key: str, seconds: float = 60) -> dict[str, Any]:
    """An upload once it was inspected."""
    until = time.monotonic() + seconds
    while True:
        found: dict[str, Any] = client.get(f"/uploads/{key}").json()
        if found["state"] in ("accepted", "refused"):
            return found
        assert time.monotonic() < until, found
        time.sleep(0.05)
