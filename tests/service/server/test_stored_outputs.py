"""Outputs in an object store: moto's S3, which the test starts; servers that are killed; several over one store."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from ggferry.service.client.client import Client
from ggferry.service.server.settings import Settings
from ggferry.service.server.store.database import Store
from ggferry.service.server.work.housekeeping import Housekeeper
from ggferry.service.server.work.outputs.output_files import Outputs
from ggferry.service.storage.backends import s3 as backend
from ggferry.service.storage.urls import Access, configure_access
from helpers import processes
from helpers.archive_tools import command
from helpers.builders import Llama
from helpers.server import Server, ended, serving, start, submitted
from helpers.store_faults import S3Store, s3_store

DEST = "s3://new/out"
_seeds = itertools.count(1)


@pytest.fixture(scope="module")
def store() -> Iterator[S3Store]:
    with s3_store() as found:
        yield found


@pytest.fixture(autouse=True)
def empty(store: S3Store) -> Iterator[None]:
    store.clear()
    yield
    store.clear()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    Llama(n_ff=192, seed=next(_seeds), kind="F16", container="ggjt", version=1).write(folder / "m.bin")
    return folder


@pytest.fixture
def server(store: S3Store, tmp_path: Path, root: Path) -> Iterator[Server]:
    with serving(tmp_path / "data", "--root", root, "--dest", DEST, "--drain", "1", **store.env) as found:
        yield found


def downloaded(client: httpx.Client, job: str) -> tuple[dict[str, Any], str]:
    """The only file of a done job as it is listed, and the path of its download."""
    (file,) = client.get(f"/jobs/{job}/files").json()
    return file, file["url"].removeprefix("/api/v1")


@pytest.mark.slow
def test_a_download_streams_from_the_store(server: Server, store: S3Store, root: Path, tmp_path: Path) -> None:
    client = server.client()
    (job,) = submitted(client, root, verify="fast")
    assert ended(client, job)["state"] == "done"
    (key,) = (each for each in store.keys("new") if each.endswith(".gguf"))
    content = store.get(f"new/{key}")
    assert set(store.keys("new")) == {key, f"{key}.receipt.json"} and store.uploads("new") == []
    file, path = downloaded(client, job)
    assert (file["bytes"], file["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())
    whole = client.get(path)
    assert whole.content == content and whole.headers["accept-ranges"] == "bytes"
    digest = base64.b64encode(hashlib.sha256(content).digest()).decode()
    assert whole.headers["repr-digest"] == f"sha-256=:{digest}:"
    for span, expected in (
        ("bytes=0-0", content[:1]),
        ("bytes=1000-", content[1000:]),
        ("bytes=-17", content[-17:]),
        ("bytes=300000-299999", None),
        (f"bytes={len(content)}-", None),
    ):
        answer = client.get(path, headers={"Range": span})
        assert (answer.status_code, answer.content) == (206, expected) if expected else answer.status_code == 416
    tag = whole.headers["etag"]
    assert client.get(path, headers={"If-None-Match": tag}).status_code == 304
    assert client.get(path, headers={"If-Match": '"other"'}).status_code == 412
    assert client.get(path, headers={"Range": "bytes=5-9", "If-Range": tag}).content == content[5:10]
    assert client.get(path, headers={"Range": "bytes=5-9", "If-Range": '"other"'}).content == content
    assert client.head(path).headers["content-length"] == str(len(content))
    (fetched,) = Client(server.url, server.token).fetch(job, str(tmp_path / "fetched"))
    assert Path(fetched.path).read_bytes() == content
    scratch = [each for each in (server.data / "scratch").rglob("*") if each.is_file()]
    assert scratch == [], "what was written on this machine on the way to the store is gone"


@pytest.mark.slow
def test_what_is_done_with_a_file_is_done_with_one_in_a_store(server: Server, store: S3Store, root: Path) -> None:
    client = server.client()
    (job,) = submitted(client, root, verify="fast")
    assert ended(client, job)["state"] == "done"
    tokens = client.post(f"/models/{job}/tokens", json={"text": "hello"}).json()
    assert "".join(each["piece"] for each in tokens[1:]).strip() == "hello"
    counted = client.get(f"/models/{job}/histogram", params={"tensor": "token_embd.weight"}).json()
    assert counted["elements"] > 0 and counted["not_finite"] == 0
    edited = client.post(f"/jobs/{job}/edit", json={"set": ["general.name=Mine"]})
    assert edited.status_code == 201, edited.text
    other = edited.json()["id"]
    assert edited.json()["output"] == f"{DEST}/edits/{other}/m.gguf"
    assert f"out/edits/{other}/m.gguf.receipt.json" in store.keys("new")
    assert client.get(f"/jobs/{other}/receipt").json()["output"]["files"][0]["sha256"]
    (line,) = client.get(f"/models/{job}/difference", params={"other": other}).json()["keys"]
    assert (line["key"], line["second"]) == ("general.name", "Mine:str")
    sizes = [client.get(f"/jobs/{each}/files").json()[0]["bytes"] for each in (job, other)]
    assert client.get("/usage").json()["used"] == sum(sizes)
    assert client.delete(f"/jobs/{job}/files").json()["state"] == "expired"
    assert client.delete(f"/jobs/{other}").status_code == 204
    assert store.keys("new") == [] and client.get("/usage").json()["used"] == 0


@pytest.mark.slow
def test_an_object_that_was_replaced_is_not_given_out(server: Server, store: S3Store, root: Path) -> None:
    client = server.client()
    (job,) = submitted(client, root, verify="fast")
    assert ended(client, job)["state"] == "done"
    _, path = downloaded(client, job)
    key = next(each for each in store.keys("new") if each.endswith(".gguf"))
    content = store.get(f"new/{key}")
    store.put(f"new/{key}", content[:-1] + bytes([content[-1] ^ 1]))
    answer = client.get(path)
    assert answer.status_code == 409 and answer.json()["detail"].startswith("not the file that was proved"), answer.text
    store.put(f"new/{key}", content)
    assert client.get(path).content == content


@pytest.mark.slow
def test_a_store_that_is_away_is_said_so_soon(server: Server, store: S3Store, root: Path) -> None:
    client = server.client()
    (job,) = submitted(client, root, verify="fast")
    assert ended(client, job)["state"] == "done"
    _, path = downloaded(client, job)
    store.rules.add("HEAD", r"\.gguf$", 503)
    began = time.monotonic()
    answer = client.get(path)
    assert answer.status_code == 424 and "the store failed to answer" in answer.json()["detail"], answer.text
    assert time.monotonic() - began < 15
    assert httpx.get(f"{server.url}/ready").status_code == 200
    store.rules.clear()
    assert client.get(path).status_code == 200


@pytest.mark.slow
def test_curl_goes_on_with_a_download_of_several_parts(
    server: Server, store: S3Store, root: Path, tmp_path: Path
) -> None:
    """Of an object of several parts, read in several blocks; curl is cut off in the middle and asks for the rest."""
    shape = {"n_embd": 512, "n_head": 8, "n_head_kv": 8, "n_ff": 2048, "n_layer": 6}
    model = Llama(**shape, kind="F16", container="ggjt", version=1).write(root / "large.bin")  # type: ignore[arg-type]
    client = server.client()
    (job,) = submitted(client, model, verify="fast")
    assert ended(client, job, 120)["state"] == "done"
    file, _ = downloaded(client, job)
    parts = [each for each in store.rules.asked if each.method == "PUT" and "partNumber" in each.query]
    assert file["bytes"] > 2 * backend.PART and len(parts) >= 3
    out = tmp_path / "out.gguf"
    curl = ["curl", "-sS", "--fail", "-H", f"Authorization: Bearer {server.token}", "-o", str(out)]
    url = server.url + file["url"]
    subprocess.run([*curl, "-r", f"0-{file['bytes'] // 2}", url], check=True)
    assert out.stat().st_size == file["bytes"] // 2 + 1
    subprocess.run([*curl, "-C", "-", url], check=True)
    assert hashlib.sha256(out.read_bytes()).hexdigest() == file["sha256"]


@pytest.mark.slow
def test_a_destination_that_is_none_is_refused_at_the_start(store: S3Store, tmp_path: Path) -> None:
    for dest, words in (("gs://bucket/x", "s3://BUCKET/PREFIX"), ("s3://bucket", "s3://BUCKET/PREFIX")):
        assert words in command("serve", "--data", tmp_path / "d", "--dest", dest, code=2).stderr
    done = command("serve", "--data", tmp_path / "d", "--port", "0", "--dest", "s3://absent/x", code=3, **store.env)
    assert "no such bucket" in done.stderr


# --- kills ---------------------------------------------------------------------------------------------------------

STEPS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "the copy is begun": ("POST", r"\.gguf$", {"query": "uploads"}),
    "the upload is begun": ("POST", r"\.partial$", {"query": "uploads"}),
    "a part is sent": ("PUT", r"\.partial$", {"query": "partNumber"}),
    "the upload is completed": ("POST", r"\.partial$", {"query": "uploadId"}),
    "it is read back": ("GET", r"\.partial$", {}),
    "it is copied": ("PUT", r"\.gguf$", {"copy": True}),
    "the copy is completed": ("POST", r"\.gguf$", {"query": "uploadId"}),
    "the partial is removed": ("DELETE", r"\.gguf\..*\.partial$", {}),
    "the receipt is put": ("PUT", r"\.receipt\.json$", {}),
}
"""What is asked of the store for one output, one after another."""


def killed_before(step: str, store: S3Store, data: Path, options: tuple[str | Path, ...]) -> str:
    """Have a server killed when it is about to do a step of the upload of its first job; return the job."""
    method, key, more = STEPS[step]
    server = start(data, *options, "--jobs", "1", **store.env)
    reached: list[float] = []

    def kill() -> None:
        reached.append(time.monotonic())
        server.kill()
        raise ConnectionError("the server is dead before the store hears of it")

    rule = store.rules.add(method, key, kill, 1, **more)
    client = server.client()
    (job,) = submitted(client, options[1], verify="fast")
    until = time.monotonic() + 60
    while not reached:
        assert time.monotonic() < until, f"{step}: never reached"
        time.sleep(0.02)
    server.process.wait(10)
    client.close()
    store.rules.rules.remove(rule)
    check_nothing_looks_finished(store, step)
    return job


@pytest.mark.slow
def test_a_worker_of_ray_is_killed_while_it_uploads(store: S3Store, tmp_path: Path, root: Path) -> None:
    """There the worker's own process sends the output; the next attempt removes what it left."""
    killed: list[int] = []
    options = ("--root", root, "--dest", DEST, "--engine", "ray", "--threads", "1", "--memory", "1GiB", "--drain", "1")
    with serving(tmp_path / "data", *options, RAY_ADDRESS="local", **store.env) as server:

        def kill() -> None:
            below = processes.below(server.process.pid)
            killed.extend(pid for pid, name in below.items() if name.startswith("ray::_do"))
            os.kill(killed[0], signal.SIGKILL)
            raise ConnectionError("the worker is dead before the store hears of it")

        store.rules.add("POST", r"\.partial$", kill, 1, query="uploadId")
        client = server.client()
        (job,) = submitted(client, root, verify="fast")
        found = ended(client, job, 120)
        assert killed and found["state"] == "done", found
        assert [each["outcome"] for each in found["tried"]][-1] == "done" and len(found["tried"]) == 2
        file, path = downloaded(client, job)
        assert hashlib.sha256(client.get(path).content).hexdigest() == file["sha256"]
    key = next(each for each in store.keys("new") if each.endswith(".gguf"))
    assert set(store.keys("new")) == {key, f"{key}.receipt.json"} and store.uploads("new") == []


