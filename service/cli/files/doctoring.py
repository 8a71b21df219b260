"""The command that says what a file is and what can be done with it: doctor."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import typer

from ggferry.formats.errors import UsageError
from ggferry.service.cli.options import HeadedCommand, print_json, takes, tell
from ggferry.service.operations.doctor import DoctorCommand, DoctorRequest, RepairRequest, run, run_repair

if TYPE_CHECKING:
    from ggferry.converters.analysis.doctor import Diagnosis
    from ggferry.service.operations._json_forms import RepairedFile

commands = typer.Typer(rich_markup_mode=None)


@commands.command(cls=HeadedCommand)
@takes(DoctorCommand)
def doctor(request: DoctorCommand) -> int:
    """Print what is known of each file, or repair one."""
    if request.repair:
        return _repair(request)
    if request.out is not None:
        raise UsageError("--outfile is for --repair", found=request.out)
    found = [run(DoctorRequest(file, cache=request.cache)) for file in request.files]
    codes = {each.exit_code for each in found} - {0}
    if request.as_json:
        print_json({"files": [each.as_dict() for each in found]})
    for each in () if request.as_json else found:
        for line in _lines(each):
            tell(line)
    return codes.pop() if len(codes) == 1 else int(bool(codes))


def _lines(found: Diagnosis) -> list[str]:
    """Return a diagnosis for a person."""
    status = {True: "complete", False: "incomplete or damaged", None: "not examined further"}[found.whole]
    lines = [f"{found.path}", f"  format      {found.what}", f"  status      {status}"]
    lines += [f"  note        {finding}" for finding in found.findings]
    for remedy in found.remedies:
        lines.append(f"  suggestion  {remedy.what}" + (f":  {remedy.command}" if remedy.command else ""))
    return lines


def _repair(request: DoctorCommand) -> int:
    out = request.out
    if len(request.files) != 1 or out is None:
        raise UsageError("--repair takes one file and -o OUT", found=f"{len(request.files)} files, -o {out}")
    swapped = run_repair(
        RepairRequest(request.files[0], out, force=request.force, cache=request.cache, progress=request.progress)
    )
    if request.as_json:
        repaired: RepairedFile = {"path": os.fspath(out), "swapped": list(swapped)}
        print_json(repaired)
        return 0
    tell(f"wrote    {out}: {len(swapped)} tensors swapped, everything else byte for byte")
    tell("proved   read again: the swapped tensors hold the source's values, all other bytes are equal")
    return 0
