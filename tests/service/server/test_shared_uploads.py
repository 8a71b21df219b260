"""Uploads in an object store: several servers over one ledger, none of which has the disk of another."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ggferry.formats.errors import NotFoundError
from ggferry.service.server.incoming import in_store
from ggferry.service.server.incoming.pieces import OffsetError
from ggferry.service.server.settings import Settings
from ggferry.service.server.store import tokens
from ggferry.service.server.store.database import Store
from ggferry.service.server.work import inspection as work
from ggferry.service.server.work.inspection import ACCEPTED, INSPECTING
from ggferry.service.server.work.inspectors import InspectorPool
from ggferry.service.server.work.uploads import Uploads
from ggferry.service.workers.supervisor import Limits
from helpers.builders import Llama
from helpers.merged_adapters import assert_alike, converted, with_peft
from helpers.server import Server, ended, inspected, sent, serving, span, submitted
from helpers.store_faults import S3Store, s3_store
from helpers.tiny_models import make

PLACE, DEST = "s3://new/up", "s3://new/out"
PIECE = 200_000


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
def servers(store: S3Store, tmp_path: Path) -> Iterator[list[Server]]:
    """Two, with a ledger and a store in common, and no folder."""
    shared = ("--ledger", tmp_path / "ledger", "--uploads", PLACE, "--dest", DEST, "--drain", "1")
    with (
        serving(tmp_path / "a", *shared, **store.env) as one,
        serving(tmp_path / "b", *shared, "--jobs", "0", **store.env) as other,
    ):
        yield [one, other]


def model(tmp_path: Path, seed: int = 1, **more: Any) -> bytes:
    shape = {"kind": "F16", "container": "ggjt", "version": 1, **more}
    return Llama(seed=seed, **shape).write(tmp_path / "m.bin").read_bytes()


@pytest.mark.slow
def test_pieces_go_to_either_server_and_either_converts_what_came(
    servers: list[Server], store: S3Store, tmp_path: Path
) -> None:
    content = model(tmp_path)
    token = servers[0].token
    clients = [server.client(token) for server in servers]
    announced = clients[0].post("/uploads", json={"files": [{"name": "m/m.bin", "bytes": len(content)}]}).json()
    for number, start in enumerate(range(0, len(content), PIECE)):
        end = min(len(content), start + PIECE)
        path = f"/uploads/{announced['id']}/files/0"
        answer = clients[number % 2].put(path, content=content[start:end], headers=span(content, start, end))
        assert answer.status_code == 200 and answer.json()["offset"] == end, answer.text
        wrong = clients[1 - number % 2].put(path, content=content[:9], headers=span(content, 0, 9))
        assert wrong.status_code == 409 and wrong.headers["Upload-Offset"] == str(end)
    found = inspected(clients[1], announced["id"])
    assert found["state"] == "accepted", found
    assert found["files"][0]["sha256"] == hashlib.sha256(content).hexdigest()
    until = time.monotonic() + 30
    while len(store.keys("new")) > 1 and time.monotonic() < until:  # pieces are removed when it is recorded
        time.sleep(0.1)
    assert store.keys("new") == [f"up/accepted/{announced['id']}/m/m.bin"]
    assert store.get(f"new/up/accepted/{announced['id']}/m/m.bin") == content
    (job,) = submitted(clients[1], f"upload:{announced['id']}", verify="fast")  # the other one has workers
    assert ended(clients[1], job)["state"] == "done"
    (file,) = clients[1].get(f"/jobs/{job}/files").json()
    made = clients[1].get(file["url"].removeprefix("/api/v1")).content
    assert hashlib.sha256(made).hexdigest() == file["sha256"]
    assert clients[1].delete(f"/jobs/{job}").status_code == 204
    assert clients[0].delete(f"/uploads/{announced['id']}").status_code == 204 and store.keys("new") == []


@pytest.mark.slow
def test_an_adapter_in_the_store_is_merged(servers: list[Server], store: S3Store, tmp_path: Path) -> None:
    client = servers[1].client(servers[0].token)
    make("llama", tmp_path / "base")
    with_peft(tmp_path / "base", tmp_path / "a", tmp_path / "theirs", target_modules=["q_proj", "down_proj"])
    names = ("config.json", "generation_config.json", "model.safetensors")
    base = sent(client, {f"base/{name}": (tmp_path / "base" / name).read_bytes() for name in names}, purpose="option")
    names = ("adapter_config.json", "adapter_model.safetensors")
    adapter = sent(client, {name: (tmp_path / "a" / name).read_bytes() for name in names}, purpose="option")
    options = {"verify": "fast", "outtype": "f32", "no_vocab": True, "lora": [f"upload:{adapter['id']}"]}
    (job,) = submitted(client, f"upload:{base['id']}", **options)
    found = ended(client, job)
    assert found["state"] == "done", found["error"]
    (file,) = client.get(f"/jobs/{job}/files").json()
    (tmp_path / "ours.gguf").write_bytes(client.get(file["url"].removeprefix("/api/v1")).content)
    converted(tmp_path / "theirs", tmp_path / "theirs.gguf", level="fast")
    assert_alike(tmp_path / "ours.gguf", tmp_path / "theirs.gguf")


@pytest.fixture
def pair(store: S3Store, tmp_path: Path) -> Iterator[list[Uploads]]:
    """The uploads of two servers, without the servers."""
    ledger = Store(str(tmp_path / "ledger"))
    tokens.add(ledger, "t", "admin")
    found, pools = [], []
    for name in ("a", "b"):
        settings = Settings(str(tmp_path / name), uploads_in=PLACE)
        for folder in (settings.uploads, settings.quarantine):
            Path(folder).mkdir(parents=True)
        pools.append(InspectorPool(1, Limits(threads=1)))
        found.append(Uploads(ledger, settings, pools[-1]))
    yield found
    for each, pool in zip(found, pools, strict=True):
        each.inspection.close(), pool.close()
    ledger.close()


CALLER: Any = type("Caller", (), {"owner": "t", "quota": None, "may": lambda self, scope: True})()


def test_of_two_servers_that_take_the_same_bytes_one_is_refused(pair: list[Uploads], store: S3Store) -> None:
    one = pair[0]
    key = one.begin(CALLER, [{"name": "m.bin", "bytes": 6}])["id"]
    pieces = [each.open(key, "t", 0, 0, 4) for each in pair]
    for piece, data in zip(pieces, (b"mine", b"your"), strict=True):
        piece.write(data)
    assert not pieces[1].close()
    with pytest.raises(OffsetError) as caught:
        pieces[0].close()
    assert caught.value.at == 4
    assert [store.get(f"new/{name}") for name in store.keys("new")] == [b"your"], "nothing is left of the other"
    assert one.show(key, "t")["files"][0]["sha256"] == hashlib.sha256(b"your").hexdigest()
    last = one.open(key, "t", 0, 4, 6)  # its digest of what came before is read again
    last.whole = hashlib.sha256(b"yours!").hexdigest()
    last.write(b"s!")
    assert last.close()


@pytest.mark.slow
def test_what_a_killed_server_was_inspecting_is_taken_over(
    pair: list[Uploads], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pair
    content = model(tmp_path)
    monkeypatch.setattr(in_store, "OBJECT", 30_000)
    monkeypatch.setattr(one.inspection._pool, "submit", lambda *given: None)  # killed before it began
    key = one.begin(CALLER, [{"name": "m.bin", "bytes": len(content)}])["id"]
    piece = one.open(key, "t", 0, 0, len(content))
    piece.write(content)
    assert piece.close() and one.show(key, "t")["state"] == INSPECTING
    other.inspection.resume()
    time.sleep(0.2)
    assert other.show(key, "t")["state"] == INSPECTING, "it may still be at it"
    monkeypatch.setattr(work, "LEFT", 0.1)
    other.inspection.resume()
    until = time.monotonic() + 30
    while other.show(key, "t")["state"] == INSPECTING and time.monotonic() < until:
        time.sleep(0.05)
    assert other.show(key, "t")["state"] == ACCEPTED, other.show(key, "t")
    assert other.folder(key, "t") == f"{PLACE}/accepted/{key}"


def test_a_store_that_is_away_refuses_nothing_for_good(
    pair: list[Uploads], store: S3Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = pair
    content = model(tmp_path)
    monkeypatch.setattr(one.inspection._pool, "submit", lambda *given: None)
    key = one.begin(CALLER, [{"name": "m.bin", "bytes": len(content)}])["id"]
    piece = one.open(key, "t", 0, 0, len(content))
    piece.write(content)
    piece.close()

    def away(*given: Any) -> Any:
        raise in_store.TransportError("away", path=PLACE)

    with monkeypatch.context() as patched:
        patched.setattr(one.files, "content", away)
        one.inspection.inspect(key)
    assert one.show(key, "t")["state"] == INSPECTING
    one.inspection.inspect(key)
    assert one.show(key, "t")["state"] == ACCEPTED
    one.remove(key, CALLER)
    assert store.keys("new") == []
    with pytest.raises(NotFoundError):
        one.show(key, "t")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--uploads", "/a/folder"), "s3://BUCKET/PREFIX"),
        (("--uploads", "s3://bucket"), "s3://BUCKET/PREFIX"),
        (("--uploads", "s3://bucket/up", "--root", "s3://bucket"), "another's source"),
        (("--uploads", "s3://bucket/a/up", "--dest", "s3://bucket/a"), "apart from"),
    ],
)
def test_places_for_uploads_that_are_none(tmp_path: Path, options: tuple[str, ...], words: str) -> None:
    from helpers.archive_tools import command

    found = command("serve", "--data", tmp_path / "data", *options, code=2)
    assert words in found.stderr, found.stderr
