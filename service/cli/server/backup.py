"""`ggferry serve backup` and `restore`: a data folder as one file, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ggferry.service.cli.options import print_json, say

if TYPE_CHECKING:
    from ggferry.service.server.settings import Settings

Archive = Annotated[str, typer.Argument(metavar="FILE", help="The archive, a tar file.")]
Json = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]


def backup(
    context: typer.Context,
    file: Archive,
    ledger_only: Annotated[bool, typer.Option("--ledger-only", help="Leave uploads and outputs out.")] = False,
    with_key: Annotated[
        bool, typer.Option("--with-key", help="Also the key that encrypts secrets in the ledger.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE.")] = False,
    as_json: Json = False,
) -> None:
    """Write the data folder to one file, while the server runs: ledger, secrets, uploads, outputs."""
    from ggferry.service.server.backup import backup as write

    settings: Settings = context.obj
    made = write(settings, file, files=not ledger_only, overwrite=force, with_key=with_key)
    if as_json:
        print_json({"files": len(made["files"]), "bytes": sum(size for size, _ in made["files"].values())})
    else:
        say(f"wrote    {file} · {len(made['files'])} files, each with its SHA-256")


def restore(context: typer.Context, file: Archive, as_json: Json = False) -> None:
    """Restore the data folder, which must be empty or absent, from a backup; each file is compared with its SHA-256."""
    from ggferry.service.server.backup import restore as read

    settings: Settings = context.obj
    made = read(file, settings.data)
    if as_json:
        print_json({"files": len(made["files"]), "created": made["created"], "data": made["data"]})
        return
    say(f"restored {settings.data} · {len(made['files'])} files")
    if made["data"] != settings.data:
        say(f"note     outputs and uploads are known by their path below {made['data']}: serve them from there")
