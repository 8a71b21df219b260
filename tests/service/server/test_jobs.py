"""From a file to a proved file, over a real socket."""

from __future__ import annotations

import hashlib
from pathlib import Path

import httpx
from gguf import GGUFReader

from helpers.server import ended, sent, submitted


def test_a_file_of_a_root_becomes_a_proved_file(client: httpx.Client, root: Path) -> None:
    (job,) = submitted(client, root / "old.bin", verify="fast")
    assert ended(client, job)["state"] == "done"
    receipt = client.get(f"/jobs/{job}/receipt").json()
    (file,) = client.get(f"/jobs/{job}/files").json()
    data = client.get(file["url"].removeprefix("/api/v1")).content
    assert hashlib.sha256(data).hexdigest() == file["sha256"] == receipt["output"]["files"][0]["sha256"]


def test_an_upload_becomes_a_proved_file(client: httpx.Client, root: Path) -> None:
    upload = sent(client, {"models/old.bin": (root / "old.bin").read_bytes()})
    assert upload["state"] == "accepted", upload
    (job,) = submitted(client, upload["source"], verify="fast", outtype="q8_0", allow_requantize=True)
    assert ended(client, job)["state"] == "done"


def test_keys_of_a_finished_file_are_edited(client: httpx.Client, root: Path, tmp_path: Path) -> None:
    (job,) = submitted(client, root / "old.bin", verify="fast")
    ended(client, job)
    before = client.get(f"/jobs/{job}/files").json()[0]["sha256"]
    answer = client.post(f"/jobs/{job}/edit", json={"set": ["general.name=Mine"]})
    assert answer.status_code == 201, answer.text
    edited = answer.json()["id"]
    assert client.post(f"/jobs/{job}/edit", json={"set": ["general.name=Mine"]}).json()["id"] == edited
    (file,) = client.get(f"/jobs/{edited}/files").json()
    (tmp_path / "new.gguf").write_bytes(client.get(file["url"].removeprefix("/api/v1")).content)
    fields = GGUFReader(tmp_path / "new.gguf").fields
    assert bytes(fields["general.name"].parts[-1]) == b"Mine"
    assert client.get(f"/jobs/{job}/files").json()[0]["sha256"] == before
    bad = client.post(f"/jobs/{job}/edit", json={"set": ["llama.context_length=long"]})
    assert (bad.status_code, bad.json()["code"]) == (422, "usage_error")
    assert client.get(f"/models/{edited}/inspection").json()["container"] == "gguf"