def check_nothing_looks_finished(store: S3Store, step: str) -> None:
    """No receipt; and under a final name nothing but a whole file, once the copy is completed."""
    keys = store.keys("new")
    assert not [each for each in keys if each.endswith(".receipt.json")], step
    final = [each for each in keys if each.endswith(".gguf")]
    assert bool(final) == (step in ("the partial is removed", "the receipt is put")), (step, keys)


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_a_server_that_is_killed_goes_on(step: str, store: S3Store, tmp_path: Path, root: Path) -> None:
    options = ("--root", root, "--dest", DEST, "--drain", "1")
    job = killed_before(step, store, tmp_path / "data", options)
    with serving(tmp_path / "data", *options, **store.env) as server:
        client = server.client()
        assert ended(client, job)["state"] == "done"
        file, path = downloaded(client, job)
        assert hashlib.sha256(client.get(path).content).hexdigest() == file["sha256"]
    key = next(each for each in store.keys("new") if each.endswith(".gguf"))
    assert set(store.keys("new")) == {key, f"{key}.receipt.json"} and store.uploads("new") == []
    receipt = json.loads(store.get(f"new/{key}.receipt.json"))
    assert receipt["output"]["files"][0]["blake3"] == file["blake3"]


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_of_a_job_that_is_cancelled_then_nothing_stays(step: str, store: S3Store, tmp_path: Path, root: Path) -> None:
    """Nobody takes the job up again, so that a later round of the server has to remove what is there."""
    options = ("--root", root, "--dest", DEST, "--drain", "1")
    job = killed_before(step, store, tmp_path / "data", options)
    store.put("new/out/elsewhere/notes.txt", b"somebody else's")
    with serving(tmp_path / "data", *options, "--jobs", "0", **store.env) as server:
        assert server.client().post(f"/jobs/{job}/cancel").json()["state"] == "cancelled"
    with serving(tmp_path / "data", *options, "--jobs", "0", **store.env) as server:
        until = time.monotonic() + 20
        while store.keys("new") != ["out/elsewhere/notes.txt"] or store.uploads("new"):
            assert time.monotonic() < until, (store.keys("new"), store.uploads("new"))
            time.sleep(0.1)
        assert server.client().get(f"/jobs/{job}").json()["state"] == "cancelled"


