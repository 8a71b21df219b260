"""The commands that write GGUF files again without converting them: split, merge."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from ggferry.formats.errors import UsageError
from ggferry.service.cli.options import HeadedCommand, print_json, say, takes, tell
from ggferry.service.operations import merge as merging
from ggferry.service.operations import split as splitting
from ggferry.service.operations._rewritten import RewritePlan, Rewritten
from ggferry.service.operations.check_shards import CheckShardsRequest
from ggferry.service.operations.check_shards import check as check_shards
from ggferry.service.operations.merge import MergeCommand
from ggferry.service.operations.split import SplitCommand

if TYPE_CHECKING:
    from ggferry.service.operations._json_forms import CheckedShards, PlannedRewrite

commands = typer.Typer(rich_markup_mode=None)


@commands.command(cls=HeadedCommand)
@takes(SplitCommand)
def split(request: SplitCommand) -> None:
    """Split a file, show the shards that would be written, or compare shards with the file."""
    request = splitting.with_name(request)
    if request.check is not None:
        _check(CheckShardsRequest(request.check, request.path, progress=request.progress), request.as_json)
    elif request.dry_run:
        _show_plan("split", splitting.plan(request), request.as_json)
    else:
        _show_result("split", splitting.run(request), request.as_json)


@commands.command(cls=HeadedCommand)
@takes(MergeCommand)
def merge(request: MergeCommand) -> None:
    """Join files, show what would be written, or compare shards with the whole."""
    request = merging.with_name(request)
    if request.check is not None:
        shard, *more = merging.paths(request)
        if more:
            raise UsageError("one shard is enough: the others are found by its name", found=more[0])
        _check(CheckShardsRequest(shard, request.check, progress=request.progress), request.as_json)
    elif request.dry_run:
        _show_plan("merge", merging.plan(request), request.as_json)
    else:
        _show_result("merge", merging.run(request), request.as_json)


def _show_plan(command: str, plan: RewritePlan, as_json: bool) -> None:
    if as_json:
        planned: PlannedRewrite = {"command": command, "notes": plan.notes}
        if plan.pieces:
            planned["pieces"] = plan.pieces
        else:
            planned["files"] = plan.files
        print_json(planned)
        return
    for path in plan.pieces:
        tell(path)
    for file in plan.files:
        tell(f"{file.path}  {file.tensors} tensors, {file.bytes:,} bytes of tensors")


def _show_result(command: str, done: Rewritten, as_json: bool) -> None:
    if as_json:
        print_json(done.as_dict(command))
        return
    for note in done.notes:
        say(f"note     {note}")
    shards = f" ({done.shards} shards)" if done.shards > 1 else ""
    pieces = f" … ({len(done.sources)} pieces)" if not done.shards else ""
    tell(f"read     {done.sources[0]}{shards}{pieces}")
    more = f" … ({len(done.outputs)} files)" if len(done.outputs) > 1 else ""
    tell(f"wrote    {done.output}{more}: {done.bytes:,} bytes")
    receipt = "; the receipt goes on" if done.receipt_path else ""
    tell(f"proved   {done.tensors} tensors byte for byte, read again{receipt}")


def _check(request: CheckShardsRequest, as_json: bool) -> None:
    found = check_shards(request)
    if as_json:
        checked: CheckedShards = {"verified": True, "shards": found.shards, "tensors": found.tensors}
        print_json(checked)
    else:
        tell(
            f"proved   {found.shards} shards hold what {request.whole} holds: every key, "
            f"{found.tensors} tensors byte for byte"
        )
