"""Trouble that passes is waited for, never taken for the file's fault; only 404 and 410 mean that a file is absent."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from ggferry.formats.errors import AccessError, Fault, GgferryError, NotFoundError, TransientError
from ggferry.service.plan import make_plan as planning
from ggferry.service.plan.make_plan import PlanRequest
from ggferry.service.storage import retry, stores, urls
from ggferry.service.storage.publish import publish
from ggferry.service.storage.ranged_file import HEADER_BLOCK, RangedFile
from ggferry.support.platform import here
from helpers.archive_tools import command, plan, rows, write
from helpers.builders import Llama
from helpers.store_faults import Rules, S3Store, Web

pytestmark = pytest.mark.attack

DATA = os.urandom(3 * HEADER_BLOCK)
TRANSIENT = ("cut", "short", 429, 500, 503, "away", "lost")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Waits are short here, and the same."""
    monkeypatch.setattr(retry, "FIRST", 0.02)
    monkeypatch.setattr(retry, "LONGEST", 0.1)
    urls.configure_access(urls.Access(retry_timeout=1.0))
    yield
    urls.configure_access(urls.Access())


@pytest.fixture(params=["s3", "web"])
def place(request: pytest.FixtureRequest) -> tuple[str, Rules]:
    """A file of DATA in a store, and the rules of that."""
    if request.param == "s3":
        store: S3Store = request.getfixturevalue("store")
        store.put("old/m.bin", DATA)
        return "s3://old/m.bin", store.rules
    site: Web = request.getfixturevalue("site")
    (site.root / "m.bin").write_bytes(DATA)
    return f"{site.url}/m.bin", site.rules


# --- one range ---


@pytest.mark.sampled(6)
@pytest.mark.parametrize("fault", TRANSIENT)
def test_a_fault_that_passes_is_not_noticed(place: tuple[str, Rules], tmp_path: Path, fault: Any) -> None:
    url, rules = place
    with RangedFile(stores.stat(url), str(tmp_path), block=HEADER_BLOCK) as source:
        rules.add("GET", "m.bin", fault, 1, 2)
        assert source.read(0, len(DATA)) == DATA
    assert sum(each.method == "GET" for each in rules.asked) >= 3


@pytest.mark.sampled(3)
@pytest.mark.parametrize("fault", TRANSIENT)
def test_a_fault_that_stays_is_of_the_passing_kind(place: tuple[str, Rules], tmp_path: Path, fault: Any) -> None:
    url, rules = place
    urls.configure_access(urls.Access(retry_timeout=0.2))
    with RangedFile(stores.stat(url), str(tmp_path), block=HEADER_BLOCK) as source:
        rules.add("GET", "m.bin", fault)
        with pytest.raises(TransientError) as caught:
            source.read(0, len(DATA))
    assert "no such file" not in str(caught.value)


@pytest.mark.parametrize(("status", "kind"), [(404, NotFoundError), (403, AccessError)])
def test_what_does_not_pass_is_asked_once(place: tuple[str, Rules], status: int, kind: type[GgferryError]) -> None:
    url, rules = place
    for method in ("GET", "HEAD"):
        rules.add(method, "m.bin", status)
    with pytest.raises(kind) as caught:
        stores.stat(url)
    assert len(rules.asked) == 1 and caught.value.fault is Fault.PERSON


def test_a_file_that_vanished_is_said_to(place: tuple[str, Rules], tmp_path: Path) -> None:
    url, rules = place
    with RangedFile(stores.stat(url), str(tmp_path), block=HEADER_BLOCK) as source:
        rules.add("GET", "m.bin", 404)
        with pytest.raises(NotFoundError):
            source.read(0, 10)


def test_waiting_ends_with_the_run(site: Web) -> None:
    urls.configure_access(urls.Access(retry_timeout=60))
    site.rules.add("GET", "m.bin", 503)
    ended: list[BaseException] = []

    def ask() -> None:
        try:
            stores.stat(f"{site.url}/m.bin")
        except TransientError as error:
            ended.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(0.2)
    retry.stopping.set()
    try:
        thread.join(5)
    finally:
        retry.stopping.clear()
    assert ended