@pytest.mark.slow
def test_a_job_that_is_deleted_takes_along_what_a_killed_server_left(
    store: S3Store, tmp_path: Path, root: Path
) -> None:
    """Once its record is gone, nothing could tell whose the objects are."""
    options = ("--root", root, "--dest", DEST, "--drain", "1")
    job = killed_before("the receipt is put", store, tmp_path / "data", options)
    with serving(tmp_path / "data", *options, "--jobs", "0", **store.env) as server:
        client = server.client()
        assert client.post(f"/jobs/{job}/cancel").json()["state"] == "cancelled"
        assert len(store.keys("new")) == 1
        assert client.delete(f"/jobs/{job}").status_code == 204
        assert store.keys("new") == [] and store.uploads("new") == []


@pytest.mark.slow
def test_what_somebody_is_uploading_stays(store: S3Store, tmp_path: Path, root: Path) -> None:
    """A round of another server while an upload is under way removes nothing of it."""
    with serving(tmp_path / "data", "--root", root, "--dest", DEST, "--drain", "1", **store.env) as server:
        found: list[list[str]] = []

        def look() -> None:
            configure_access(Access())
            with closing(Store(str(server.data / "ledger"))) as ledger:
                settings = Settings(str(server.data), dest=DEST)
                found.append(Outputs(ledger, settings, mark_of(server.data)).sweep())

        for method, key, more in STEPS.values():
            store.rules.add(method, key, once(look), **more)
        client = server.client()
        (job,) = submitted(client, root, verify="fast")
        assert ended(client, job)["state"] == "done"
        assert found == [[]] * len(STEPS)
        assert len(store.keys("new")) == 2 and store.uploads("new") == []


