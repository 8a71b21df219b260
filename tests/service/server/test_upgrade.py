"""The data folder of a server of version 0.1 under today's server: what was done is there, what waited is done."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from helpers import old_ledgers
from helpers.server import ended, serving


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_folder_of_the_first_version_goes_on(tmp_path: Path, kind: str, request: pytest.FixtureRequest) -> None:
    dialect = "sqlite" if kind == "sqlite" else "postgresql"
    data, options = old_ledgers.files_at(tmp_path, dialect), ["--root", str(tmp_path / "root")]
    if kind == "postgres":
        options += ["--ledger", old_ledgers.postgres_at(request.getfixturevalue("postgres"), tmp_path)]
    else:
        old_ledgers.sqlite_at(tmp_path)
    facts = old_ledgers.facts(dialect)
    with serving(data, *options) as server:
        client = server.client(facts["token"])
        assert httpx.get(f"{server.url}/ready").status_code == 200
        (file,) = client.get(f"/jobs/{facts['done']}/files").json()
        content = client.get(file["url"].removeprefix("/api/v1")).content
        assert content == (old_ledgers.KEPT / "data" / "outputs").rglob("*.gguf").__next__().read_bytes()
        assert ended(client, facts["waiting"])["state"] == "done"
        assert client.get(f"/jobs/{facts['broken']}").json()["state"] == "quarantined"
