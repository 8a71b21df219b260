"""The command that edits GGUF files: edit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from ggferry.formats.errors import UsageError
from ggferry.service.cli.options import HeadedCommand, print_json, say, takes, tell
from ggferry.service.operations import edit as operation
from ggferry.service.operations.edit import EditCommand, Edited, EditPlan

if TYPE_CHECKING:
    from ggferry.service.operations._json_forms import EditedFile, PlannedEdit, RecoveredEdit

commands = typer.Typer(rich_markup_mode=None)


@commands.command(cls=HeadedCommand)
@takes(EditCommand)
def edit(request: EditCommand) -> None:
    """Edit as asked, show what would be done, or finish an edit that was broken off."""
    if request.recover:
        _recover(str(request.path), request.as_json)
        return
    if operation.changes_nothing(request):
        raise UsageError("nothing to do", hint="--set, --remove, --set-file, --chat-template, …")
    if request.dry_run:
        _show_plan(operation.plan(request), request.as_json)
        return
    if request.in_place == (request.out is not None):
        raise UsageError(
            "choose an output", hint="--in-place or --outfile FILE, one of them; --dry-run shows what would happen"
        )
    _show_result(operation.run(request), request.as_json)


def _show_result(done: Edited, as_json: bool) -> None:
    if as_json:
        edited: EditedFile = {
            "keys": done.keys,
            "tensors": done.tensors,
            "in_place": done.in_place,
            "paths": done.paths,
            "receipt": done.receipt_path,
            "notes": done.notes,
        }
        print_json(edited)
        return
    for note in done.notes:
        say(f"note     {note}")
    for line in done.lines:
        tell(line)
    if done.paths:
        more = f" … ({len(done.paths)} files)" if len(done.paths) > 1 else ""
        how = "in place, no tensor data moved" if done.in_place else "written anew"
        tell(f"wrote    {done.paths[0]}{more}: {how}")
        tell(f"proved   {done.proof}{'; the receipt goes on' if done.receipt_path else ''}")


def _show_plan(plan: EditPlan, as_json: bool) -> None:
    if as_json:
        planned: PlannedEdit = {
            "keys": plan.keys,
            "tensors": plan.tensors,
            "fits_in_place": plan.fits_in_place,
            "notes": plan.notes,
        }
        print_json(planned)
        return
    for note in plan.notes:
        say(f"note     {note}")
    for line in plan.lines:
        tell(line)
    if not plan.changes_anything:
        tell("nothing changes")
    elif plan.fits_in_place:
        tell("fits: no tensor data would move")
    else:
        tell("does not fit: the file would be written anew")


def _recover(file: str, as_json: bool) -> None:
    done = operation.recover(file)
    words = {
        "finished": "finished the edit that was broken off",
        "undone": "had not begun: the file is as it was",
        None: "nothing to recover",
    }
    if as_json:
        recovered: RecoveredEdit = {"path": file, "recovered": done}
        print_json(recovered)
    else:
        tell(f"{file}: {words[done]}")
