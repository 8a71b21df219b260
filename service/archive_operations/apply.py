"""Carry out a migration's plan: the request, the run, and the result."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, Annotated, cast

from ggferry.converters.conversion.options import Kind
from ggferry.formats.errors import UsageError
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.service.archive_operations._workers import JsonLines, Memory, RetryTimeout, cores, limits_of
from ggferry.service.operation import argument, declare, size_of
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.service.apply.delete_sources import Deletion
    from ggferry.service.apply.local_engine import Emit
    from ggferry.service.apply.migration import MigrationRequest
    from ggferry.service.records.fields import ReportRecord
    from ggferry.service.records.plan_file import Entry
    from ggferry.service.workers.messages import Event

MOST_JOBS = 256


@dataclass(frozen=True, slots=True)
class ApplyRequest:
    """Which plan is carried out, and how."""

    plan: Annotated[str, argument("A plan that ggferry plan wrote.", Kind.TEXT, metavar="PLAN")]
    _: KW_ONLY
    jobs: Annotated[
        int | None,
        declare(Kind.NUMBER, "Worker processes (default: cores).", "--jobs", "-j", least=1, most=MOST_JOBS),
    ] = None
    threads: Annotated[
        int | None, declare(Kind.NUMBER, "Threads of each worker (default: cores / jobs).", "--threads", least=1)
    ] = None
    engine: Annotated[str, declare(Kind.TEXT, "local, or ray for a cluster.", "--engine", metavar="NAME")] = "local"
    address: Annotated[
        str | None, declare(Kind.TEXT,
                "Address of the Ray cluster (default: RAY_ADDRESS, or this machine).",
                "--ray-address", metavar="ADDRESS")
    ] = None
    ledger: Annotated[str | None, declare(Kind.TEXT, "Path, URL, or env:NAME (default: PLAN.ledger).", "--ledger",
            metavar="LEDGER")] = (
        None
    )
    shard: Annotated[
        str | None, declare(Kind.TEXT,
                "Do only the I-th of N shares of the models, I from 1: for several machines.",
                "--shard", metavar="I/N")
    ] = None
    retry_failed: Annotated[
        bool, declare(Kind.FLAG, "Try what failed or was quarantined again.", "--retry-failed")
    ] = False
    max_disk: Annotated[
        int | str | None, declare(Kind.SIZE,
                "Refuse to begin if more disk space than this would be taken.",
                "--max-disk", metavar="SIZE")
    ] = None
    memory: Memory = "4GiB"
    timeout: Annotated[
        float | None, declare(Kind.SECONDS, "Seconds that a model may take (default: by size).", "--timeout", least=0)
    ] = None
    attempts: Annotated[
        int, declare(Kind.NUMBER,
                "Give a model up when its worker process has ended so many times.",
                "--attempts", least=1)
    ] = 3
    scratch: Annotated[str | None, declare(Kind.TEXT,
            "Folder for temporary files: blocks of remote sources, outputs on their way to a store.",
            "--scratch", metavar="DIR")] = None
    cache: Annotated[int | str, declare(Kind.SIZE, "Disk cache for remote sources.", "--cache", metavar="SIZE")] = (
        "64GiB"
    )
    lease: Annotated[
        float, declare(Kind.SECONDS, "Seconds until another run takes a dead one's job.", "--lease", least=1)
    ] = 60.0
    retry_timeout: RetryTimeout = 30.0
    delete_source: Annotated[
        bool, declare(Kind.FLAG, "Delete weights whose output is proved.", "--delete-source")
    ] = False
    delete_despite_drops: Annotated[
        bool,
        declare(Kind.FLAG,
                "With --delete-source: also weights of which the output does not hold everything.",
                "--delete-despite-drops"),
    ] = False
    allow_outside_dest: Annotated[
        bool, declare(Kind.FLAG, "Follow lines of the plan that write outside its dest.", "--allow-outside-dest")
    ] = False
    report: Annotated[
        str | None, declare(Kind.TEXT, "Stem of the report (default: PLAN.report).", "--report", metavar="STEM")
    ] = None


@dataclass(frozen=True, slots=True)
class ApplyCommand(ApplyRequest):
    """Execute a plan. Run it again to continue; what is finished is never redone. Exits 1 when a model failed."""

    _: KW_ONLY
    yes: Annotated[bool, declare(Kind.FLAG, "Do not ask.", "--yes", "-y")] = False
    dry_run: Annotated[
        bool, declare(Kind.FLAG, "Say what would be converted and deleted; do nothing.", "--dry-run")
    ] = False
    as_json: JsonLines = False


@dataclass(frozen=True, slots=True)
class Survey:
    """What a run would do.

    Attributes:
        left: The lines of the plan that would be converted.
        deletion: The sources that would be deleted.
    """

    left: Sequence[Entry]
    deletion: Deletion

    def as_dict(self) -> JSONObject:
        """Return the survey as plain data, for JSON."""
        convert = [
            {"source": entry.source, "output": entry.output, "outputs": entry.outputs, "bytes": entry.bytes_out}
            for entry in self.left
        ]
        delete = [{"path": each.path, "bytes": each.bytes} for each in self.deletion.files]
        return {"convert": convert, "delete": delete, "keep": self.deletion.spared}


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """What became of a plan.

    Attributes:
        report: The facts of the report, as its JSON file has them.
        stem: The report's path without .json and .html.
        failed: How many models did not end well.
    """

    report: ReportRecord
    stem: str
    failed: int


def survey(request: ApplyRequest) -> Survey:
    """Return what a run would convert and delete at present. Raises as `run`; nothing is changed."""
    from ggferry.service.apply.migration import survey as look
    from ggferry.service.records.report import check_report

    check_report(_report(request))
    return Survey(*look(migration_request(request)))


def run(
    request: ApplyRequest, confirm: Callable[[Deletion], None],
    displayed: Callable[[Sequence[Entry]], AbstractContextManager[Emit]],
) -> ApplyResult:
    """Carry out a plan, and write its report.

    Args:
        request: The plan, and how.
        confirm: Takes what `delete_source` would delete, before anything is done, and raises to end the run.
        displayed: The context in which events are shown, for the lines that are left to do.

    Returns:
        What became of the plan.

    Raises:
        UsageError: An option has no such value.
        RefusedError: Sources changed, there is too little room, or `confirm` raised it.
        GgferryError: As `convert`, where it concerns more than one model.
    """
    from ggferry.service.apply.migration import Migration
    from ggferry.service.records.report import check_report, write_report

    stem = _report(request)
    check_report(stem)
    early: list[Event] = []
    migration = Migration(migration_request(request), early.append)
    left = migration.prepare()
    if request.delete_source:
        confirm(migration.deletion)
    with displayed(left) as emit:
        migration.emit = emit
        start = {"plan": request.plan, "ledger": migration.ledger.shown, "jobs": len(left), "room": early}
        going = [each.path for each in migration.deletion.files]
        emit(cast("Event", {"event": "start", **start, "to_delete": going}))
        migration.run(left)
        facts = write_report(stem, migration.ledger, migration.head, migration.entries)
        emit(cast("Event", {"event": "end", **facts["totals"]}))
    with closing(migration.ledger):
        return ApplyResult(facts, stem, migration.failed())


def migration_request(request: ApplyRequest) -> MigrationRequest:
    """Return the run that is asked for, with the values that options have by default. Raises UsageError."""
    from ggferry.service.apply.job import Settings
    from ggferry.service.apply.migration import MigrationRequest

    count = request.jobs or cores()
    settings = Settings(
        limits_of(request.memory, request.threads or max(1, cores() // count)),
        request.scratch and os.path.abspath(request.scratch), request.timeout,
        size_of(request.cache, "--cache"), request.attempts,
    )
    return MigrationRequest(
        request.plan, request.ledger or f"{request.plan}{_suffix(request)}.ledger", request.engine, count, settings,
        shard_of(request.shard), request.retry_failed,
        None if request.max_disk is None else size_of(request.max_disk, "--max-disk"), request.delete_source,
        request.delete_despite_drops, request.lease, request.address, request.retry_timeout,
        request.allow_outside_dest,
    )


def _report(request: ApplyRequest) -> str:
    suffix = _suffix(request)  # a share that is none is an error, whatever the report's name
    return f"{request.plan}{suffix}.report" if request.report is None else request.report


def _suffix(request: ApplyRequest) -> str:
    share, shares = shard_of(request.shard)
    return "" if request.shard is None else f".{share + 1}-of-{shares}"


def shard_of(text: str | None) -> tuple[int, int]:
    """Parse a share: '2/8' → (1, 8)."""
    if text is None:
        return 0, 1
    share, _, shares = text.partition("/")
    if not (share.isdecimal() and shares.isdecimal() and 1 <= int(share) <= int(shares)):
        raise UsageError("--shard", found=text, expected="I/N with 1 ≤ I ≤ N")
    return int(share) - 1, int(shares)
