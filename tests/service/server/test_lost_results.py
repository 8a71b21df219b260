"""The ledger's disk is full when the result of work in the background is to be written down: nobody waits for ever."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ggferry.formats.errors import GgferryError
from ggferry.service.server.quality import Qualities
from ggferry.service.server.settings import Settings
from ggferry.service.server.store.database import Store
from ggferry.service.server.work import planning
from ggferry.service.server.work.planning import Planner
from ggferry.service.server.work.sources import Place


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    found = Store(str(tmp_path / "ledger"))
    yield found
    found.close()


def full(*given: Any, **named: Any) -> Any:
    raise GgferryError("the ledger cannot be written: No space left on device")


def test_a_plan(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planner = Planner(store, Settings(str(tmp_path)), SimpleNamespace())  # type: ignore[arg-type]
    place = Place(str(tmp_path / "m.bin"), (str(tmp_path),))
    monkeypatch.setattr(planning, "make", full)
    with monkeypatch.context() as patch:
        patch.setattr(store, "run", full)
        key = planner.begin("m.bin", place, {}, "t")
        planner._work[key].exception(30)
    found = planner.show(key)
    assert found["state"] == "failed" and found["error"]["code"] == "interrupted"  # type: ignore[index]
    assert planner.begin("m.bin", place, {}, "t") == key, "it is made again"
    planner.wait(key, 30)
    assert planner.show(key)["error"]["message"].startswith("the ledger cannot be written")  # type: ignore[index]
    planner.close()


def test_a_plan_that_was_recorded_between_two_looks_is_not_lost(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planner = Planner(store, Settings(str(tmp_path)), SimpleNamespace())  # type: ignore[arg-type]
    monkeypatch.setattr(planner, "_make", lambda *given: None)
    key = planner.begin("m.bin", Place(str(tmp_path / "m.bin"), (str(tmp_path),)), {}, "t")
    planner.wait(key, 30)

    def recorded(plan: str, owner: str) -> bool:
        store.do(lambda c: c.execute(store.t.plans.update().values(state="ready", body="")))
        return True

    monkeypatch.setattr(planner, "_is_lost", recorded)
    assert planner.show(key)["state"] == "ready"
    planner.close()


def test_a_comparison(store: Store, tmp_path: Path) -> None:
    qualities = Qualities(store, Settings(str(tmp_path)))
    values = {"id": "q", "job": "j", "token": "t", "name": "n", "state": "running", "sha256": "", "characters": 1}
    values |= {"context": 64, "chunks": 1, "total": 1, "created": time.time(), "owner": qualities._owner}
    store.do(lambda c: c.execute(store._insert(store.t.qualities).values(**values)))
    qualities._under_way.add("q")
    assert qualities.of("j")[0].state == "running"
    qualities._under_way.clear()
    (found,) = qualities.of("j")
    assert found.state == "failed" and (found.error or {})["code"] == "interrupted"
    qualities.close()
