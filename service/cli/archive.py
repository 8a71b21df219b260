"""The commands for archives: plan, apply, ledger.

They import what they need when they run, so `ggferry --help` is quick.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from ggferry.formats.errors import RefusedError, UsageError
from ggferry.service.cli.options import HeadedCommand, offers, print_json, say, size_of, tell
from ggferry.service.workers.messages import Event

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ggferry.converters.conversion.options import Option
    from ggferry.service.apply.delete_sources import Deletion
    from ggferry.service.records.plan_file import Entry

commands = typer.Typer(rich_markup_mode=None)
ledger = typer.Typer(help="What a migration's ledger knows.", no_args_is_help=True, rich_markup_mode=None)
commands.add_typer(ledger, name="ledger")

Json = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]
SIZES = "4G is 4·10⁹ bytes, 4GiB is 4·2³⁰."
Memory = Annotated[
    str, typer.Option("--memory", metavar="SIZE", help=f"Memory cap of each worker process; 0: none. {SIZES}")
]
Threads = Annotated[int | None, typer.Option("--threads", min=1, help="Threads a worker (default: cores / jobs).")]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing file.")]
Where = Annotated[str, typer.Argument(metavar="LEDGER", help="A ledger's path or URL, or env:NAME.")]
RetryTimeout = Annotated[
    float, typer.Option("--patience", min=0, metavar="SECONDS", help="How long a store in trouble is asked again.")
]
State = Annotated[list[str] | None, typer.Option("--state", help="Only these states; repeatable.")]


@commands.command(cls=HeadedCommand)
@offers("plan", defaults=False)
def plan(
    roots: Annotated[
        list[str], typer.Argument(metavar="ROOT…", help="Folders, files or URLs (s3://, https://, hf://).")
    ],
    out: Annotated[str, typer.Option("--outfile", "-o", help="The plan to write.")],
    dest: Annotated[str | None, typer.Option("--dest", help="Folder or URL (default: beside the sources).")] = None,
    digest: Annotated[
        bool | None,
        typer.Option("--digest/--no-digest", help="Read files of equal size whole to prove duplicates."),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, max=256, help="Processes that read headers.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow-redirects", help="Let web servers send us to other servers.")
    ] = False,
    retry_timeout: RetryTimeout = 30.0,
    memory: Memory = "4GiB",
    **given: Any,
) -> None:
    """Scan an archive and write a migration plan. Reads headers, no tensor data."""
    from ggferry.converters.conversion.options import options_of, types_of
    from ggferry.converters.conversion.request import request_of
    from ggferry.converters.proof.references.examine import chosen
    from ggferry.formats.files.partial_files import check_target
    from ggferry.service.cli.progress_bar import model_counter
    from ggferry.service.plan.make_plan import PlanRequest
    from ggferry.service.plan.make_plan import plan as make
    from ggferry.service.records.plan_file import write_plan
    from ggferry.service.records.report import summary, summary_lines
    from ggferry.service.storage.urls import Access, secrets_of, write_secrets
    from ggferry.service.workers.supervisor import Limits

    types = types_of(given["outtype"] or "keep")
    asked, *_ = [request_of("", {**given, "outtype": each}) for each in types]
    chosen(asked.witness, asked.level)
    check_target(out, overwrite=asked.force)
    recipe = {each.name: _plainly(each, given[each.name]) for each in options_of("plan") if _is_declared(each, given)}
    count = jobs or _cores()
    request = PlanRequest(
        tuple(roots), dest, ",".join(types), asked.level, recipe, digest, count,
        Limits(size_of(memory, "--memory"), 1),
        Access(redirects=follow, retry_timeout=retry_timeout),
    )  # fmt: skip
    with model_counter(not given["as_json"]) as count_models:
        head, entries = make(request, count_models)
    write_plan(out, head, entries, overwrite=asked.force)
    kept = write_secrets(out, secrets_of({each.path for entry in entries for each in (*entry.files, *entry.beside)}))
    facts = summary(entries, head)
    if given["as_json"]:
        print_json({"plan": out, **facts})
    else:
        for line in summary_lines(facts):
            tell(line)
        if kept is not None:
            tell(f"what is secret in its addresses: {kept}, which apply reads too")
        tell(f"plan: {out}; next: ggferry apply {out}")


@commands.command()
def apply(
    plan: Annotated[str, typer.Argument(help="A plan that ggferry plan wrote.")],
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, max=256, help="Worker processes (default: cores).")
    ] = None,
    threads: Threads = None,
    engine: Annotated[str, typer.Option("--engine", help="local, or ray for a cluster.")] = "local",
    address: Annotated[
        str | None, typer.Option("--ray-address", help="Of the cluster (default: RAY_ADDRESS, or local).")
    ] = None,
    ledger: Annotated[
        str | None, typer.Option("--ledger", help="Path, URL, or env:NAME (default: PLAN.ledger).")
    ] = None,
    shard: Annotated[str | None, typer.Option("--shard", metavar="I/N", help="Only share I of N, from 1.")] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Try what failed or was quarantined again.")
    ] = False,
    max_disk: Annotated[
        str | None, typer.Option("--max-disk", metavar="SIZE", help="Refuse to take more room than this.")
    ] = None,
    memory: Memory = "4GiB",
    timeout: Annotated[
        float | None, typer.Option("--timeout", min=0, help="Seconds a model (default: by size).")
    ] = None,
    attempts: Annotated[int, typer.Option("--attempts", min=1, help="Times a model may end its worker.")] = 3,
    scratch: Annotated[str | None, typer.Option("--scratch", help="Folder for what passes through.")] = None,
    cache: Annotated[
        str, typer.Option("--cache", metavar="SIZE", help="Kept of a remote model while it is converted.")
    ] = "64GiB",
    lease: Annotated[
        float, typer.Option("--lease", min=1, help="Seconds until another run takes a dead one's job.")
    ] = 60.0,
    retry_timeout: RetryTimeout = 30.0,
    delete_source: Annotated[
        bool, typer.Option("--delete-source", help="Delete weights whose output is proved.")
    ] = False,
    delete_despite_drops: Annotated[
        bool, typer.Option("--delete-despite-drops", help="Also weights of which the output does not hold all.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    allow_outside_dest: Annotated[
        bool, typer.Option("--allow-outside-dest", help="Follow lines of the plan that write outside its dest.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be converted and deleted; do nothing.")
    ] = False,
    report: Annotated[str | None, typer.Option("--report", help="Stem of the report (default: PLAN.report).")] = None,
    as_json: Json = False,
) -> None:
    """Execute a plan. Run it again to continue; what is finished is never redone. Exits 1 when a model failed."""
    from ggferry.service.apply.job import Settings
    from ggferry.service.apply.migration import Migration, MigrationRequest, survey
    from ggferry.service.cli.run_progress import Tracker, shown
    from ggferry.service.records.report import check_report, migration_lines, tables, write_report
    from ggferry.service.workers.supervisor import Limits

    share = shard_of(shard)
    suffix = "" if shard is None else f".{share[0] + 1}-of-{share[1]}"
    stem = f"{plan}{suffix}.report" if report is None else report
    check_report(stem)
    count = jobs or _cores()
    settings = Settings(
        Limits(size_of(memory, "--memory"), threads or max(1, _cores() // count)), scratch and os.path.abspath(scratch),
        timeout, size_of(cache, "--cache"), attempts,
    )  # fmt: skip
    request = MigrationRequest(
        plan, ledger or f"{plan}{suffix}.ledger", engine, count, settings, share, retry_failed,
        None if max_disk is None else size_of(max_disk, "--max-disk"), delete_source, delete_despite_drops, lease,
        address, retry_timeout, allow_outside_dest,
    )  # fmt: skip
    if dry_run:
        _show_survey(*survey(request), as_json)
        return
    early: list[Event] = []
    migration = Migration(request, early.append)
    left = migration.prepare()
    if delete_source:
        _confirm(migration.deletion, yes)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with shown(Tracker(left), as_json) as emit:
        migration.emit = emit
        going = [each.path for each in migration.deletion.files]
        start = {"plan": plan, "ledger": migration.ledger.shown, "jobs": len(left), "room": early}
        emit(cast("Event", {"event": "start", **start, "to_delete": going}))
        migration.run(left)
        facts = write_report(stem, migration.ledger, migration.head, migration.entries)
        emit(cast("Event", {"event": "end", **facts["totals"]}))
    if not as_json:
        for line in (*tables(facts), *migration_lines(facts, stem)):
            tell(line)
    migration.ledger.close()
    if migration.failed():
        raise typer.Exit(1)


def _show_survey(left: list[Entry], deletion: Deletion, as_json: bool) -> None:
    if as_json:
        convert = [
            {"source": entry.source, "output": entry.output, "outputs": entry.outputs, "bytes": entry.bytes_out}
            for entry in left
        ]
        going = [{"path": each.path, "bytes": each.bytes} for each in deletion.files]
        print_json({"convert": convert, "delete": going, "keep": deletion.spared})
        return
    for entry in left:
        tell(f"  convert {entry.source} → {', '.join(entry.outputs)}")
    tell(f"{len(left)} models to convert")
    if deletion.files or deletion.spared:
        for line in deletion.lines(None):
            tell(line)


def _confirm(deletion: Deletion, yes: bool) -> None:
    """List what will be deleted, and ask a person unless there is nothing or `yes`. Raises RefusedError."""
    phrase = f"delete {len(deletion.files)} files"
    for line in deletion.lines():
        say(line)
    if yes or not deletion.files:
        return
    if not sys.stdin.isatty():
        raise RefusedError("--delete-source asks before it begins", hint="--yes, where nobody can answer")
    say(f"Type '{phrase}' to go on: ", end="")
    if sys.stdin.readline().strip() != phrase:
        raise RefusedError("not confirmed; nothing was done")


# --- ledger --------------------------------------------------------------------------------------------------------


@ledger.command()
def status(url: Where, as_json: Json = False) -> None:
    """Jobs by state."""
    from ggferry.service.records.ledger import Ledger

    counts = Ledger(url, must_exist=True).counts()
    if as_json:
        print_json(counts)
        return
    for state, count in counts.items():
        tell(f"{state:<12} {count:>8}")


@ledger.command(name="list")
def list_jobs(url: Where, state: State = None, as_json: Json = False) -> None:
    """A line a job: id, state, source, and the error or the output."""
    from ggferry.service.records.ledger import STATES, Ledger
    from ggferry.service.records.plan_file import outputs_of

    odd = set(state or ()) - set(STATES)
    if odd:
        raise UsageError("--state", found=odd.pop(), expected=", ".join(STATES))
    for row in Ledger(url, must_exist=True).rows(None, state, full=False):
        if as_json:
            print_json(row, default=str)
        else:
            what = (row["error"] or {}).get("message") or row["same_as"] or ", ".join(outputs_of(row))
            tell(f"{row['id'][:10]}  {row['state']:<12} {row['source']}: {what}")


@ledger.command()
def show(
    url: Where, job: Annotated[str, typer.Argument(help="Id or the beginning of one, source, or output.")]
) -> None:
    """Everything about one job, with its attempts and its receipt, as JSON."""
    from ggferry.service.records.ledger import Ledger

    print_json(Ledger(url, must_exist=True).job(job), indent=1, default=str)


@ledger.command()
def export(
    url: Where,
    out: Annotated[str, typer.Option("--outfile", "-o", help="Stem: .json and .html are written.")],
    force: Force = False,
) -> None:
    """The report of everything in a ledger, HTML and JSON. Damaged rows are left out and named (exit code 5)."""
    from ggferry.service.records.ledger import Ledger
    from ggferry.service.records.report import migration_lines, write_report

    facts = write_report(out, Ledger(url, must_exist=True), overwrite=force)
    for line in migration_lines(facts, out):
        tell(line)


@ledger.command()
def recheck(
    url: Where,
    sample: Annotated[
        str, typer.Option("--sample", metavar="N%", help="Share of the outputs, the same ones each time.")
    ] = "100%",
    full: Annotated[bool, typer.Option("--full", help="The whole proof against the source, not only digests.")] = False,
    memory: Memory = "4GiB",
    as_json: Json = False,
) -> None:
    """Look at finished outputs again: their bytes against their receipts. Exits 1 when one is not what it was.

    Damaged rows of the ledger are named at the end (exit code 5).
    """
    from ggferry.service.apply.recheck import recheck as again
    from ggferry.service.records.ledger import Ledger
    from ggferry.service.records.plan_file import outputs_of

    bad = 0
    for row, problem in again(Ledger(url, must_exist=True), _percent(sample), full, size_of(memory, "--memory")):
        bad += problem is not None
        outputs = outputs_of(row["entry"])
        if as_json:
            print_json(
                {
                    "id": row["id"],
                    "output": row["output"],
                    "outputs": outputs,
                    "ok": problem is None,
                    "problem": problem,
                }
            )
        else:
            tell(f"{'=' if problem is None else '!'} {', '.join(outputs)}" + (f": {problem}" if problem else ""))
    if bad:
        raise typer.Exit(1)


def _is_declared(each: Option, given: Mapping[str, Any]) -> bool:
    """Return whether the lines of a plan are to state an option; the head states those that it has."""
    return each.in_plan and each.name not in ("outtype", "verify") and bool(given[each.name])


def _plainly(each: Option, value: Any) -> Any:
    return value.lower() if isinstance(each.choices, tuple) and isinstance(value, str) else value


# --- values --------------------------------------------------------------------------------------------------------


def shard_of(text: str | None) -> tuple[int, int]:
    """Parse a share: '2/8' → (1, 8)."""
    if text is None:
        return 0, 1
    share, _, shares = text.partition("/")
    if not (share.isdecimal() and shares.isdecimal() and 1 <= int(share) <= int(shares)):
        raise UsageError("--shard", found=text, expected="I/N with 1 ≤ I ≤ N")
    return int(share) - 1, int(shares)


def _percent(text: str) -> float:
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        value = -1
    if not 0 < value <= 100:
        raise UsageError("--sample", found=text, expected="a percentage")
    return value / 100


def _cores() -> int:
    return len(os.sched_getaffinity(0))
