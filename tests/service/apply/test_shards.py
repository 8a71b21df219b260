"""A job whose output is several shards: planned by name, published together, taken up after a kill, adopted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import ggferry
from ggferry.service.apply import job
from ggferry.service.plan import make_plan as planning
from ggferry.service.records.plan_file import read_plan, write_plan
from helpers.archive_tools import applied, command, write
from helpers.builders import Llama
from helpers.killed_workers import apply_and_die, dying_once
from helpers.store_faults import s3_store

SPLIT = {"split_max_tensors": 11}
COUNT = 3


@pytest.fixture
def expected(tmp_path: Path) -> dict[str, bytes]:
    """The files that a conversion of its own gives, by name."""
    source = write(tmp_path / "in" / "a.bin", Llama(kind="F16", version=1))
    (tmp_path / "alone").mkdir()
    ggferry.convert(source, tmp_path / "alone" / "a.gguf", verify="fast", **SPLIT)
    found = {path.name: path.read_bytes() for path in (tmp_path / "alone").iterdir()}
    assert {*found} == {f"a-{n:05}-of-{COUNT:05}.gguf" for n in (1, 2, 3)} | {
        f"a-00001-of-{COUNT:05}.gguf.receipt.json"
    }
    return found


def planned(tmp_path: Path, dest: str | None = None) -> Path:
    limits = planning.Limits(4 << 30, 1)
    wanted = planning.PlanRequest(
        (str(tmp_path / "in"),), dest or str(tmp_path / "out"), "keep", "fast", SPLIT, limits=limits
    )
    write_plan(str(tmp_path / "plan"), *planning.plan(wanted), overwrite=True)
    return tmp_path / "plan"


def there(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
def test_shards_are_planned_by_the_name_of_the_first_and_adopted(expected: dict[str, bytes], tmp_path: Path) -> None:
    path = planned(tmp_path)
    (entry,) = read_plan(str(path))[1]
    assert entry.outputs == (str(tmp_path / "out" / f"a-00001-of-{COUNT:05}.gguf"),)
    applied(path)
    assert there(tmp_path / "out") == expected
    os.unlink(f"{path}.ledger")
    (row,) = applied(path)[0].ledger.rows()
    assert row["state"] == "done" and row["adopted"], row["error"]
    os.unlink(f"{path}.ledger")
    (tmp_path / "out" / f"a-00002-of-{COUNT:05}.gguf").unlink()
    (row,) = applied(path)[0].ledger.rows()
    assert row["state"] == "failed" and f"a-00002-of-{COUNT:05}.gguf" in row["error"]["message"]


@pytest.mark.linux("SIGKILL of a worker that the test has changed")
@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [1, 3, 4])
def test_a_worker_killed_between_two_shards(
    name: int, expected: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "RETRY_AFTER", 0.02)
    path = planned(tmp_path)
    with dying_once(tmp_path, name) as died:
        (row,) = applied(path)[0].ledger.rows()
    assert died.exists() and row["state"] == "done", row["error"]
    assert there(tmp_path / "out") == expected, "nothing but the shards and their receipt"


@pytest.mark.slow
@pytest.mark.parametrize("upload", [2, -3, -4])
def test_shards_in_a_store(upload: int, expected: dict[str, bytes], tmp_path: Path) -> None:
    with s3_store() as store:
        path = planned(tmp_path, "s3://new/gguf")
        assert apply_and_die(path, upload) == -9
        assert "1 done" in command("apply", path, "-j", "1").stdout
        found = {name.rpartition("/")[2]: store.system.cat_file(name) for name in store.system.find("new")}
        assert found == expected
