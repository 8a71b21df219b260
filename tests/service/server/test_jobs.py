"""From a file to a proved file, over a real socket."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from helpers.server import Server, ended, sent, serving, submitted


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, fixtures: Path) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    (folder / "root").mkdir()
    shutil.copy(fixtures / "legacy-llama" / "ggjt3-20230821" / "q4_0.bin", folder / "root" / "old.bin")
    with serving(folder / "data", "--root", folder / "root") as server:
        yield server


@pytest.fixture
def root(server: Server) -> Path:
    return server.data.parent / "root"


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


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