def once(work: Callable[[], None]) -> Callable[[], None]:
    """A fault that befalls the first request alone."""
    todo = [work]

    def fault() -> None:
        if todo:
            todo.pop()()

    return fault


def mark_of(data: Path) -> str:
    from ggferry.service.apply.migration import ledger_mark

    return ledger_mark(str(data / "ledger"))


@pytest.mark.slow
def test_outputs_past_their_days_leave_the_store(store: S3Store, tmp_path: Path, root: Path) -> None:
    data, options = tmp_path / "data", ("--root", root, "--dest", DEST, "--drain", "1")
    with serving(data, *options, **store.env) as server:
        client = server.client()
        (job,) = submitted(client, root, verify="fast")
        assert ended(client, job)["state"] == "done"
    settings = Settings(str(data), dest=DEST, keep_outputs=0.0)
    with closing(Store(str(data / "ledger"))) as ledger:
        outputs = Outputs(ledger, settings, mark_of(data))
        keeper = Housekeeper(ledger, settings, None, outputs, lambda *words, **facts: None)  # type: ignore[arg-type]
        # a store in trouble stops nothing, and is asked again
        store.rules.add("DELETE", "m.gguf", 403)
        assert keeper._outputs(time.time() + 1) == 0 and ledger.row(job)["state"] == "done"
        store.rules.clear()
        assert keeper._outputs(time.time() + 1) == 1
    assert store.keys("new") == []
    with serving(data, *options, **store.env) as server:
        client = server.client()
        assert client.get(f"/jobs/{job}").json()["state"] == "expired"
        assert submitted(client, root, verify="fast") == [job]
        assert ended(client, job)["state"] == "done" and len(store.keys("new")) == 2


