"""The command that sends files to the Hugging Face Hub: publish."""

from __future__ import annotations

import typer

from ggferry.service.cli.options import HeadedCommand, print_json, say, takes, tell
from ggferry.service.operations.publish import PublishCommand, run

commands = typer.Typer(rich_markup_mode=None)


@commands.command(cls=HeadedCommand)
@takes(PublishCommand)
def publish(request: PublishCommand) -> None:
    """Publish, and print the files and the commit; of a dry run, the card."""
    found = run(request)
    if request.as_json:
        print_json(found)
        return
    for note in found.notes:
        say(f"note     {note}")
    if request.dry_run:
        for line in found.card.rstrip("\n").split("\n"):
            tell(line)
        tell("")
    for file in found.files:
        tell(f"{'would send' if request.dry_run else 'sent'}  {file.name}  {file.bytes:,} bytes  sha256 {file.sha256}")
    if found.commit is not None:
        tell(f"published {found.pull_request or found.url}")
