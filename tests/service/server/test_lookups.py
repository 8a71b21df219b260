"""A token that asks for what takes long: it waits for its turn, and nobody else does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from ggferry.service.server.store import probe
from helpers.server import Server, made_token, serving

RESOLVER = """
import os, socket, time
_real = socket.getaddrinfo

def getaddrinfo(host, *rest, **more):
    if str(host).endswith(".invalid"):
        with open(os.environ["ASKED"], "a") as out:
            out.write(f"{host}\\n")
        while not os.path.exists(os.environ["RELEASED"]):
            time.sleep(0.02)
        raise socket.gaierror(socket.EAI_AGAIN, "temporary failure in name resolution")
    return _real(host, *rest, **more)

socket.getaddrinfo = getaddrinfo
"""
"""A resolver that answers nothing until it is told to: sitecustomize.py of the server's process."""
ASKERS = 60  # more than the framework has threads (40)


class Slow:
    """A server whose resolver waits, and what it was asked."""

    def __init__(self, server: Server, asked: Path, released: Path) -> None:
        self.server, self._asked, self._released = server, asked, released

    @property
    def names(self) -> list[str]:
        return self._asked.read_text().split() if self._asked.exists() else []

    def release(self) -> None:
        self._released.touch()


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Slow]:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(RESOLVER)
    asked, released = tmp_path / "asked", tmp_path / "released"
    options = ("--allow-private-addresses", "--rate", "0", "--drain", "1")
    env = {"PYTHONPATH": str(tmp_path / "site"), "ASKED": str(asked), "RELEASED": str(released)}
    with serving(tmp_path / "data", *options, **env) as server:
        try:
            yield Slow(server, asked, released)
        finally:
            released.touch()


@pytest.mark.slow
def test_names_that_do_not_resolve_hold_up_nobody_else(slow: Slow) -> None:
    client = slow.server.client(made_token(slow.server.data, "asker", "submit"))
    other = slow.server.client(made_token(slow.server.data, "other", "read"))

    def ask(number: int) -> int:
        return client.post("/inspect", json={"source": f"http://host-{number}.invalid/a"}).status_code

    with ThreadPoolExecutor(ASKERS) as pool:
        answers = [pool.submit(ask, number) for number in range(ASKERS)]
        waiting = threading.Event()
        while len(slow.names) < 4 and not waiting.wait(0.02):
            assert not all(each.done() for each in answers)
        probes = [other.get(path, timeout=10).status_code for path in ("/models", "/roots", "/totals")]
        probes += [httpx.get(slow.server.url + path, timeout=10).status_code for path in ("/health", "/ready")]
        assert probes == [200] * 5
        assert not all(each.done() for each in answers), "the probes were to run beside them"
        slow.release()
        statuses = [each.result() for each in answers]
    assert set(statuses) == {424, 429}
    assert len(set(slow.names)) == statuses.count(424)


def test_a_token_that_may_only_read_has_nothing_fetched(slow: Slow) -> None:
    reader = slow.server.client(made_token(slow.server.data, "reader", "read"))
    answer = reader.post("/inspect", json={"source": "http://a.invalid/m.bin"})
    assert answer.status_code == 403
    assert (answer.json()["code"], answer.json()["expected"]) == ("scope", "submit")
    assert "fetched" in answer.json()["detail"]
    assert slow.names == []


def test_a_ledger_that_does_not_answer_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often /ready is asked meanwhile, one question is under way."""
    monkeypatch.setattr(probe, "SECONDS", 0.05)
    released, asked = threading.Event(), []

    def ask() -> None:
        asked.append(1)
        released.wait(60)

    async def scene() -> list[tuple[str, str] | None]:
        ledger = probe.Probe(ask, str(tmp_path))
        found = [await ledger.fault() for _ in range(3)]
        released.set()
        monkeypatch.setattr(probe, "SECONDS", 60.0)
        found.append(await ledger.fault())
        ledger.close()
        return found

    *waiting, last = asyncio.run(scene())
    assert [fault and fault[0] for fault in waiting] == ["ledger"] * 3 and last is None
    assert len(asked) <= 2
