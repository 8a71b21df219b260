"""The command that says what a file is and what can be done with it: doctor."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ggferry.formats.errors import UsageError
from ggferry.formats.files.local_files import Named
from ggferry.service.cli.options import HeadedCommand, access_of, offers, print_json, tell

commands = typer.Typer(rich_markup_mode=None)


@commands.command(cls=HeadedCommand)
@offers("doctor")
def doctor(
    files: Annotated[list[str], typer.Argument(parser=Named, help="Files or folders; paths or URLs.")],
    repair: Annotated[
        bool, typer.Option("--repair", help="Write a big-endian GGUF again with every tensor in its byte order.")
    ] = False,
    out: Annotated[str | None, typer.Option("--outfile", "-o", help="The file that --repair writes.")] = None,
    **given: Any,
) -> int:
    """Say of each file what it is, whether it is whole, what can be done, and by which command.

    Exits with the code that other commands have for what was found: 0 where every file can be used.
    """
    if repair:
        return _repair(files, out, given)
    if out is not None:
        raise UsageError("--outfile is for --repair", found=out)
    from ggferry.converters.analysis.doctor import examine

    found = []
    for file in files:
        with access_of(file, given, tensors=False) as path:
            found.append(examine(path))
    codes = {each.exit_code for each in found} - {0}
    if given["as_json"]:
        print_json({"files": [each.as_dict() for each in found]})
    for each in () if given["as_json"] else found:
        for line in _lines(each):
            tell(line)
    return codes.pop() if len(codes) == 1 else int(bool(codes))


def _lines(found: Any) -> list[str]:
    """Return a diagnosis for a person."""
    whole = {True: "whole", False: "not whole", None: "not examined further"}[found.whole]
    lines = [f"{found.path}", f"  is       {found.what}", f"  state    {whole}"]
    lines += [f"  note     {finding}" for finding in found.findings]
    for remedy in found.remedies:
        lines.append(f"  do       {remedy.what}" + (f":  {remedy.command}" if remedy.command else ""))
    return lines


def _repair(files: list[str], out: str | None, given: dict[str, Any]) -> int:
    from ggferry.converters.analysis.mixed_endian import repair
    from ggferry.service.cli.progress_bar import progress

    if len(files) != 1 or out is None:
        raise UsageError("--repair takes one file and -o OUT", found=f"{len(files)} files, -o {out}")
    quiet = given["as_json"]
    with access_of(files[0], given) as path:
        stage = path.staged(lambda title, total: progress(title, total, wanted=not quiet))
        swapped = repair(path, out, force=given["force"], stage=stage)
        path.check_unchanged()
    if quiet:
        print_json({"path": out, "swapped": list(swapped)})
        return 0
    tell(f"wrote    {out}: {len(swapped)} tensors swapped, everything else byte for byte")
    tell("proved   read again: the swapped tensors hold the source's values, all other bytes are equal")
    return 0
