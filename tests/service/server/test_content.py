"""An upload is known by its content: two files of one name and one size are never mixed into one."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import httpx
import pytest

import ggferry
from helpers.server import Server, inspected, made_token, sent, span

HALF = 500


def begun(client: httpx.Client, size: int, **more: str) -> str:
    found = client.post("/uploads", json={"files": [{"name": "m.bin", "bytes": size, **more}]})
    assert found.status_code == 201, found.text
    return str(found.json()["id"])


def test_a_piece_of_another_file_is_not_taken(client: httpx.Client) -> None:
    """As two fine-tunes of one model: the same size, other bytes."""
    one, other = b"a" * 1000, b"b" * 1000
    key = begun(client, 1000)
    path = f"/uploads/{key}/files/0"
    assert client.put(path, content=one[:HALF], headers=span(one, 0, HALF)).status_code == 200
    file = client.get(f"/uploads/{key}").json()["files"][0]
    assert (file["offset"], file["sha256"]) == (HALF, hashlib.sha256(one[:HALF]).hexdigest())
    unsaid = client.put(path, content=other[HALF:], headers={"Content-Range": "bytes 500-999/1000"})
    assert (unsaid.status_code, unsaid.json()["code"]) == (428, "digest_needed")
    mixed = client.put(path, content=other[HALF:], headers=span(other, HALF, 1000))
    assert (mixed.status_code, mixed.json()["code"]) == (422, "checksum_error")
    assert client.get(f"/uploads/{key}").json()["files"][0]["offset"] == HALF
    rest = client.put(path, content=one[HALF:], headers=span(one, HALF, 1000))
    assert rest.json() == {"offset": 1000, "complete": True}


def test_a_piece_that_changed_on_its_way_is_not_kept(client: httpx.Client) -> None:
    key = begun(client, 1000)
    path, digest = f"/uploads/{key}/files/0", base64.b64encode(hashlib.sha256(b"a" * HALF).digest()).decode()
    headers = {"Content-Range": "bytes 0-499/1000", "Content-Digest": f"sha-256=:{digest}:"}
    broken = client.put(path, content=b"a" * 499 + b"b", headers=headers)
    assert (broken.status_code, broken.json()["code"]) == (422, "checksum_error")
    assert client.put(path, content=b"a" * HALF, headers=headers).json()["offset"] == HALF
    for odd in ("sha-256=abc", "sha-256=:abc:", "md5=:AAAA:", "sha-256"):
        assert client.put(path, content=b"", headers={"Upload-Digest": odd}).status_code == 422


def test_what_was_announced_with_its_digest_needs_none_later(client: httpx.Client) -> None:
    data = b"a" * 1000
    key = begun(client, 1000, sha256=hashlib.sha256(b"b" * 1000).hexdigest())
    for start in (0, HALF):
        headers = {"Content-Range": f"bytes {start}-{start + HALF - 1}/1000"}
        assert client.put(f"/uploads/{key}/files/0", content=data[:HALF], headers=headers).status_code == 200
    found = inspected(client, key)
    assert (found["state"], found["error"]["code"]) == ("refused", "checksum_error")


def test_the_client_goes_on_only_with_what_it_sent(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two pieces the file is exchanged for another of its size."""
    monkeypatch.setattr("ggferry.service.client.client.PIECE", 1000)
    path = tmp_path / "m.bin"
    path.write_bytes(b"a" * 2000)
    client = ggferry.Client(server.url, server.token)
    with pytest.raises(ggferry.GgferryError) as caught:
        client.upload(str(path), lambda count: path.write_bytes(b"b" * 2000) and None)
    assert "model" in str(caught.value) or "format" in str(caught.value), "what was sent is what its digests say"


def test_a_folder_keeps_its_name(server: Server, client: httpx.Client, root: Path, tmp_path: Path) -> None:
    (tmp_path / "my-model").mkdir()
    (tmp_path / "my-model" / "old.bin").write_bytes((root / "old.bin").read_bytes())
    own = ggferry.Client(server.url, server.token)
    source = own.upload(str(tmp_path / "my-model"))
    found = client.get(f"/uploads/{source.removeprefix('upload:')}").json()
    assert (found["name"], found["files"][0]["name"]) == ("my-model", "my-model/old.bin")
    plan = client.post("/plans", json={"source": source, "options": {"verify": "none"}}).json()
    (line,) = client.get(f"/plans/{plan['id']}/lines").json()["items"]
    assert "/my-model/" in line["source"]
    alone = own.upload(str(root / "old.bin"))
    assert client.post("/inspect", json={"source": alone}).json()["container"] == "ggjt"


def test_a_file_for_an_option_is_no_model(server: Server, client: httpx.Client, root: Path, fixtures: Path) -> None:
    """A tokenizer is sent alone, and named by an option; as a model it is refused."""
    vocabulary = next(fixtures.glob("tokenizers/*/tokenizer.json")).read_bytes()
    as_model = sent(client, {"tokenizer.json": vocabulary})
    assert as_model["state"] == "refused"
    body = {"files": [{"name": "tokenizer.json", "bytes": len(vocabulary)}], "purpose": "option"}
    key = client.post("/uploads", json=body).json()["id"]
    client.put(f"/uploads/{key}/files/0", content=vocabulary)
    found = inspected(client, key)
    assert (found["state"], found["purpose"]) == ("accepted", "option")
    options = {"tokenizer": found["source"], "verify": "none"}
    plan = client.post("/plans", json={"source": str(root / "old.bin"), "options": options}).json()
    assert plan["options"]["tokenizer"] == str(server.data / "uploads" / key / "tokenizer.json")
    other = server.client(made_token(server.data, "another", "submit"))
    refused = other.post("/plans", json={"source": str(root / "old.bin"), "options": options})
    assert refused.status_code == 404
