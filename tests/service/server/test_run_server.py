"""The socket that a server listens on, the signals that end it, and what stands in its data folder."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from ggferry.service.server import run_server
from ggferry.service.server.settings import Settings
from ggferry.service.server.work import events
from ggferry.service.server.work.events import Hub
from helpers.attack_tools import typed
from helpers.server import Server, serving


def test_answers_leave_at_once(tmp_path: Path) -> None:
    """Without TCP_NODELAY every answer on a kept connection waits for the acknowledgment of the one before, 40 ms."""

    async def of_accepted() -> int:
        seen: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            own = writer.get_extra_info("socket")
            seen.set_result(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        listener = run_server._listen(Settings(str(tmp_path), port=0))
        async with await asyncio.start_server(accept, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            nodelay = await seen
            writer.close()
            return nodelay

    assert asyncio.run(of_accepted())


def test_a_signal_handler_takes_no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second signal interrupted the first inside of `Event.set`, and waited for the lock that the first held."""
    handling = threading.local()

    class Draining(threading.Event):
        def set(self) -> None:
            assert not getattr(handling, "now", False), "set by the signal handler itself"
            super().set()

    draining = Draining()
    parts = {"hub": SimpleNamespace(close=lambda: None), "runner": SimpleNamespace()}
    service: Any = SimpleNamespace(settings=Settings(""), draining=draining, **parts)
    monkeypatch.setattr(run_server, "application", lambda service: None)
    server = run_server._Server(service)
    real = signal.signal

    def watched(number: int, handler: Any) -> Any:
        def call(*arguments: Any) -> None:
            handling.now = True
            try:
                handler(*arguments)
            finally:
                handling.now = False

        return real(number, call if callable(handler) else handler)

    monkeypatch.setattr(run_server.signal, "signal", watched)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    async def ended() -> None:
        with server.capture_signals():
            for _ in range(3):
                os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.05)

    try:
        asyncio.run(ended())
    finally:
        for number, handler in before.items():
            real(number, handler)
    assert draining.is_set() and server.should_exit


@pytest.mark.unix("modes: who may read a file of Windows is inherited from its folder")
@pytest.mark.slow
def test_a_folder_that_was_there_becomes_its_owners_alone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o755)
    with serving(data):
        assert stat.S_IMODE(data.stat().st_mode) == 0o700


def test_the_link_that_signs_in_is_not_in_the_log(server: Server) -> None:
    assert "token=" not in server.log.read_text() and server.token not in server.log.read_text()
    assert stat.S_IMODE((server.data / "sign-in-link").stat().st_mode) == 0o600


@pytest.mark.slow
def test_every_line_of_the_log_is_json(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        for text in (b"nonsense\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x00\x1b[31m\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", server.port)) as connection:
                connection.sendall(text)
                connection.settimeout(20)
                while connection.recv(4096):
                    pass
        assert server.client().get(f"{server.url}/api/openapi.json").json()
    own = server.log.read_text().splitlines()
    assert {"start", "open", "library", "request", "end"} <= {json.loads(line)["event"] for line in own}
    assert "Invalid HTTP request received." in {json.loads(line).get("message") for line in own}


@pytest.mark.parametrize("root", [".", "data", "data/uploads", "data/quarantine"])
def test_a_root_does_not_hold_the_uploads(tmp_path: Path, root: str) -> None:
    for name in ("uploads", "quarantine"):
        (tmp_path / "data" / name).mkdir(parents=True)
    done = typed("serve", "--data", tmp_path / "data", "--root", tmp_path / root, "--port", "0")
    assert done.code == 2 and "another's source" in done.err, done


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.slow
def test_a_ledger_that_vanished_takes_nothing_more(tmp_path: Path, replaced: bool) -> None:
    with serving(tmp_path / "data") as server:
        client = server.client()
        assert httpx.get(f"{server.url}/ready").status_code == 200
        ledger = server.data / "ledger"
        kept = ledger.rename(tmp_path / "kept")
        if replaced:
            ledger.write_bytes(kept.read_bytes())
        answer = httpx.get(f"{server.url}/ready")
        assert answer.status_code == 503 and "removed or replaced" in answer.json()["detail"]
        answer = client.post("/plans", json={"sources": ["x"]})
        assert answer.status_code == 503 and answer.headers["content-type"] == "application/problem+json"
        kept.rename(ledger)
        assert httpx.get(f"{server.url}/ready").status_code == 200


class _Counted(list[Any]):
    """Events that count how many of them are looked at."""

    seen = 0

    def __reversed__(self) -> Any:
        for each in list.__reversed__(self):
            self.seen += 1
            yield each

    def __iter__(self) -> Any:
        for each in list.__iter__(self):
            self.seen += 1
            yield each


def test_a_listener_costs_what_is_new_to_it() -> None:
    hub = Hub(SimpleNamespace())  # type: ignore[arg-type]
    kept: Any = _Counted((number, "job", b"%d " % number) for number in range(1, events.KEPT + 1))
    hub._recent, hub._first, hub._last = kept, 0, events.KEPT

    async def missed() -> list[tuple[int, list[bytes]]]:
        return [await hub._missed(events.KEPT - 3, None) for _ in range(100)]

    for end, texts in asyncio.run(missed()):
        assert end == events.KEPT and texts == [b"9998 ", b"9999 ", b"10000 "]
    assert kept.seen <= 100 * (3 + 1)


def test_a_start_that_fails_ends_in_order(tmp_path: Path) -> None:
    """The threads of the service were left running, and met the end of Python; the private name of the link stayed."""
    data = tmp_path / "data"
    (data / "sign-in-link" / "in the way").mkdir(parents=True)
    data.chmod(0o700)
    command = [sys.executable, "-m", "ggferry", "serve", "--data", str(data), "--port", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100)
    *log, error = ended.stderr.splitlines()
    assert [json.loads(line)["event"] for line in log] == ["start", "end"]
    assert error.startswith(f"error: {data / 'sign-in-link'}: ") and ended.returncode == 1
    assert [path.name for path in data.iterdir() if path.name.startswith("sign-in-link")] == ["sign-in-link"]
