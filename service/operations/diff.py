"""Compare two models: keys, tensors, and how far values differ."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, Annotated

from ggferry.converters.conversion.options import Kind
from ggferry.formats.files.sources import known_by
from ggferry.service.operation import (
    AsJson,
    Cache,
    FollowRedirects,
    ReportProgress,
    StrPath,
    argument,
    declare,
    library_function,
    open_source,
)
from ggferry.support.progress import Phase, silent
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.converters.analysis.differences.diff import Difference


@dataclass(frozen=True, slots=True)
class DiffRequest:
    """Which models are compared."""

    first: Annotated[StrPath, argument("A model of any container; a path or a URL.", metavar="FIRST")]
    second: Annotated[
        StrPath,
        argument("The model to compare it with; a path or a URL.", metavar="SECOND",
                 python="Another one. Of another container, it is compared by the roles of tensors, through their "
                 "layouts."),
    ]
    _: KW_ONLY
    data: Annotated[
        bool,
        declare(Kind.FLAG, "Compare headers only.", "--no-data", negated=True,
                python="Whether to compare tensor data."),
    ] = True
    cache: Cache = None
    progress: ReportProgress = silent


@dataclass(frozen=True, slots=True)
class DiffCommand(DiffRequest):
    """Show how two models differ: keys, tensors, and how far their values lie apart; exit code 1 where they do."""

    _: KW_ONLY
    follow_redirects: FollowRedirects = False
    as_json: AsJson = False


@dataclass(frozen=True, slots=True)
class DiffResult:
    """How two models differ.

    Attributes:
        first: The first model.
        second: The second one.
        difference: The keys and tensors that differ.
        by_roles: Whether they were compared by the roles of tensors, as their containers name tensors differently.
    """

    first: str
    second: str
    difference: Difference
    by_roles: bool


def compare(request: DiffRequest) -> DiffResult:
    """Return how two models differ, and how they were compared. Raises as `run`."""
    from ggferry.converters.analysis.differences.diff_by_role import difference_of
    from ggferry.converters.model_graph.open_checkpoint import open_checkpoint

    with open_source(request.first, request.cache) as first, open_source(request.second, request.cache) as second:
        a, b = open_checkpoint(first), open_checkpoint(second)
        try:
            total = sum(ref.nbytes for side in (a, b) for ref in side.tensors.values())
            stage = second.staged(first.staged(request.progress))
            with stage(Phase.CHECKING, total) as progress:
                found, by_roles = difference_of(a, b, data=request.data, progress=progress)
            first.check_unchanged()
            second.check_unchanged()
            return DiffResult(known_by(a.path), known_by(b.path), found, by_roles)
        finally:
            a.close()
            b.close()


def run(request: DiffRequest) -> Difference:
    """Return how two models differ: keys, tensors, and by how much values lie apart, as `ggferry diff` does.

    Returns:
        The keys and tensors that differ, sorted by error; `differs` says whether there are any.

    Raises:
        GgferryError: As `inspect`.

    Example:
        >>> ggferry.diff("model.gguf", "model.gguf").differs
        False
    """
    return compare(request).difference


diff = library_function("diff", DiffRequest, run)