# --- a range that comes twice ---


def test_what_is_not_kept_must_come_as_it_came(place: tuple[str, Rules], tmp_path: Path) -> None:
    """The cache has no room: digest, conversion and proof would otherwise each read their own bytes."""
    url, rules = place
    with RangedFile(stores.stat(url), str(tmp_path), block=HEADER_BLOCK, room=-HEADER_BLOCK) as source:
        assert source.read(0, len(DATA)) == DATA
        rules.add("GET", "m.bin", "wrong")
        with pytest.raises(TransientError, match="source changed between range requests"):
            source.read(0, len(DATA))


def test_a_full_disk_costs_the_cache_not_the_bytes(
    place: tuple[str, Rules], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, _ = place
    real: Callable[..., int] = here.pwrite

    def short(descriptor: int, data: bytes, offset: int) -> int:
        if offset + len(data) > 2 * HEADER_BLOCK:
            raise OSError(28, "No space left on device")
        return real(descriptor, data[: max(1, len(data) // 2)], offset)

    monkeypatch.setattr(here, "pwrite", short)
    with RangedFile(stores.stat(url), str(tmp_path), block=HEADER_BLOCK) as source:
        source.read(0, HEADER_BLOCK)
        assert source.read(0, len(DATA)) == DATA
        assert source.read(5, len(DATA) - 5) == DATA[5:]


# --- uploads ---


def test_a_damaged_upload_is_sent_again(store: S3Store, tmp_path: Path) -> None:
    (tmp_path / "local").write_bytes(DATA)
    store.rules.add("GET", "partial$", "wrong", 1)
    publish(str(tmp_path / "local"), "s3://new/m.gguf", blake3(DATA).hexdigest(), str(tmp_path), lambda count: None)
    assert store.get("new/m.gguf") == DATA and store.keys("new") == ["m.gguf"] and not store.uploads("new")


# --- plans and runs ---


def test_a_place_that_is_away_gives_no_plan(site: Web, tmp_path: Path) -> None:
    """A plan in which all its models cannot be read would be believed."""
    for i in range(20):
        (site.root / f"{i}.bin").write_bytes(bytes([i]) * 4096)
    urls.configure_access(urls.Access(retry_timeout=0))
    site.rules.add("GET", r"\.bin$", "away")
    with pytest.raises(TransientError):
        planning.plan(PlanRequest((site.url,), str(tmp_path), access=urls.Access(retry_timeout=0.1)))


@pytest.mark.slow
def test_a_source_that_is_away_for_some_seconds_fails_nothing(site: Web, tmp_path: Path) -> None:
    for i in range(3):
        write(site.root / f"{i}.bin", Llama(seed=i))
    path = tmp_path / "plan.jsonl"
    plan(site.url, path, "--dest", tmp_path / "out", "--verify", "fast", "-j", "1")
    away = site.rules.add("GET", r"\.bin$", "away")
    threading.Timer(6, lambda: site.rules.rules.remove(away)).start()
    command("apply", path, "-j", "1")
    assert {row["state"] for row in rows(f"{path}.ledger").values()} == {"done"}


@pytest.mark.slow
def test_a_store_that_stays_away_quarantines_nothing_and_a_plain_rerun_ends_right(
    store: S3Store, tmp_path: Path
) -> None:
    write(tmp_path / "in" / "m.bin", Llama())
    path = tmp_path / "plan.jsonl"
    plan(tmp_path / "in", path, "--dest", "s3://new/to", "--verify", "fast", "-j", "1")
    for method in ("GET", "HEAD", "PUT", "POST"):
        store.rules.add(method, "", 503)
    command("apply", path, "-j", "1", "--patience", "0.1", "--attempts", "1", code=1)
    (row,) = rows(f"{path}.ledger").values()
    assert row["state"] == "failed" and row["error"]["fault"] == "passing" and not store.keys("new")
    store.rules.clear()
    command("apply", path, "-j", "1")
    assert store.keys("new") == ["to/m.gguf", "to/m.gguf.receipt.json"]