@pytest.mark.slow
def test_a_backup_names_what_is_in_the_store(store: S3Store, tmp_path: Path, root: Path) -> None:
    """A restored server finds the objects of the one that was backed up."""
    options = ("--root", root, "--dest", DEST, "--drain", "1")
    with serving(tmp_path / "data", *options, **store.env) as server:
        client = server.client()
        (job,) = submitted(client, root, verify="fast")
        assert ended(client, job)["state"] == "done"
        content = client.get(downloaded(client, job)[1]).content
        command("serve", "--data", server.data, "--dest", DEST, "backup", tmp_path / "b.tar")
    command("serve", "--data", tmp_path / "new", "restore", tmp_path / "b.tar")
    with serving(tmp_path / "new", *options, **store.env) as server:
        client = server.client()
        assert client.get(downloaded(client, job)[1]).content == content


@pytest.mark.slow
def test_several_servers_over_one_ledger_and_one_store(
    postgres: str, store: S3Store, tmp_path: Path, root: Path
) -> None:
    """Data folders of their own, no disk in common; one is killed in the middle of an upload."""
    for number in range(5):
        Llama(n_ff=224 + 32 * number, kind="F16", container="ggjt", version=1).write(root / f"{number}.bin")
    options = ("--root", root, "--ledger", postgres, "--dest", DEST, "--drain", "1", "--rate", "0")
    servers = [start(tmp_path / name, *options, **store.env) for name in ("one", "two")]
    token = servers[0].token
    reached: list[int] = []

    def kill() -> None:
        reached.append(1)
        servers[1].kill()

    try:
        one = servers[0].client(token)
        store.rules.add("PUT", r"\.partial$", lambda: time.sleep(0.2), query="partNumber")
        jobs = submitted(one, root, verify="fast")
        until = time.monotonic() + 60
        while not any(each["owner_is"] for each in busy(one, jobs)) and time.monotonic() < until:
            time.sleep(0.05)
        kill()
        servers[1] = start(tmp_path / "two", *options, **store.env)
        two = servers[1].client(token)
        assert {ended(two, job, 180)["state"] for job in jobs} == {"done"}
        for job in jobs:
            file, path = downloaded(two, job)
            first, second = one.get(path), two.get(path)
            assert first.content == second.content and first.headers["etag"] == second.headers["etag"]
            assert hashlib.sha256(first.content).hexdigest() == file["sha256"]
        assert two.delete(f"/jobs/{jobs[0]}/files").status_code == 200
        assert one.get(f"/jobs/{jobs[0]}").json()["state"] == "expired"
    finally:
        assert [each.stop() for each in servers] == [0, 0]
    finals = [each for each in store.keys("new") if each.endswith(".gguf")]
    assert len(finals) == len(jobs) - 1
    assert set(store.keys("new")) == {*finals, *(f"{each}.receipt.json" for each in finals)}
    assert store.uploads("new") == []


def busy(client: httpx.Client, jobs: list[str]) -> list[dict[str, Any]]:
    """Which jobs are being uploaded now."""
    found = [client.get(f"/jobs/{job}").json() for job in jobs]
    return [{"id": each["id"], "owner_is": each["state"] in ("running", "verifying")} for each in found]


def test_a_bucket_without_conditional_writes_is_known_once(store: S3Store) -> None:
    backend._conditional.clear()
    store.handler.plain = True
    try:
        assert not backend.conditional("s3://new/out/.probe.partial")
    finally:
        backend._conditional.clear()
    assert store.keys("new") == []
