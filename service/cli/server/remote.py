"""`ggferry remote`: the client of a server that `ggferry serve` started. Exit codes are those of the local commands."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ggferry.formats.errors import UsageError
from ggferry.formats.files.local_files import Named, read_text
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.service.cli.options import PlainCommand, PlainGroup, print_json, say, tell

if TYPE_CHECKING:
    from ggferry.service.client.client import Client

commands = typer.Typer(rich_markup_mode=None)
remote = typer.Typer(cls=PlainGroup, help="Client for a ggferry server.", no_args_is_help=True, rich_markup_mode=None)
commands.add_typer(remote, name="remote")

Json = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]
Jobs = Annotated[list[str], typer.Argument(metavar="JOB…", help="Ids, or the beginnings of some.")]
FAILED = 1


@remote.callback()
def reach(
    context: typer.Context,
    server: Annotated[str | None, typer.Option("--server", metavar="URL", help="Or set GGFERRY_SERVER.")] = None,
    token_file: Annotated[
        str | None, typer.Option("--token-file", metavar="FILE", help="A file with the token; or GGFERRY_TOKEN.")
    ] = None,
) -> None:
    """Say which server, and who asks."""
    context.obj = (server, token_file)


def _client(context: typer.Context) -> Client:
    from ggferry.service.client.client import Client

    server, token_file = context.obj
    url = server or os.environ.get("GGFERRY_SERVER")
    if not url:
        raise UsageError("no server", hint="ggferry remote --server URL, or GGFERRY_SERVER")
    return Client(url, None if token_file is None else read_text(Named(token_file)).strip())


@remote.command(cls=PlainCommand)
def submit(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="A file or folder, which is uploaded; server:PATH, a URL, or upload:ID."),
    ],
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            "-O",
            metavar="NAME=VALUE",
            help="An option of the conversion, such as outtype=q8_0; repeatable.",
        ),
    ] = None,
    wait_too: Annotated[bool, typer.Option("--wait", help="Wait; exit as the conversion does.")] = False,
    as_json: Json = False,
) -> None:
    """Submit a model for conversion, and print the ids of its jobs."""
    client = _client(context)
    jobs = client.submit(source, **_options(option or ()))
    if not wait_too:
        _print_jobs(jobs, as_json)
        return
    _end(client.wait(jobs, see=_see(as_json)), as_json)


@remote.command(cls=PlainCommand)
def status(
    context: typer.Context,
    jobs: Annotated[
        list[str] | None, typer.Argument(metavar="[JOB…]", help="Ids; without one, the number of jobs in each state.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show jobs, or how many there are in each state."""
    client = _client(context)
    if not jobs:
        found = client.totals()
        if as_json:
            print_json(found)
        else:
            for state, count in found["states"].items():
                tell(f"{state:<12} {count:>8}")
        return
    for each in jobs:
        _print(client.job(each), as_json)


@remote.command(cls=PlainCommand)
def wait(
    context: typer.Context,
    jobs: Jobs,
    timeout: Annotated[float | None, typer.Option("--timeout", min=0, help="Seconds; then exit code 7.")] = None,
    as_json: Json = False,
) -> None:
    """Wait until jobs have ended; exits as a local conversion would have."""
    client = _client(context)
    whole = [client.job(each)["id"] for each in jobs]
    _end(client.wait(whole, seconds=timeout, see=_see(as_json)), as_json)


@remote.command(cls=PlainCommand)
def fetch(
    context: typer.Context,
    job: Annotated[str, typer.Argument(metavar="JOB", help="Id, or the beginning of one.")],
    out: Annotated[str, typer.Option("--outdir", "-o", metavar="DIR", help="Folder for the files.")] = ".",
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
    as_json: Json = False,
) -> None:
    """Fetch what a job made; the sha256 of each file is compared with the receipt."""
    client = _client(context)
    found = client.fetch(client.job(job)["id"], out, force=force)
    for each in found:
        if as_json:
            print_json({"path": each.path, "bytes": each.bytes, "sha256": each.sha256})
        else:
            tell(f"{each.path}: {each.bytes:,} bytes, sha256 {each.sha256}")


