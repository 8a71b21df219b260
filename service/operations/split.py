"""Split a GGUF file into shards."""

from __future__ import annotations

import os
from dataclasses import KW_ONLY, replace
from typing import TYPE_CHECKING, Annotated

from ggferry.converters.conversion.options import Kind, option
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
    size_of,
)
from ggferry.service.operations._rewritten import RewritePlan, Rewritten, of_cutting, plan_of_cutting
from ggferry.support.progress import silent
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.converters.rewrite.splitting import Cuts


@dataclass(frozen=True, slots=True)
class SplitRequest:
    """How a file is split."""

    path: Annotated[StrPath, argument("A GGUF file.")]
    out: Annotated[
        StrPath | None,
        declare(Kind.TEXT, "NAME of NAME-00001-of-00003.gguf … (default: the file's own).", "--outfile", "-o",
                metavar="NAME"),
    ] = None
    _: KW_ONLY
    split_max_tensors: Annotated[int, option("split_max_tensors")] = 0
    split_max_size: Annotated[int | str | None, option("split_max_size")] = None
    tensor_first_split: Annotated[bool, option("tensor_first_split")] = True
    force: Force = False
    progress: ReportProgress = silent


@dataclass(frozen=True, slots=True)
class SplitCommand(SplitRequest):
    """Cut a GGUF file into shards, 128 tensors each by default; no tensor is cut."""

    name: Annotated[
        StrPath | None, argument("The same as --outfile, where llama-gguf-split has it.", Kind.TEXT, metavar="OUT")
    ] = None
    _: KW_ONLY
    check: Annotated[
        StrPath | None, declare(Kind.FILE, "Write nothing: prove shards against FILE.", metavar="SHARD")
    ] = None
    dry_run: DryRun = False
    as_json: AsJson = False


def run(request: SplitRequest) -> Rewritten:
    """Cut a GGUF file into shards, as `ggferry split` does: 128 tensors each where no limit is given.

    Returns:
        The shards; together they are the file, byte for byte.

    Raises:
        CorruptError: The file is cut, or contradicts itself.
        GgferryError: As `convert`; then nothing is left.

    Example:
        >>> ggferry.split("model.gguf", split_max_tensors=12).outputs
        ('model-00001-of-00002.gguf', 'model-00002-of-00002.gguf')
    """
    from ggferry.converters.rewrite.splitting import carry_out

    return of_cutting(*carry_out(*_arguments(request), force=request.force, stage=request.progress))


def plan(request: SplitRequest) -> RewritePlan:
    """Return the shards that would be written. Raises as `run`."""
    from ggferry.converters.rewrite.splitting import plan as make_plan

    return plan_of_cutting(make_plan(*_arguments(request)))


def with_name(command: SplitCommand) -> SplitCommand:
    """Return the request whose `out` is the name behind the file. Raises UsageError where both are given."""
    if command.name is None:
        return command
    if command.out is not None:
        raise UsageError("two names to write to", found=f"{command.name}, {command.out}", expected="one")
    return replace(command, out=command.name, name=None)


def _arguments(request: SplitRequest) -> tuple[str, str, str | None, Cuts]:
    from ggferry.converters.rewrite.splitting import Cuts

    size = 0 if request.split_max_size is None else size_of(request.split_max_size, "split_max_size")
    cuts = Cuts(request.split_max_tensors, size, request.tensor_first_split)
    return "split", Named(os.fspath(request.path)), None if request.out is None else os.fspath(request.out), cuts


split = library_function("split", SplitRequest, run)
