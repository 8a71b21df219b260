"""The commands for archives: plan, apply, ledger.

They import what they need when they run, so `ggferry --help` is quick.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from ggferry.formats.errors import RefusedError
from ggferry.service.archive_operations import apply as applying
from ggferry.service.archive_operations import ledger as reading
from ggferry.service.archive_operations import plan as planning
from ggferry.service.archive_operations.apply import ApplyCommand, Survey
from ggferry.service.archive_operations.ledger import (
    ExportCommand,
    ListCommand,
    RecheckCommand,
    ShowCommand,
    StatusCommand,
)
from ggferry.service.archive_operations.plan import PlanCommand
from ggferry.service.cli.options import HeadedCommand, PlainGroup, print_json, say, takes, tell
from ggferry.support.platform import here

if TYPE_CHECKING:
    from ggferry.service.apply.delete_sources import Deletion
    from ggferry.service.apply.local_engine import Emit
    from ggferry.service.records.plan_file import Entry

commands = typer.Typer(rich_markup_mode=None)
ledger = typer.Typer(
    cls=PlainGroup, help="Job status from a migration's ledger.", no_args_is_help=True, rich_markup_mode=None
)
commands.add_typer(ledger, name="ledger")


@commands.command(cls=HeadedCommand)
@takes(PlanCommand, table="plan")
def plan(request: PlanCommand, **options: Any) -> None:
    """Write a plan, and print it in numbers."""
    from ggferry.service.cli.progress_bar import model_counter
    from ggferry.service.records.report import summary_lines

    as_json = bool(options["as_json"])
    made = planning.run(request, options, lambda: model_counter(not as_json))
    if as_json:
        print_json({"plan": made.path, **made.summary})
        return
    for line in summary_lines(made.summary):
        tell(line)
    if made.secrets is not None:
        tell(f"what is secret in its addresses: {made.secrets}, which apply reads too")
    tell(f"plan: {made.path}; next: ggferry apply {made.path}")


@commands.command(cls=HeadedCommand)
@takes(ApplyCommand)
def apply(request: ApplyCommand) -> None:
    """Carry out a plan, or say what would be done."""
    from ggferry.service.records.report import migration_lines, tables

    if request.dry_run:
        _show_survey(applying.survey(request), request.as_json)
        return

    @contextmanager
    def displayed(left: Sequence[Entry]) -> Iterator[Emit]:
        from ggferry.service.cli.run_progress import Tracker, shown

        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with shown(Tracker(left), request.as_json) as emit:
            yield emit

    if request.memory and not here.CAPS:
        say(f"{here.NAME} caps the memory of no process: --memory is not applied")
    done = applying.run(request, lambda deletion: _confirm(deletion, request.yes), displayed)
    if not request.as_json:
        for line in (*tables(done.report), *migration_lines(done.report, done.stem)):
            tell(line)
    if done.failed:
        raise typer.Exit(1)


def _show_survey(found: Survey, as_json: bool) -> None:
    if as_json:
        print_json(found.as_dict())
        return
    for entry in found.left:
        tell(f"  convert {entry.source} → {', '.join(entry.outputs)}")
    tell(f"{len(found.left)} models to convert")
    if found.deletion.files or found.deletion.spared:
        for line in found.deletion.lines(None):
            tell(line)


def _confirm(deletion: Deletion, yes: bool) -> None:
    """List what will be deleted, and ask a person unless there is nothing or `yes`. Raises RefusedError."""
    phrase = f"delete {len(deletion.files)} files"
    for line in deletion.lines():
        say(line)
    if yes or not deletion.files:
        return
    if not sys.stdin.isatty():
        raise RefusedError(
            "--delete-source needs a confirmation, and standard input is no terminal",
            hint="--yes, where nobody can answer",
        )
    say(f"Type '{phrase}' to go on: ", end="")
    if sys.stdin.readline().strip() != phrase:
        raise RefusedError("not confirmed; nothing was done")


# --- ledger --------------------------------------------------------------------------------------------------------


@ledger.command(cls=HeadedCommand)
@takes(StatusCommand)
def status(request: StatusCommand) -> None:
    """Print a line a state."""
    counts = reading.counts(request)
    if request.as_json:
        print_json(counts)
        return
    for state, count in counts.items():
        tell(f"{state:<12} {count:>8}")


@ledger.command(name="list", cls=HeadedCommand)
@takes(ListCommand)
def list_jobs(request: ListCommand) -> None:
    """Print a line a job."""
    from ggferry.service.records.plan_file import outputs_of

    for row in reading.jobs(request):
        if request.as_json:
            print_json(row, default=str)
        else:
            what = (row["error"] or {}).get("message") or row["same_as"] or ", ".join(outputs_of(row))
            tell(f"{row['id'][:10]}  {row['state']:<12} {row['source']}: {what}")


@ledger.command(cls=HeadedCommand)
@takes(ShowCommand)
def show(request: ShowCommand) -> None:
    """Print a job."""
    print_json(reading.job(request), indent=1, default=str)


@ledger.command(cls=HeadedCommand)
@takes(ExportCommand)
def export(request: ExportCommand) -> None:
    """Write the report, and print its totals."""
    from ggferry.service.records.report import migration_lines

    for line in migration_lines(reading.export(request), request.out):
        tell(line)


@ledger.command(cls=HeadedCommand)
@takes(RecheckCommand)
def recheck(request: RecheckCommand) -> None:
    """Print a line a job that was checked again."""
    bad = 0
    for found in reading.recheck(request):
        bad += found.problem is not None
        if request.as_json:
            print_json(found.as_dict())
        else:
            mark, problem = ("=", "") if found.problem is None else ("!", f": {found.problem}")
            tell(f"{mark} {', '.join(found.outputs)}{problem}")
    if bad:
        raise typer.Exit(1)
