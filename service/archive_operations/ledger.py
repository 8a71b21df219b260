"""Read a migration's ledger: its jobs by state, one by one, their report, and their outputs checked again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, Annotated

from ggferry.converters.conversion.options import Kind
from ggferry.formats.errors import UsageError
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.service.archive_operations._workers import JsonLines, LedgerUrl, Memory
from ggferry.service.operation import Force, argument, declare, size_of
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.service.records.fields import LedgerRow, ReportRecord, TriedRow


@dataclass(frozen=True, slots=True)
class StatusCommand:
    """Jobs by state."""

    url: LedgerUrl
    _: KW_ONLY
    as_json: JsonLines = False


@dataclass(frozen=True, slots=True)
class ListCommand:
    """A line a job: id, state, source, and the error or the output."""

    url: LedgerUrl
    _: KW_ONLY
    state: Annotated[tuple[str, ...], declare(Kind.TEXTS, "Only these states; repeatable.", "--state",
            metavar="STATE")] = ()
    as_json: JsonLines = False


@dataclass(frozen=True, slots=True)
class ShowCommand:
    """Everything about one job, with its attempts and its receipt, as JSON."""

    url: LedgerUrl
    job: Annotated[
        str, argument("Id or the beginning of one, source, or output.", Kind.TEXT, metavar="JOB")
    ]


@dataclass(frozen=True, slots=True)
class ExportCommand:
    """The report of everything in a ledger, HTML and JSON. Damaged rows are left out and named (exit code 5)."""

    url: LedgerUrl
    _: KW_ONLY
    out: Annotated[str, declare(Kind.TEXT, ".json and .html are written, with this stem.", "--outfile", "-o",
            metavar="STEM")]
    force: Force = False


@dataclass(frozen=True, slots=True)
class RecheckCommand:
    """Check finished outputs again: their bytes against their receipts. Exits 1 when one is not what it was.

    Damaged rows of the ledger are named at the end (exit code 5).
    """

    url: LedgerUrl
    _: KW_ONLY
    sample: Annotated[
        str, declare(Kind.TEXT, "Share of the outputs, the same ones each time.", "--sample", metavar="N%")
    ] = "100%"
    full: Annotated[
        bool, declare(Kind.FLAG, "The whole proof against the source, not only digests.", "--full")
    ] = False
    memory: Memory = "4GiB"
    as_json: JsonLines = False


@dataclass(frozen=True, slots=True)
class Rechecked:
    """A finished job whose outputs were checked again.

    Attributes:
        id: Id of the job.
        output: The first of its outputs.
        outputs: All of them.
        problem: What is wrong with them; None for nothing.
    """

    id: str
    output: str | None
    outputs: list[str]
    problem: str | None

    def as_dict(self) -> JSONObject:
        """Return the job as plain data, for JSON."""
        return {
            "id": self.id, "output": self.output, "outputs": self.outputs, "ok": self.problem is None,
            "problem": self.problem,
        }


def counts(request: StatusCommand) -> dict[str, int]:
    """Return how many jobs have each state. Raises NotFoundError, UnreachableError."""
    from ggferry.service.records.ledger import Ledger

    with closing(Ledger(request.url, must_exist=True)) as ledger:
        return ledger.counts()


def jobs(request: ListCommand) -> list[LedgerRow]:
    """Return the jobs of some states, or all, without their lines and receipts. Raises UsageError, and as `counts`."""
    from ggferry.service.records.ledger import STATES, Ledger

    unknown = set(request.state) - set(STATES)
    if unknown:
        raise UsageError("--state", found=unknown.pop(), expected=", ".join(STATES))
    with closing(Ledger(request.url, must_exist=True)) as ledger:
        return ledger.rows(None, request.state or None, full=False)


def job(request: ShowCommand) -> TriedRow:
    """Return one job with its attempts and its receipt. Raises NotFoundError, UnreachableError."""
    from ggferry.service.records.ledger import Ledger

    with closing(Ledger(request.url, must_exist=True)) as ledger:
        return ledger.job(request.job)


def export(request: ExportCommand) -> ReportRecord:
    """Write the report, and return the facts in it. Raises as `write_report`."""
    from ggferry.service.records.ledger import Ledger
    from ggferry.service.records.report import write_report

    with closing(Ledger(request.url, must_exist=True)) as ledger:
        return write_report(request.out, ledger, overwrite=request.force)


def recheck(request: RecheckCommand) -> Iterator[Rechecked]:
    """Yield each job that is checked again. Raises UsageError, and as `apply.recheck.recheck`."""
    from ggferry.service.apply.recheck import recheck as check_again
    from ggferry.service.records.ledger import Ledger
    from ggferry.service.records.plan_file import outputs_of

    share, memory = share_of(request.sample), size_of(request.memory, "--memory")
    with closing(Ledger(request.url, must_exist=True)) as ledger:
        for row, problem in check_again(ledger, share, request.full, memory):
            yield Rechecked(row["id"], row["output"], outputs_of(row["entry"]), problem)


def share_of(percentage: str) -> float:
    """Return the share that a percentage such as '5%' states. Raises UsageError."""
    try:
        value = float(percentage.removesuffix("%"))
    except ValueError:
        value = -1
    if not 0 < value <= 100:
        raise UsageError("--sample", found=percentage, expected="a percentage")
    return value / 100
