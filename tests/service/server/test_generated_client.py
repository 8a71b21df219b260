"""A client that openapi-python-client generates from our description: it has types, and does what the example says."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from helpers.builders import Llama
from helpers.server import Server
from helpers.third_party_fixtures import ROOT

EXAMPLE = ROOT / "docs" / "examples" / "generated_client.py"
PACKAGE = "ggferry_api"


def tool(folder: Path, name: str, *arguments: str, **env: str) -> str:
    """What a program of this environment says; it must end well."""
    path = str(Path(sys.executable).with_name(name))
    done = subprocess.run(
        [path, *arguments], cwd=folder, capture_output=True, text=True, check=False, env={**os.environ, **env}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def generated(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the generated package and the example that uses it."""
    folder = tmp_path_factory.mktemp("generated")
    headers = {"Authorization": f"Bearer {server.token}"}
    (folder / "openapi.json").write_bytes(httpx.get(f"{server.url}/api/openapi.json", headers=headers).content)
    (folder / "config.yaml").write_text("post_hooks: []\n")  # its own formatting of what it made changes types
    options = ("--path", "openapi.json", "--config", "config.yaml", "--meta", "none", "--output-path", PACKAGE)
    said = tool(folder, "openapi-python-client", "generate", *options, "--fail-on-warning")
    assert "warning" not in said.lower(), said
    shutil.copy(EXAMPLE, folder)
    return folder


def test_every_route_is_there_and_says_what_it_answers(server: Server, client: httpx.Client, generated: Path) -> None:
    described = httpx.get(f"{server.url}/api/openapi.json", headers=dict(client.headers)).json()
    ids = [each["operationId"] for path in described["paths"].values() for each in path.values()]
    made = {path.stem: path.read_text() for path in (generated / PACKAGE / "api").glob("*/*.py")}
    assert sorted(ids) == sorted(name for name in made if name != "__init__")
    untyped = {name for name, text in made.items() if "-> Any | Problem" in text}
    # these answer 204 and nothing else; a download answers 304 without a body, too
    assert {name for name in untyped if "cast(Any, None)" not in made[name]} == set()
    assert untyped == {"administration_revoke_token", "jobs_delete", "uploads_remove"}, untyped


@pytest.mark.slow
def test_it_has_types(generated: Path) -> None:
    options = ("--strict", "--no-warn-redundant-casts", "--cache-dir", os.devnull)
    assert "Success" in tool(generated, "mypy", *options, PACKAGE, EXAMPLE.name)


@pytest.mark.slow
def test_it_uploads_waits_and_downloads(server: Server, client: httpx.Client, generated: Path, tmp_path: Path) -> None:
    model = Llama(n_ff=256, seed=77, kind="F16", container="ggjt", version=1).write(tmp_path / "mine.bin")
    (tmp_path / "new").mkdir()
    env = {"GGFERRY_SERVER": server.url, "GGFERRY_TOKEN": server.token}
    said = tool(generated, "python", EXAMPLE.name, str(model), str(tmp_path / "new"), **env)
    (made,) = (tmp_path / "new").iterdir()
    assert said.split() == [made.name, str(made.stat().st_size), hashlib.sha256(made.read_bytes()).hexdigest()]
    with made.open("rb") as file:
        assert file.read(4) == b"GGUF"
    refused = subprocess.run(
        [sys.executable, EXAMPLE.name, __file__, str(tmp_path / "new")],
        cwd=generated,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **env},
    )
    assert refused.returncode == 1 and "Refused" in refused.stderr, "what is no model is refused with our own error"
