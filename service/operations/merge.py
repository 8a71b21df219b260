"""Join the shards of a GGUF model, the pieces of a file, or a decoder and the blocks that predict further tokens."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, replace
from typing import TYPE_CHECKING, Annotated

from ggferry.converters.conversion.options import Kind
from ggferry.formats.errors import UsageError
from ggferry.formats.files.local_files import Named
from ggferry.service.operation import (
    AsJson,
    DryRun,
    Force,
    ReportProgress,
    StrPath,
    argument,
    declare,
    library_function,
)
from ggferry.service.operations._rewritten import RewritePlan, Rewritten, of_cutting, plan_of_cutting
from ggferry.support.progress import silent
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.converters.rewrite.pieces import Pieces


@dataclass(frozen=True, slots=True)
class MergeRequest:
    """What is joined."""

    path: Annotated[
        StrPath | Sequence[StrPath],
        argument("A shard; or a piece of a cut file, or all its pieces in order; or a model without MTP layers and the "
                 "file of these. Behind a single one: the file to write.", Kind.FILES,
                 python="A shard, or a piece such as 'model.gguf.part1of2': the others are found by its name. Or all "
                 "pieces, in order. Or a model without blocks that predict further tokens, and the file of these."),
    ]
    out: Annotated[
        StrPath | None,
        declare(Kind.TEXT, "The file to write.", "--outfile", "-o", metavar="FILE",
                python="The file to write; None: the name without what makes it a shard or a piece."),
    ] = None
    _: KW_ONLY
    force: Force = False
    progress: ReportProgress = silent


@dataclass(frozen=True, slots=True)
class MergeCommand(MergeRequest):
    """Join the shards of a GGUF model, the pieces of a cut file, or a model and the file of its MTP layers."""

    _: KW_ONLY
    check: Annotated[
        StrPath | None, declare(Kind.FILE, "Write nothing: prove the shards against WHOLE.", metavar="WHOLE")
    ] = None
    dry_run: DryRun = False
    as_json: AsJson = False


def run(request: MergeRequest) -> Rewritten:
    """Join the shards of a GGUF model, or the pieces of a file that was cut at any byte, as `ggferry merge` does.

    Returns:
        The whole file.

    Raises:
        NotFoundError: A shard or a piece is missing.
        CorruptError: What is there is cut, or does not belong together.
        GgferryError: As `convert`; then nothing is left.

    Example:
        >>> ggferry.merge("model-00001-of-00002.gguf", "whole.gguf").output
        'whole.gguf'
    """
    from ggferry.converters.rewrite.pieces import join
    from ggferry.converters.rewrite.splitting import carry_out

    if (files := _model_and_blocks(request)) is not None:
        from ggferry.converters.rewrite.next_tokens import graft

        cutting, joined = graft(*files, force=request.force, stage=request.progress)
        assert joined is not None
        return of_cutting(cutting, joined)
    pieces, out = _pieces(request), None if request.out is None else os.fspath(request.out)
    if pieces is None:
        return of_cutting(
            *carry_out("merge", paths(request)[0], out, force=request.force, stage=request.progress)
        )
    wrote = join(pieces, out, force=request.force, stage=request.progress)
    return Rewritten(
        wrote.paths[0], wrote.paths, wrote.receipt, wrote.notes, tuple(pieces.paths), 0, (), wrote.nbytes, wrote.tensors
    )


def plan(request: MergeRequest) -> RewritePlan:
    """Return the file that would be written of shards, or the paths of the pieces that would be joined.

    Raises as `run`.
    """
    from ggferry.converters.rewrite.pieces import check_pieces
    from ggferry.converters.rewrite.splitting import plan as make_plan

    if (files := _model_and_blocks(request)) is not None:
        from ggferry.converters.rewrite.next_tokens import graft

        return plan_of_cutting(graft(*files, dry=True)[0])
    pieces = _pieces(request)
    if pieces is None:
        return plan_of_cutting(
            make_plan("merge", paths(request)[0], None if request.out is None else os.fspath(request.out))
        )
    check_pieces(pieces)
    return RewritePlan((), tuple(pieces.paths), ())


def with_name(command: MergeCommand) -> MergeCommand:
    """Return the request whose `out` is the last of two names where that is no shard and no piece.

    That is llama-gguf-split's order: the first shard, then the file to write.
    """
    from ggferry.converters.rewrite.pieces import is_piece
    from ggferry.formats.gguf.shards import shard_of

    named = paths(command)
    parts = [
        shard_of(os.path.basename(path)) is not None or (os.path.lexists(path) and is_piece(path)) for path in named
    ]
    if command.out is not None or parts != [True, False]:
        return command
    return replace(command, path=named[0], out=str(named[1]))


def paths(request: MergeRequest) -> list[Named]:
    """Return the paths that a request names."""
    named = [request.path] if isinstance(request.path, str | os.PathLike) else request.path
    if not named:
        raise UsageError("nothing to merge", expected="a shard, or a piece")
    return [each if isinstance(each, Named) else Named(os.fspath(each)) for each in named]


def _model_and_blocks(request: MergeRequest) -> tuple[str, str, str] | None:
    """Return a model, the file of blocks that predict further tokens and the file to write; None for anything else."""
    from ggferry.converters.rewrite.next_tokens import is_graft

    named = paths(request)
    if not is_graft(named):
        return None
    if request.out is None:
        raise UsageError("a model and its MTP layers: no output name", hint="--outfile FILE")
    return named[0], named[1], os.fspath(request.out)


def _pieces(request: MergeRequest) -> Pieces | None:
    """Return the pieces of a file; None where shards are named."""
    from ggferry.converters.rewrite.pieces import is_piece, ordered, pieces_of

    named = paths(request)
    if len(named) > 1:
        return ordered(named)
    return pieces_of(named[0]) if is_piece(named[0]) else None


merge = library_function("merge", MergeRequest, run)