@remote.command(cls=PlainCommand, name="list")
def list_models(
    context: typer.Context,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[WORD…]", help="Only models whose paths have these words.")
    ] = None,
    state: Annotated[
        list[str] | None, typer.Option("--state", metavar="STATE", help="Only this state; repeatable.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the archive: id, state, who asked for it, source."""
    for each in _client(context).models(q=" ".join(words or ()), state=list(state or ())):
        if as_json:
            print_json(each)
        else:
            tell(f"{each['id'][:10]}  {each['state']:<12} {each['asked_by'] or '–':<12} {each['source']}")


@remote.command(cls=PlainCommand)
def cancel(context: typer.Context, jobs: Jobs, as_json: Json = False) -> None:
    """End jobs; nothing of them is published."""
    client = _client(context)
    for each in jobs:
        _print(client.cancel(client.job(each)["id"]), as_json)


@remote.command(cls=PlainCommand)
def retry(context: typer.Context, jobs: Jobs, as_json: Json = False) -> None:
    """Queue jobs again that failed, were cancelled or have no files any more."""
    client = _client(context)
    for each in jobs:
        _print(client.retry(client.job(each)["id"]), as_json)


@remote.command(cls=PlainCommand)
def delete(context: typer.Context, jobs: Jobs, as_json: Json = False) -> None:
    """Remove jobs that have ended, with their files."""
    client = _client(context)
    for each in jobs:
        whole = client.job(each)["id"]
        client.delete(whole)
        if as_json:
            print_json({"deleted": whole})
        else:
            say(f"{whole[:10]}  deleted")


@remote.command(cls=PlainCommand)
def uploads(context: typer.Context, as_json: Json = False) -> None:
    """List this token's uploads: what names them in `submit`, state, bytes, name."""
    for each in _client(context).uploads():
        if as_json:
            print_json(each)
        else:
            tell(f"{each['source']}  {each['state']:<10} {each['bytes']:>15,} {each['name']}")


def _options(given: Sequence[str]) -> JSONObject:
    """Return options from NAME=VALUE; a value that is JSON is taken as that. Raises UsageError."""
    found: JSONObject = {}
    for each in given:
        name, sign, value = each.partition("=")
        if not sign or not name:
            raise UsageError("--option", found=each, expected="NAME=VALUE")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def _print_jobs(jobs: Sequence[str], as_json: bool) -> None:
    if as_json:
        print_json({"jobs": list(jobs)})
    else:
        for job in jobs:
            tell(job)


def _print(job: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(job)
        return
    what = (job["error"] or {}).get("message") or ", ".join(job.get("outputs") or ()) or job.get("output") or ""
    tell(f"{job['id'][:10]}  {job['state']:<12} {job['source']}" + (f": {what}" if what else ""))


def _see(as_json: bool) -> Any:
    from ggferry.service.client.client import ENDED

    def see(job: Mapping[str, Any]) -> None:
        progress = job.get("progress") or {}
        done, total = progress.get("done", 0), progress.get("total", 0)
        part = f" {100 * done // total}%" if total else ""
        if not as_json and job["state"] not in ENDED:  # how it ended is what the command prints
            say(f"{job['id'][:10]}  {job['state']}{part}")

    return see


def _end(jobs: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    """Print how jobs ended, and exit as the first that failed would have locally."""
    for each in jobs:
        _print(each, as_json)
    bad = [each for each in jobs if each["state"] != "done" and not _is_fine(each)]
    if not bad:
        return
    record = bad[0]["error"] or {}
    code = record.get("exit_code")
    raise typer.Exit(code if isinstance(code, int) and len(jobs) == 1 else FAILED)


def _is_fine(job: Mapping[str, Any]) -> bool:
    """Return whether a job was skipped because nothing was to be done: the same content is done already."""
    planned = (job["error"] or {}).get("class") in ("skip", "duplicate", "other")
    return bool(job["state"] == "skipped" and (job.get("same_as") or planned))
