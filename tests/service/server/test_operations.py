"""What operators rely on: webhooks, figures, logs, an orderly end, a restart, retention."""

from __future__ import annotations

import json
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from standardwebhooks import Webhook

from ggferry.service.server.settings import Settings
from ggferry.service.server.state import open_service
from ggferry.service.server.work import notices
from helpers.archive_tools import command
from helpers.builders import Llama
from helpers.server import Server, ended, planned, sent, start, submitted


@dataclass
class Receiver:
    """Takes notices: answers with the next of `statuses`, then 204, and keeps what came."""

    statuses: list[int] = field(default_factory=list)
    taken: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    url: str = ""


@contextmanager
def receiver() -> Iterator[Receiver]:
    found = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.taken.append(({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(found.statuses.pop(0) if found.statuses else 204)
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_address[1]}/hook"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield found
    server.shutdown()
    server.server_close()


def until(condition: Any, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture
def place(tmp_path: Path, fixtures: Path) -> Path:
    """The folder of a server that is not running, with a root beside it."""
    (tmp_path / "root").mkdir()
    (tmp_path / "data").mkdir(mode=0o700)
    shutil.copy(fixtures / "legacy-llama" / "ggjt3-20230821" / "q4_0.bin", tmp_path / "root" / "old.bin")
    return tmp_path / "data"


def test_signatures_are_those_of_the_specification() -> None:
    """The library of the specification verifies what we sign."""
    secret, body = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", json.dumps({"type": "job.done", "data": {"é": 1}})
    seconds = int(time.time())
    headers = {"webhook-id": "msg_1", "webhook-timestamp": str(seconds)}
    headers["webhook-signature"] = notices.sign(secret, "msg_1", seconds, body)
    assert Webhook(secret).verify(body, headers) == json.loads(body)


@pytest.mark.slow
def test_webhooks_are_sent_again_until_they_are_taken(place: Path) -> None:
    with receiver() as found:
        made = json.loads(command("serve", "--data", place, "webhook", "add", found.url, "--json").stdout)
        found.statuses = [500]
        server = start(place, "--root", place.parent / "root", "--allow-private-addresses")
        try:
            (job,) = submitted(server.client(), place.parent / "root" / "old.bin", verify="none")
            until(lambda: len(found.taken) == 2)
        finally:
            assert server.stop() == 0
        headers, body = found.taken[1]
        assert headers["webhook-id"] == found.taken[0][0]["webhook-id"]
        seen = Webhook(made["secret"]).verify(body, headers)
        assert (seen["type"], seen["data"]["job"]) == ("job.done", job)
        assert [Path(each).suffix for each in seen["data"]["outputs"]] == [".gguf"]
        assert seen["data"]["outputs"][0] == seen["data"]["output"]
        options = ("serve", "--data", place, "--allow-private-addresses", "webhook")
        assert command(*options, "test", made["id"]).stderr == "taken\n"
        assert json.loads(found.taken[-1][1])["type"] == "test"
        command("serve", "--data", place, "webhook", "test", made["id"], code=3)  # a private address
        found.statuses = [403]
        command(*options, "test", made["id"], code=3)
        command(*options, "remove", made["id"])
        assert command(*options, "list").stdout == ""


def test_figures(server: Server, client: httpx.Client, root: Path) -> None:
    (job,) = submitted(client, root / "old.bin", verify="fast")
    ended(client, job)
    text = httpx.get(f"{server.url}/metrics", headers=dict(client.headers)).text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["ggferry_job_duration_seconds"].type == "histogram"
    states = {sample.labels["state"]: sample.value for sample in families["ggferry_jobs"].samples}
    assert states["done"] >= 1
    assert "old.bin" not in text
    assert job not in text
    for name in families:
        assert not name.endswith(("_ms", "_kilobytes", "_minutes")), name
    labels = {key for family in families.values() for sample in family.samples for key in sample.labels}
    assert labels <= {"method", "route", "status", "state", "result", "le"}


def test_logs(server: Server, client: httpx.Client, root: Path) -> None:
    (job,) = submitted(client, root / "old.bin", verify="none", outtype="f32")
    ended(client, job)
    client.get("/browse", params={"path": "/\x1b[31m"})
    lines = server.log.read_text().splitlines()
    events = [json.loads(line) for line in lines]
    assert [each["state"] for each in events if each["event"] == "job" and each["job"] == job] == ["running", "done"]
    assert any(each["event"] == "request" and each.get("job") == job for each in events)
    assert server.token.split("_")[2] not in "".join(lines)
    assert "\x1b" not in "".join(lines)


@pytest.mark.slow
def test_the_end_is_in_order_and_a_restart_goes_on(place: Path) -> None:
    """A job that does not end within --drain is queued again, listeners are sent away, and the next server does it."""
    for number in range(3):
        Llama(n_ff=192 + 64 * number, kind="F16", container="ggjt", version=1).write(
            place.parent / "root" / f"{number}.bin"
        )
    server = start(place, "--root", place.parent / "root", "--drain", "0")
    client = server.client()
    jobs = submitted(client, place.parent / "root", verify="full")
    assert len(jobs) >= 4
    until(lambda: client.get("/totals").json()["states"]["running"])
    with httpx.stream("GET", f"{server.url}/api/v1/events", headers=dict(client.headers), timeout=60) as stream:
        server.process.send_signal(signal.SIGTERM)
        assert "bye" in "".join(stream.iter_lines())
    assert server.stop() == 0
    again = start(place, "--root", place.parent / "root")
    try:
        assert {ended(again.client(), job)["state"] for job in jobs} <= {"done", "skipped"}
        assert not [path for path in (place / "outputs").rglob("*") if "partial" in path.name]
    finally:
        assert again.stop() == 0


@pytest.mark.slow
def test_cancel_and_retry(client: httpx.Client, root: Path) -> None:
    plan = planned(client, root / "old.bin", verify="full", outtype="q5_0", allow_requantize=True)
    (job,) = client.post("/jobs", json={"plan": plan["id"]}).json()["jobs"]
    found = client.post(f"/jobs/{job}/cancel").json()
    if found.get("code") != "refused_error":  # else it was quicker
        assert (found["state"], found["error"]["class"]) == ("cancelled", "Cancelled")
        time.sleep(1)
        assert client.get(f"/jobs/{job}").json()["state"] == "cancelled"
        assert client.get(f"/jobs/{job}/files").status_code == 409
        assert client.post(f"/jobs/{job}/retry").status_code == 200
    assert ended(client, job)["state"] == "done"
    assert client.post(f"/jobs/{job}/cancel").status_code == 409
    assert client.post(f"/jobs/{job}/retry").status_code == 409


def test_idempotency_keys(client: httpx.Client, root: Path) -> None:
    body = {"files": [{"name": "a.bin", "bytes": 5}]}
    first = client.post("/uploads", json=body, headers={"Idempotency-Key": "k1"})
    second = client.post("/uploads", json=body, headers={"Idempotency-Key": "k1"})
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json()["id"] == second.json()["id"]
    assert second.headers["idempotency-replayed"] == "true"
    other = client.post("/uploads", json={"files": [{"name": "b", "bytes": 5}]}, headers={"Idempotency-Key": "k1"})
    assert (other.status_code, other.json()["code"]) == (422, "key_reused")
    assert client.post("/uploads", json=body, headers={"Idempotency-Key": "k2"}).json()["id"] != first.json()["id"]


@pytest.mark.slow
def test_pages_of_models(client: httpx.Client, root: Path) -> None:
    planned(client, root / "old.bin", outtype="f16")
    planned(client, root / "old.bin", outtype="bf16")
    for sort in ("source", "name", "bytes_in", "state", "updated"):
        for descending in (False, True):
            seen, cursor = [], {}
            while True:
                query = {"limit": 1, "sort": sort, "descending": descending, **cursor}
                page = client.get("/models", params=query).json()
                seen += [each["id"] for each in page["items"]]
                if page["next"] is None:
                    break
                cursor = {"cursor": page["next"]}
            assert len(seen) == len(set(seen)) == page["total"] >= 2
    assert client.get("/models", params={"cursor": page["next"] or "nonsense"}).status_code == 422
    assert client.get("/models", params={"q": "OLD", "state": "planned"}).json()["total"] >= 1
    assert client.get("/models", params={"q": "old%"}).json()["total"] == 0


def test_ranges_and_etags(client: httpx.Client, root: Path) -> None:
    (job,) = submitted(client, root / "old.bin", verify="none")
    ended(client, job)
    (file,) = client.get(f"/jobs/{job}/files").json()
    path = file["url"].removeprefix("/api/v1")
    whole = client.get(path)
    etag = whole.headers["etag"]
    assert etag == f'"b3-{file["blake3"]}"'
    for span, (first, end) in {"0-0": (0, 1), "100-199": (100, 200), "-7": (-7, None), "1000-": (1000, None)}.items():
        part = client.get(path, headers={"Range": f"bytes={span}", "If-Range": etag})
        assert (part.status_code, part.content) == (206, whole.content[first:end])
    assert client.get(path, headers={"Range": f"bytes={file['bytes']}-"}).status_code == 416
    assert client.get(path, headers={"Range": "bytes=0-9", "If-Range": '"b3-other"'}).content == whole.content
    for tags in (etag, f"W/{etag}", "*", f'"other", {etag}'):
        assert client.get(path, headers={"If-None-Match": tags}).status_code == 304, tags
    for tags, status in {etag: 200, "*": 200, '"b3-other"': 412, f"W/{etag}": 412}.items():
        assert client.get(path, headers={"If-Match": tags}).status_code == status, tags
    head = client.head(path)
    assert (head.status_code, int(head.headers["content-length"]), head.content) == (200, file["bytes"], b"")


def test_an_output_that_was_changed_is_not_given(server: Server, client: httpx.Client, root: Path) -> None:
    (job,) = submitted(client, root / "old.bin", verify="none", outtype="q8_0", allow_requantize=True)
    output = Path(ended(client, job)["output"])
    name = client.get(f"/jobs/{job}/files").json()[0]["name"]
    data = bytearray(output.read_bytes())
    data[-1] ^= 1
    output.write_bytes(data)
    answer = client.get(f"/jobs/{job}/files/{name}")
    assert (answer.status_code, answer.json()["code"]) == (409, "changed_error")


@pytest.mark.slow
def test_retention(place: Path) -> None:
    """What is past its days goes, files first; what a job needs stays."""
    server = start(place, "--root", place.parent / "root")
    client = server.client()
    (job,) = submitted(client, place.parent / "root" / "old.bin", verify="none")
    output = Path(ended(client, job)["output"])
    upload = sent(client, {"old.bin": (place.parent / "root" / "old.bin").read_bytes()})
    assert server.stop() == 0
    service = open_service(Settings(str(place), (str(place.parent / "root"),), keep_outputs=0.0, keep_records=0.0))
    service.housekeeper.round()
    assert not output.exists()
    assert not (place / "uploads" / upload["id"]).exists()
    assert not service.store.rows()
    service.drain()
