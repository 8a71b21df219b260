"""Sources on the web: looked into, planned and converted through the server, with secrets kept apart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from helpers.server import Server, ended, planned, serving, start, submitted
from helpers.store_faults import Web, web_server

QUERY = "X-Amz-Signature=hush"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, fixtures: Path) -> Iterator[Web]:
    root = tmp_path_factory.mktemp("site")
    (root / "old.bin").write_bytes((fixtures / "legacy-llama" / "ggjt3-20230821" / "q4_0.bin").read_bytes())
    with web_server(root) as site:
        yield site


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server") / "data", "--allow-private-addresses", "--drain", "1") as server:
        yield server


@pytest.mark.slow
def test_an_address_is_looked_into_and_converted(client: httpx.Client, site: Web) -> None:
    url = f"{site.url.rstrip('/')}/old.bin"
    found = client.post("/inspect", json={"source": url}).json()
    assert (found["container"], found["path"], list(found["files"])) == ("ggjt", url, [url])
    (job,) = submitted(client, url, verify="fast")
    assert ended(client, job)["state"] == "done"
    assert client.get(f"/jobs/{job}").json()["source"] == url
    assert client.post("/inspect", json={"source": url + "x"}).status_code == 404


@pytest.mark.slow
def test_secrets_of_addresses_outlive_a_restart_and_are_shown_to_nobody(site: Web, tmp_path: Path) -> None:
    site.signed = QUERY
    url = f"{site.url.rstrip('/')}/old.bin"
    try:
        server = start(tmp_path / "data", "--allow-private-addresses", "--jobs", "0")
        client = server.client()
        plan = planned(client, f"{url}?{QUERY}", verify="none")
        (job,) = client.post("/jobs", json={"plan": plan["id"]}).json()["jobs"]
        shown = [client.get(path).text for path in ("/models", f"/jobs/{job}", f"/plans/{plan['id']}", "/report")]
        server.kill()
        assert "hush" not in "".join(shown)
        assert "hush" not in server.log.read_text()
        assert not any(b"hush" in path.read_bytes() for path in (tmp_path / "data").glob("ledger*"))
        again = start(tmp_path / "data", "--allow-private-addresses")
        try:
            assert ended(again.client(), job)["state"] == "done"
        finally:
            assert again.stop() == 0
    finally:
        site.signed = ""
