"""From a file to a proved file, over a real socket."""

from __future__ import annotations

import hashlib
from pathlib import Path

import httpx

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
