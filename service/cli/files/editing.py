"""The command that edits GGUF files: edit."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ggferry.formats.errors import UsageError
from ggferry.formats.files.local_files import Named
from ggferry.service.cli.options import HeadedCommand, offers, print_json, say, tell

commands = typer.Typer(rich_markup_mode=None)

Texts = list[str] | None


@commands.command(cls=HeadedCommand)
@offers("edit")
def edit(
    file: Annotated[str, typer.Argument(parser=Named, help="A GGUF file, or a shard of one.")],
    set_: Annotated[
        Texts,
        typer.Option("--set", metavar="KEY=VALUE[:TYPE]",
                     help="Set a key, or one item of an array: KEY[3]=VALUE; repeatable."),
    ] = None,
    remove: Annotated[
        Texts, typer.Option("--remove", metavar="KEY", help="Remove a key, or all that match a pattern; repeatable.")
    ] = None,
    set_file: Annotated[
        Texts,
        typer.Option("--set-file", metavar="KEY=PATH[:TYPE]", help="Set a key to the text of a file; repeatable."),
    ] = None,
    chat_template: Annotated[
        str | None,
        typer.Option("--chat-template", metavar="FILE", help="A template, or a JSON file with one or several."),
    ] = None,
    special_token: Annotated[
        Texts,
        typer.Option("--special-token", metavar="ROLE=ID|TEXT", help="eos=2, eos='</s>'; repeatable."),
    ] = None,
    rename_tensor: Annotated[
        Texts, typer.Option("--rename-tensor", metavar="OLD=NEW", help="Rename a tensor; repeatable.")
    ] = None,
    outfile: Annotated[str | None, typer.Option("--outfile", "-o", help="The file to write.")] = None,
    in_place: Annotated[bool, typer.Option("--in-place", help="Change FILE itself.")] = False,
    allow_unknown_keys: Annotated[
        bool, typer.Option("--allow-unknown-keys", help="Set keys that look like a misspelt standard one.")
    ] = False,
    allow_broken: Annotated[
        bool, typer.Option("--allow-broken", help="Write a model that is no longer understood.")
    ] = False,
    recover: Annotated[
        bool, typer.Option("--recover", help="Finish an edit in place that was broken off, and do nothing else.")
    ] = False,
    **given: Any,
) -> None:  # fmt: skip
    """Change keys and names of tensors: no tensor data moves where the header has room for it."""
    from ggferry.converters.rewrite.changes import EditRequest
    from ggferry.converters.rewrite.editing import edit as run
    from ggferry.service.cli.progress_bar import progress

    if recover:
        _recover(file, given["as_json"])
        return
    asked = EditRequest(
        set_ or (), set_file or (), remove or (), chat_template, special_token or (), rename_tensor or (),
        allow_unknown_keys,
    )  # fmt: skip
    if asked == EditRequest(unknown_keys=allow_unknown_keys):
        raise UsageError("nothing to do", hint="--set, --remove, --set-file, --chat-template, …")
    if given["dry_run"]:
        _show(file, asked, allow_broken, given["as_json"])
        return
    if in_place == (outfile is not None):
        raise UsageError(
            "choose an output: --in-place or --outfile FILE",
            hint="--in-place or --outfile FILE, one of them; --dry-run shows what would happen",
        )
    quiet = given["as_json"]
    done = run(
        file, asked, outfile, force=given["force"], broken=allow_broken,
        stage=lambda title, total: progress(title, total, wanted=not quiet),
    )  # fmt: skip
    if quiet:
        print_json({**done.edit.as_dict(), "in_place": done.in_place, "paths": list(done.paths),
                    "receipt": done.receipt, "notes": list(done.notes)})  # fmt: skip
        return
    for note in done.notes:
        say(f"note     {note}")
    for line in done.edit.changes.lines:
        tell(line)
    if done.paths:
        more = f" … ({len(done.paths)} files)" if len(done.paths) > 1 else ""
        how = "in place, no tensor data moved" if done.in_place else "written anew"
        tell(f"wrote    {done.paths[0]}{more}: {how}")
        tell(f"proved   {done.proof}{'; the receipt goes on' if done.receipt else ''}")


def _show(file: str, asked: Any, broken: bool, quiet: bool) -> None:
    from ggferry.converters.rewrite.editing import plan_edit
    from ggferry.converters.rewrite.parts import close, parse_parts

    parts = parse_parts(file)
    try:
        made = plan_edit(parts, asked, broken=broken)
    finally:
        close(parts)
    room = all(made.headers[number] is not None for number in made.changed) and len(made.changed) < 2
    if quiet:
        print_json({**made.as_dict(), "fits_in_place": room, "notes": list(made.notes)})
        return
    for note in made.notes:
        say(f"note     {note}")
    for line in made.changes.lines:
        tell(line)
    tell("nothing changes" if not made.changed else
         "fits: no tensor data would move" if room else "does not fit: the file would be written anew")  # fmt: skip


def _recover(file: str, quiet: bool) -> None:
    from ggferry.converters.rewrite.editing import finish

    done = finish(file)
    words = {"finished": "finished the edit that was broken off", "undone": "had not begun: the file is as it was",
             None: "nothing to recover"}  # fmt: skip
    if quiet:
        print_json({"path": file, "recovered": done})
    else:
        tell(f"{file}: {words[done]}")
