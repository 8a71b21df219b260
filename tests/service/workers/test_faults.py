"""Three kinds of trouble, each with its own end: the file's, a person's turn, and what passes by itself."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from ggferry.formats import errors
from ggferry.formats.errors import Fault, GgferryError, fault_of, of_os
from ggferry.service.apply.job import Limits, Outcome, Settings, run_job
from ggferry.service.records.ledger import FAILED, QUARANTINED, QUEUED, Job, Ledger
from ggferry.service.records.report import collect, migration_lines
from ggferry.service.workers.supervisor import WorkerFailed

pytestmark = pytest.mark.attack

FILE = (
    errors.CorruptError,
    errors.TruncatedError,
    errors.UnsupportedError,
    errors.UnsafePickleError,
    errors.VerificationError,
    errors.InconsistentError,
)
PERSON = (
    errors.RefusedError,
    errors.UsageError,
    errors.NotFoundError,
    errors.AccessError,
    errors.ChangedError,
    GgferryError,
)
TRANSIENT = (errors.TransientError, errors.UnreachableError, errors.TransportError)


def outcome(error: dict[str, Any], attempt: int = 1) -> Outcome:
    """How a job ends whose worker said `error`."""

    class Worker:
        def run(self, *_: object) -> None:
            raise WorkerFailed(error, 0)

        limits = Limits()

    class LedgerClient:
        def event(self, *_: object) -> None: ...

    entry = {"source": "/s", "output": "/o", "recipe": {}}
    return run_job(Job("id", entry, attempt, "me"), Worker(), LedgerClient(), Settings())  # type: ignore[arg-type]


def record(kind: type[GgferryError]) -> dict[str, Any]:
    return {**kind("words").as_dict(), "class": kind.__name__}


@pytest.mark.parametrize("kind", FILE)
def test_the_files_fault_is_quarantined_at_once(kind: type[GgferryError]) -> None:
    ended = outcome(record(kind))
    assert ended.state == QUARANTINED and ended.again is None and (ended.error or {})["fault"] == "file"


@pytest.mark.parametrize("kind", PERSON)
def test_a_persons_turn_fails_and_is_not_repeated(kind: type[GgferryError]) -> None:
    ended = outcome(record(kind))
    assert ended.state == FAILED and ended.again is None and (ended.error or {})["fault"] == "person"


@pytest.mark.parametrize("kind", TRANSIENT)
def test_what_passes_is_tried_for_a_minute_and_never_quarantined(kind: type[GgferryError]) -> None:
    ended = [outcome(record(kind), attempt) for attempt in range(1, 7)]
    assert [each.again for each in ended] == [2, 4, 8, 16, 32, None]
    assert {each.state for each in ended} == {FAILED} and (ended[-1].error or {})["fault"] == "passing"


def test_another_writer_is_waited_for_by_its_class_not_its_words() -> None:
    ended = outcome(record(errors.BusyError), attempt=99)
    assert ended.again is not None and not ended.counts


def test_the_class_decides_where_a_record_states_no_fault() -> None:
    for kinds, fault in ((FILE, Fault.FILE), (PERSON, Fault.PERSON), (TRANSIENT, Fault.TRANSIENT)):
        assert {fault_of({"class": kind.__name__}) for kind in kinds} == {fault}
    assert fault_of({"class": "WorkerDied"}) is Fault.FILE and fault_of({}) is Fault.FILE


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EACCES, errors.AccessError),
        (errno.EROFS, errors.AccessError),
        (errno.ENOENT, errors.NotFoundError),
        (errno.ECONNRESET, errors.UnreachableError),
        (errno.EIO, errors.UnreachableError),
        (errno.ENOSPC, GgferryError),
    ],
)
def test_what_the_system_refuses_is_no_internal_error(number: int, kind: type[GgferryError]) -> None:
    error = of_os(OSError(number, "words", "/a/place"))
    assert type(error) is kind and error.path == "/a/place" and "words" in error.message


def test_a_plain_rerun_tries_again_what_met_passing_trouble_and_only_that(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path / "ledger"))
    kinds = {"aaaaaaaa": errors.UnreachableError, "bbbbbbbb": errors.RefusedError, "cccccccc": errors.CorruptError}
    ledger.register("p", [{"id": i, "source": i, "entry": {}, "state": QUEUED} for i in kinds])
    while (job := ledger.claim("me", "p", 60)) is not None:
        ended = outcome(record(kinds[job.id]), attempt=99)
        ledger.finish(job, ended.state, error=ended.error)
    facts = collect(ledger.rows("p"))
    assert facts["faults"] == {"file": 1, "passing": 1, "person": 1}
    assert "the same command tries them again" in "\n".join(migration_lines(facts, "stem"))
    assert ledger.retry("p", [FAILED], Fault.TRANSIENT) == 1
    assert [row["id"] for row in ledger.rows("p", [QUEUED])] == ["aaaaaaaa"]
