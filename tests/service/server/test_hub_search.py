"""Models of the Hub by name, asked by huggingface_hub of a Hub that the test starts."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.hub import REPO, Hub, served_hub
from helpers.server import Server, ended, made_token, planned, serving, submitted


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, fixtures: Path) -> Iterator[tuple[type[Hub], Server]]:
    """A server that reads what `someone` has on a Hub."""
    folder = tmp_path_factory.mktemp("hub")
    with served_hub(folder / "repo", folder / "home") as (found, env):
        shutil.copy(fixtures / "legacy-llama" / "ggjt3-20230821" / "q4_0.bin", folder / "repo" / "old.bin")
        with serving(folder / "data", "--root", "hf://someone", **env) as server:
            yield found, server


@pytest.mark.slow
def test_what_is_found_is_planned_and_converted(place: tuple[type[Hub], Server]) -> None:
    hub, server = place
    client = server.client()
    found = client.get("/hub", params={"q": "Old  Llama"[4:]}).json()
    assert [each["id"] for each in found] == ["someone/other-llama", REPO], (
        "the most downloads first, and none of others"
    )
    assert found[1] == {
        "id": REPO,
        "source": f"hf://{REPO}",
        "downloads": 1000,
        "likes": 3,
        "library": "transformers",
        "updated": 1683885600.0,
        "is_private": False,
        "is_gated": False,
    }
    (asked,) = hub.searches
    assert (asked["search"], asked["author"], asked["sort"]) == (["Llama"], ["someone"], ["downloads"])
    assert client.get("/hub", params={"q": "llama"}).json() == found and len(hub.searches) == 1, "kept for a minute"
    (job,) = submitted(client, found[1]["source"], verify="fast")
    assert ended(client, job)["state"] == "done"


def test_the_files_of_a_repository(place: tuple[type[Hub], Server]) -> None:
    _, server = place
    client = server.client()
    size = (server.data.parent / "repo" / "old.bin").stat().st_size
    (server.data.parent / "repo" / "README.md").write_text("words")
    found = client.get("/hub/files", params={"repo": REPO}).json()
    assert found == [{"name": "old.bin", "source": f"hf://{REPO}/old.bin", "bytes": size}]
    plan = planned(client, found[0]["source"], verify="fast")
    assert plan["summary"]["verdicts"] == {"convert": 1}
    assert client.get("/hub/files", params={"repo": "elsewhere/llama"}).status_code == 403
    assert client.get("/hub/files", params={"repo": "someone/nothing"}).status_code == 404
    for odd in ("someone", "someone/../x", "someone/a/b", "someone/<b>"):
        assert client.get("/hub/files", params={"repo": odd}).status_code == 422, odd
    reader = server.client(made_token(server.data, "looks", "read"))
    assert reader.get("/hub/files", params={"repo": REPO}).status_code == 403


def test_who_may_ask_and_what(place: tuple[type[Hub], Server], server: Server) -> None:
    _, at_hub = place
    reader = at_hub.client(made_token(at_hub.data, "reader", "read"))
    assert reader.get("/hub", params={"q": "llama"}).status_code == 403
    client = at_hub.client()
    for text in ("x", "", "x" * 101, "a\x1bb"):
        assert client.get("/hub", params={"q": text}).status_code == 422, text
    assert client.get("/hub", params={"q": "no such model"}).json() == []
    refused = client.get("/hub", params={"q": "refused"})
    assert refused.status_code == 424 and "does not accept this server's token" in refused.json()["detail"]
    off = server.client().get("/hub", params={"q": "llama"})
    assert off.status_code == 409 and "--root hf://" in off.json()["hint"]


@pytest.mark.slow
def test_all_of_the_hub_is_a_root(tmp_path: Path) -> None:
    with (
        served_hub(tmp_path / "repo", tmp_path / "home") as (hub, env),
        serving(tmp_path / "data", "--root", "hf://", **env) as server,
    ):
        client = server.client()
        found = client.get("/hub", params={"q": "llama"}).json()
        assert [each["id"] for each in found] == ["elsewhere/<b>llama</b>", "someone/other-llama", REPO]
        assert "author" not in hub.searches[0]
        assert client.get("/roots").json() == ["hf://"]
        assert client.post("/plans", json={"source": "s3://bucket/x"}).status_code == 403


@pytest.mark.slow
def test_a_hub_that_does_not_answer_holds_nobody_up(place: tuple[type[Hub], Server]) -> None:
    hub, server = place
    hub.stall.set()
    client = server.client()
    answers: list[int] = []

    def ask(number: int) -> None:
        answers.append(server.client().get("/hub", params={"q": f"slow {number}"}).status_code)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        at = time.monotonic()
        assert client.get("/totals").status_code == 200 and time.monotonic() - at < 3
        time.sleep(0.2)
    assert time.monotonic() - began < 25 and set(answers) == {424}
    hub.stall.clear()
    hub.release.set()


@pytest.mark.slow
def test_a_hub_that_is_away(tmp_path: Path) -> None:
    with served_hub(tmp_path / "repo", tmp_path / "home") as (_, env):
        pass
    with serving(tmp_path / "data", "--root", "hf://", **env) as server:
        found = server.client().get("/hub", params={"q": "llama"})
        assert found.status_code == 424 and "the Hub" in found.json()["detail"]
