"""The examples of docs/service.md and of docs/service-operations.md, typed at a server that runs."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import ggferry
from helpers.page_examples import examples, run
from helpers.server import Server, serving
from helpers.third_party_fixtures import ROOT

pytestmark = pytest.mark.slow
PAGE = "docs/service.md"


def typed(pattern: str, page: str = PAGE) -> str:
    """Return the one command of a page that a pattern is found in."""
    (line,) = (example.command for example in examples(page) if re.search(pattern, example.command))
    return line


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, fixtures: Path) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    (folder / "models").mkdir()
    shutil.copy(fixtures / "legacy-llama" / "ggjt3-20230821" / "q4_0.bin", folder / "models" / "old.bin")
    with serving(folder / "data", "--root", folder / "models", "--drain", "1") as server:
        yield server


@pytest.fixture
def folder(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file to upload, and the environment that the page sets."""
    shutil.copy(server.data.parent / "models" / "old.bin", tmp_path / "old.bin")
    monkeypatch.chdir(tmp_path)
    assert "GGFERRY_SERVER=" in typed("^export ") and "GGFERRY_TOKEN=" in typed("^export ")
    monkeypatch.setenv("GGFERRY_SERVER", server.url)
    monkeypatch.setenv("GGFERRY_TOKEN", server.token)
    monkeypatch.setenv("TOKEN", server.token)
    return tmp_path


def test_a_token_is_made_and_shown_once(server: Server) -> None:
    done = run(typed("token add").replace("ggferry serve", f"ggferry serve --data {server.data}"))
    assert done.code == 0 and re.fullmatch(r"ggf_\S+\n", done.out), done


def test_a_plan_and_a_job_are_made_with_curl(server: Server, folder: Path) -> None:
    api = typed("^api=").replace("http://127.0.0.1:8765", server.url)
    line = typed("api/plans").replace("/models", str(server.data.parent / "models"))
    plan = json.loads(run(f"{api}\n{line}").out)
    assert plan["state"] == "ready"
    made = json.loads(run(f"{api}\n" + re.sub(r"[0-9a-f]{16}(?=\"})", plan["id"], typed("api/jobs"))).out)
    assert made["jobs"]


def test_the_client_of_the_command_line(server: Server, folder: Path) -> None:
    done = run(typed("submit old.bin"))
    assert done.code == 0, done
    here = typed("submit server:").replace("/models", str(server.data.parent / "models"))
    job = run(here).out.split()[0]
    for pattern in ("remote wait", "remote fetch"):
        done = run(re.sub(r"[0-9a-f]{8}", job, typed(pattern)))
        assert done.code == 0, done
    assert sorted(path.suffix for path in (folder / "new").iterdir()) == [".gguf", ".json"]


def test_the_client_of_the_library(server: Server, folder: Path) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```", (ROOT / PAGE).read_text(), re.S | re.M)
    names = {"ggferry": ggferry, "token": server.token}
    exec(compile(block.replace("http://127.0.0.1:8765", server.url), PAGE, "exec"), names)
    assert list((folder / "new").glob("*.gguf"))


def test_a_backup_is_restored(server: Server, folder: Path) -> None:
    page = "docs/service-operations.md"
    (folder / "backup").mkdir()
    line = typed(" backup ", page).replace("/var/lib/ggferry", str(server.data)).replace("/backup/", "backup/")
    day = run(f"PYTHONPATH={ROOT.parent} {line}")
    assert day.code == 0, day
    (made,) = (folder / "backup").iterdir()
    line = typed(" restore ", page).replace("/var/lib/ggferry", str(folder / "again"))
    done = run(re.sub(r"/backup/\S+", f"backup/{made.name}", line))
    assert done.code == 0 and (folder / "again").is_dir(), done
