""" "The same content" is said of what was converted, never of a store that did not answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from ggferry.formats import errors
from ggferry.formats.errors import GgferryError
from ggferry.service.apply import job
from ggferry.service.apply.job import Settings
from ggferry.service.records.ledger import DONE, FAILED, QUEUED, SKIPPED, Duplicate, Job, LeaseLost
from ggferry.service.workers.supervisor import Answer, Limits
from helpers.archive_tools import command, planned, rows, write
from helpers.builders import Llama
from helpers.store_faults import S3Store

pytestmark = pytest.mark.attack

OUTPUT = "s3://new/a.gguf"


class Worker:
    """A supervisor whose worker asks for its key, and for leave to publish, and obeys."""

    limits = Limits()

    def __init__(self) -> None:
        self.ran = False

    def run(self, command: Any, on_event: Any, on_ask: Any, timeout: float) -> Answer:
        self.ran = True
        if not on_ask({"question": "key", "key": "k"})["ok"]:
            return Answer({}, 0)
        if not on_ask({"question": "publish"})["ok"]:
            return Answer({}, 0)
        return Answer({"receipts": [{"output": {"files": []}}], "adopted": True}, 0)


class LedgerClient:
    """A ledger that knows `twin`, or raises `trouble`."""

    def __init__(self, twin: Duplicate | None = None, trouble: BaseException | None = None) -> None:
        self.twin, self.trouble = twin, trouble

    def key(self, job: Job, key: str) -> Duplicate | None:
        if self.trouble is not None:
            raise self.trouble
        return self.twin

    def verifying(self, job: Job) -> None: ...
    def confirm(self, job: Job) -> None: ...
    def event(self, job: Job, event: object) -> None: ...


def outcome(
    monkeypatch: pytest.MonkeyPatch, desk: LedgerClient, answer: GgferryError | None = None
) -> tuple[job.Outcome, Worker]:
    """How a job ends whose store says `answer` when it is asked whether the output can go there."""

    def prepare(*_: object) -> None:
        if answer is not None:
            raise answer

    monkeypatch.setattr(job, "prepare", prepare)
    monkeypatch.setattr(job._Run, "_upload", lambda *_: False)
    worker = Worker()
    entry = {"source": "/s", "output": OUTPUT, "recipe": {}}
    return job.run_job(Job("id", entry, 1, "me", 1), worker, desk, Settings()), worker  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answer", "again"),
    [(errors.UnreachableError("away"), True), (errors.TransportError("cut"), True), (errors.AccessError("no"), False)],
)
def test_a_store_that_does_not_answer_is_no_twin(
    answer: GgferryError, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, worker = outcome(monkeypatch, LedgerClient(), answer)
    assert ended.state == FAILED and (ended.again is not None) is again and ended.same_as is None
    assert (ended.error or {})["class"] == type(answer).__name__
    assert not worker.ran, "the source was read for a store that is away"


@pytest.mark.parametrize("trouble", [errors.UnreachableError("away"), errors.RefusedError("in the way")])
def test_trouble_while_the_worker_asks_is_raised(trouble: GgferryError, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker returns as if all were well: its answer counts for nothing."""
    ended, _ = outcome(monkeypatch, LedgerClient(trouble=trouble))
    assert ended.state == FAILED and (ended.error or {})["message"] == trouble.message


def test_a_lost_lease_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LeaseLost):
        outcome(monkeypatch, LedgerClient(trouble=LeaseLost("id")))


def test_only_a_twin_that_is_done_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, _ = outcome(monkeypatch, LedgerClient(Duplicate("other", done=True)))
    assert (ended.state, ended.same_as) == (SKIPPED, "other")
    ended, _ = outcome(monkeypatch, LedgerClient(Duplicate("other", done=False)))
    assert (ended.state, ended.same_as) == (QUEUED, "other")
    ended, _ = outcome(monkeypatch, LedgerClient())
    assert ended.state == DONE


# --- against a store -----------------------------------------------------------------------------------------


@pytest.fixture
def path(store: S3Store, tmp_path: Path) -> Path:
    """A plan of three models, two of them with one content, whose outputs go to the store."""
    for seed, name in enumerate("abc"):
        write(tmp_path / "in" / f"{name}.bin", Llama(seed=seed % 2))
    return planned(
        tmp_path / "in",
        "s3://new/x",
        tmp_path / "plan",
        c={"verdict": "convert", "output": "s3://new/x/c.gguf", "same_as": None, "proof": None},
    )


def ended(path: Path) -> dict[str, tuple[str, str]]:
    """State and error by the name of the source."""
    found = rows(f"{path}.ledger")
    return {Path(source).name: (row["state"], (row["error"] or {}).get("class", "")) for source, row in found.items()}


@pytest.mark.slow
def test_a_destination_that_is_away_fails_the_jobs_and_a_rerun_converts_them(store: S3Store, path: Path) -> None:
    """All were 'skipped: the same content', exit code 0, and so again with the store back, for ever."""
    for method in ("HEAD", "GET", "PUT", "POST"):
        store.rules.add(method, "", "away")
    short = ("--attempts", "1", "--patience", "0.1")
    done = command("apply", path, "-j", "2", *short, code=1)
    assert {state for state, _ in ended(path).values()} == {"failed"}
    assert "the same command tries them again" in done.stdout
    store.rules.clear()
    command("apply", path, "-j", "2")
    found = ended(path)
    assert found["b.bin"] == ("done", "") and {found["a.bin"], found["c.bin"]} == {("done", ""), ("skipped", "Same")}
    assert len([key for key in store.keys("new") if key.endswith(".gguf")]) == 2


@pytest.mark.slow
def test_a_hiccup_while_one_is_asked_for_leaves_the_others_alone(store: S3Store, path: Path) -> None:
    store.rules.add("HEAD", r"x/a\.gguf$", 500)
    store.rules.add("GET", r"x/a\.gguf$", 500)
    store.put("new/x/b.gguf", b"a strange")
    command("apply", path, "-j", "1", "--attempts", "1", "--patience", "0.1", code=1)
    found = ended(path)
    assert found["a.bin"][0] == "failed" and found["b.bin"] == ("failed", "RefusedError")
    assert found["c.bin"] == ("done", ""), "its content was nobody's yet"
    assert store.get("new/x/b.gguf") == b"a strange"
    store.rules.clear()
    command("apply", path, "-j", "1", code=1)  # only what met passing trouble is tried again: now its content is done
    assert ended(path)["a.bin"] == ("skipped", "Same")


@pytest.mark.slow
def test_a_planted_receipt_makes_no_output_of_a_strange_object(store: S3Store, path: Path, tmp_path: Path) -> None:
    command("apply", path, "-j", "1")
    receipt = json.loads(store.get("new/x/b.gguf.receipt.json"))
    receipt["output"]["files"] = [{"name": "b.gguf", "bytes": 9, "blake3": str(blake3(b"a strange").hexdigest())}]
    store.put("new/x/b.gguf", b"a strange")
    store.put("new/x/b.gguf.receipt.json", json.dumps(receipt).encode())
    Path(f"{path}.ledger").unlink()
    command("apply", path, "-j", "1", "--delete-source", "--yes", code=1)
    assert ended(path)["b.bin"] == ("failed", "RefusedError") and (tmp_path / "in" / "b.bin").exists()
    assert store.get("new/x/b.gguf") == b"a strange"
    found = rows(f"{path}.ledger")[str(tmp_path / "in" / "a.bin")]
    assert found["adopted"] or found["state"] == "skipped"
