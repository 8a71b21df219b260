"""The commands that write GGUF files again without converting them: split, merge."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ggferry.formats.errors import UsageError
from ggferry.formats.files.local_files import Named
from ggferry.service.cli.options import HeadedCommand, offers, print_json, say, size_of, tell

commands = typer.Typer(rich_markup_mode=None)


@commands.command(cls=HeadedCommand)
@offers("split")
def split(
    file: Annotated[str, typer.Argument(parser=Named, help="A GGUF file.")],
    outfile: Annotated[
        str | None,
        typer.Option("--outfile", "-o", help="NAME of NAME-00001-of-00003.gguf … (default: the file's own)."),
    ] = None,
    check: Annotated[
        str | None,
        typer.Option("--check", parser=Named, metavar="SHARD", help="Write nothing: prove shards against FILE."),
    ] = None,
    **given: Any,
) -> None:
    """Cut a GGUF file into shards, 128 tensors each where nothing else is asked for; no tensor is cut."""
    if check is not None:
        _check(check, file, given["as_json"])
        return
    from ggferry.converters.rewrite.splitting import Cuts

    size = given["split_max_size"]
    nbytes = size_of(size, "--split-max-size") if size else 0
    cuts = Cuts(given["split_max_tensors"], nbytes, given["tensor_first_split"])
    _cut("split", file, outfile, cuts, given)


@commands.command(cls=HeadedCommand)
@offers("merge")
def merge(
    files: Annotated[list[str], typer.Argument(parser=Named, help="A shard, or a piece; of pieces, or all in order.")],
    outfile: Annotated[str | None, typer.Option("--outfile", "-o", help="The file to write.")] = None,
    check: Annotated[
        str | None,
        typer.Option("--check", parser=Named, metavar="WHOLE", help="Write nothing: prove the shards against WHOLE."),
    ] = None,
    **given: Any,
) -> None:
    """Join the shards of a GGUF model, or the pieces of a file that was cut at any byte (model.gguf.part1of2)."""
    from ggferry.converters.rewrite.pieces import is_piece
    from ggferry.converters.rewrite.splitting import Cuts

    if check is not None:
        _check(_only(files), check, given["as_json"])
    elif len(files) > 1 or is_piece(files[0]):
        _join(files, outfile, given)
    else:
        _cut("merge", files[0], outfile, Cuts(), given)


def _only(files: list[str]) -> str:
    if len(files) > 1:
        raise UsageError("one shard is enough: the others are found by its name", found=files[1])
    return files[0]


def _cut(command: str, file: str, out: str | None, cuts: Any, given: dict[str, Any]) -> None:
    from ggferry.converters.rewrite.splitting import carry_out, plan
    from ggferry.service.cli.progress_bar import progress

    quiet = given["as_json"]
    if given["dry_run"]:
        made = plan(command, file, out, cuts)
        if quiet:
            print_json(made.as_dict())
            return
        for each in made.files:
            tell(f"{each.path}  {len(each.tensors)} tensors, {each.nbytes:,} bytes of tensors")
        return
    made, wrote = carry_out(
        command, file, out, cuts, force=given["force"],
        stage=lambda title, total: progress(title, total, wanted=not quiet),
    )  # fmt: skip
    if quiet:
        print_json({**made.as_dict(), **wrote.as_dict()})
        return
    for note in (*made.notes, *wrote.notes):
        say(f"note     {note}")
    parts = f" ({made.read[1]} shards)" if made.read[1] > 1 else ""
    tell(f"read     {made.read[0]}{parts}")
    _report(wrote)


def _join(files: list[str], out: str | None, given: dict[str, Any]) -> None:
    from ggferry.converters.rewrite.pieces import check_pieces, join, ordered, pieces_of
    from ggferry.service.cli.progress_bar import progress

    quiet = given["as_json"]
    pieces = pieces_of(files[0]) if len(files) == 1 else ordered(files)
    if given["dry_run"]:
        check_pieces(pieces)
        for path in pieces.paths:
            tell(path)
        return
    wrote = join(pieces, out, force=given["force"], stage=lambda title, total: progress(title, total, wanted=not quiet))
    if quiet:
        print_json({"command": "merge", "pieces": list(pieces.paths), **wrote.as_dict()})
        return
    for note in wrote.notes:
        say(f"note     {note}")
    tell(f"read     {pieces.paths[0]} … ({len(pieces.paths)} pieces)")
    _report(wrote)


def _report(wrote: Any) -> None:
    more = f" … ({len(wrote.paths)} files)" if len(wrote.paths) > 1 else ""
    tell(f"wrote    {wrote.paths[0]}{more}: {wrote.nbytes:,} bytes")
    receipt = "; the receipt goes on" if wrote.receipt else ""
    tell(f"proved   {wrote.tensors} tensors byte for byte, read again{receipt}")


def _check(shards: str, whole: str, as_json: bool) -> None:
    from ggferry.converters.rewrite.splitting import check
    from ggferry.service.cli.progress_bar import progress

    count, tensors = check(shards, whole, lambda title, total: progress(title, total, wanted=not as_json))
    if as_json:
        print_json({"verified": True, "shards": count, "tensors": tensors})
    else:
        tell(f"proved   {count} shards hold what {whole} holds: every key, {tensors} tensors byte for byte")
