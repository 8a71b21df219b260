"""Events as they come: in order, none missed by whoever comes back, to a thousand listeners; two hundred uploads."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from helpers.builders import Llama
from helpers.server import Server, ended, inspected, span, start, submitted

LISTENERS, UPLOADS = 1000, 200


def events_of(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """The events of a stream: event, id and data."""
    event: dict[str, Any] = {}
    for line in lines:
        name, _, value = line.partition(": ")
        if line and name:
            event[name] = json.loads(value) if name == "data" else value
        elif "data" in event:
            yield event
            event = {}
        else:
            event = {}


def states(client: httpx.Client, last: int | None = None, until: tuple[str, ...] = ("done",)) -> list[tuple[int, str]]:
    """Ids and states of the events until one of `until`."""
    headers = {} if last is None else {"Last-Event-ID": str(last)}
    found = []
    with client.stream("GET", "/events", headers=headers) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        for event in events_of(stream.iter_lines()):
            if event["event"] == "job":
                found.append((int(event["id"]), event["data"]["state"]))
                if event["data"]["state"] in until:
                    return found
    return found


def test_a_listener_who_comes_back_misses_nothing(client: httpx.Client, root: Path) -> None:
    last = max([0, *(number for number, _ in _all(client))])
    own = Llama(n_ff=320, kind="F16", container="ggjt", version=1).write(root / "streamed.bin")  # nobody else's
    (job,) = submitted(client, own, verify="none")
    ended(client, job)
    whole = states(client, last)
    assert [state for _, state in whole][:1] == ["queued"]
    assert [state for _, state in whole][-1] == "done"
    assert [number for number, _ in whole] == sorted({number for number, _ in whole})
    for place in range(len(whole) - 1):
        assert states(client, whole[place][0]) == whole[place + 1 :]


def _all(client: httpx.Client) -> list[tuple[int, str]]:
    """What was noted so far: the stream of a job that has ended, or nothing."""
    with client.stream("GET", "/events", params={"since": 0}, timeout=2) as stream:
        found = []
        try:
            for event in events_of(stream.iter_lines()):
                if event["event"] == "progress":
                    break
                found.append((int(event["id"]), event["data"]["state"]))
        except httpx.ReadTimeout:
            pass
        return found


@pytest.mark.slow
def test_events_survive_a_restart(tmp_path: Path, root: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "old.bin").write_bytes((root / "old.bin").read_bytes())
    server = start(tmp_path / "data", "--root", tmp_path / "root", "--jobs", "0")
    (job,) = submitted(server.client(), tmp_path / "root" / "old.bin", verify="none")
    assert [state for _, state in states(server.client(), 0, ("queued",))] == ["queued"]
    server.kill()
    again = start(tmp_path / "data", "--root", tmp_path / "root")
    try:
        client = again.client()
        found = states(client, 1)
        assert found[-1][1] == "done"
        assert found[0][0] == 2
        assert ended(client, job)["state"] == "done"
    finally:
        assert again.stop() == 0


@pytest.mark.slow
def test_a_thousand_listeners(server: Server, root: Path) -> None:
    """Each hears that a job ends, while others are answered; memory does not follow their number."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft > 2 * LISTENERS
    before = _memory(server.process.pid)
    with server.client() as client:
        heard, peak = asyncio.run(_listen(server, lambda: submitted(client, root / "old.bin", outtype="f16")))
    assert heard == LISTENERS
    assert peak - before < 200 << 20, f"{(peak - before) >> 20} MiB for {LISTENERS} listeners"


async def _listen(server: Server, work: Any) -> tuple[int, int]:
    """How many of a thousand listeners heard 'done', and the server's memory meanwhile."""
    ready, heard, all_there = 0, 0, asyncio.Event()
    text = (
        f"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {server.token}\r\n"
        "Accept: text/event-stream\r\n\r\n"
    ).encode()

    async def listen() -> None:
        nonlocal ready, heard
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(text)
        await reader.readuntil(b"retry: 1000")
        ready += 1
        if ready == LISTENERS:
            all_there.set()
        await reader.readuntil(b'"state": "done"')
        heard += 1
        writer.close()

    listeners = [asyncio.create_task(listen()) for _ in range(LISTENERS)]
    await asyncio.wait_for(all_there.wait(), 120)
    peak = _memory(server.process.pid)
    await asyncio.to_thread(work)
    await asyncio.wait_for(asyncio.gather(*listeners), 120)
    return heard, max(peak, _memory(server.process.pid))


def _memory(pid: int) -> int:
    """Resident bytes of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_two_hundred_uploads_at_once(server: Server, root: Path) -> None:
    """Each in pieces, all at one time; every byte arrives, and memory does not follow their number or size."""
    data = (root / "old.bin").read_bytes()
    size = len(data)
    before, peaks, over = _memory(server.process.pid), [0], threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            peaks.append(_memory(server.process.pid))

    def send(_: int) -> tuple[str, str]:
        headers = {"Authorization": f"Bearer {server.token}"}
        with httpx.Client(base_url=server.url + "/api/v1", headers=headers, timeout=300) as client:
            key = client.post("/uploads", json={"files": [{"name": "old.bin", "bytes": size}]}).json()["id"]
            for first in range(0, size, 100_000):
                piece = data[first : first + 100_000]
                headers = span(data, first, first + len(piece))
                answer = client.put(f"/uploads/{key}/files/0", content=piece, headers=headers)
                assert answer.status_code == 200, answer.text
            return key, inspected(client, key, 300)["state"]

    thread = threading.Thread(target=watch)
    thread.start()
    with ThreadPoolExecutor(UPLOADS) as pool:
        found = list(pool.map(send, range(UPLOADS)))
    over.set()
    thread.join()
    assert [state for _, state in found] == ["accepted"] * UPLOADS
    for key, _ in found:
        assert (server.data / "uploads" / key / "old.bin").read_bytes() == data
    assert max(peaks) - before < 256 << 20, f"{(max(peaks) - before) >> 20} MiB"
