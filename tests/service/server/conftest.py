"""A server for the tests of this folder, its root with a legacy file in it, and a client that may do everything."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ggferry.service.storage import urls
from helpers.server import Server, serving


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, fixtures: Path) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    (folder / "root").mkdir()
    shutil.copy(fixtures / "legacy-llama" / "ggjt3-20230821" / "q4_0.bin", folder / "root" / "old.bin")
    options = ("--root", folder / "root", "--silence", "1", "--max-upload", "64MiB", "--rate", "0", "--drain", "1")
    with serving(folder / "data", *options) as server:
        yield server


@pytest.fixture(autouse=True)
def access() -> Iterator[None]:
    """A service that a test opens in this very process narrows what every later test may fetch."""
    yield
    urls.configure_access(urls.Access())


@pytest.fixture
def root(server: Server) -> Path:
    return server.data.parent / "root"


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client
