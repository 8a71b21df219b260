"""The work of `ggferry imatrix`: compute a matrix, or show what one says."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from ggferry.service.cli.options import print_json, say, tell
from ggferry.service.operation import open_source
from ggferry.service.operations.imatrix import ImatrixCommand, run
from ggferry.support.progress import Phase, Progress

if TYPE_CHECKING:
    from ggferry.converters.forward.imatrix_files import ExpertTokens
    from ggferry.service.operations._json_forms import WrittenImatrix


def compute(request: ImatrixCommand) -> None:
    """Write the matrix and say how much is in it."""
    from ggferry.service.cli.progress_bar import progress

    def stage(title: Phase, total: int) -> AbstractContextManager[Progress]:
        return progress("tokens", total, enabled=not request.as_json, counts=True)

    done = run(replace(request, progress=stage))
    for note in done.notes:
        say(f"note     {note}")
    if request.as_json:
        written: WrittenImatrix = {
            "path": done.path,
            "entries": done.entries,
            "chunks": done.chunks,
            "chunk_size": request.chunk_size,
            "experts": done.experts,
        }
        print_json(written)
    else:
        if done.experts:
            tell(_coverage(done.experts))
        tell(f"{done.path}: {done.entries} weights, {done.chunks} chunks of {request.chunk_size} tokens")


def _coverage(experts: Sequence[ExpertTokens]) -> str:
    """Return how the tokens are spread over the experts."""
    counts = [count for each in experts for count in each.tokens]
    poorest = min(experts, key=lambda each: min(each.tokens))
    least = min(poorest.tokens)
    return (
        f"experts: {len(counts) - counts.count(0)} of {len(counts)} in {len(experts)} blocks saw tokens, "
        f"{sum(counts) / len(counts):.0f} in the mean, the fewest {least} "
        f"(expert {poorest.tokens.index(least)} of {poorest.name.partition('.ffn')[0]})"
    )


def statistics(request: ImatrixCommand) -> None:
    """Print what an importance matrix says."""
    from ggferry.converters.analysis.imatrix_statistics import describe, lines
    from ggferry.formats.imatrix.read import read_imatrix
    from ggferry.formats.json_files.kinds import strict

    file = os.fspath(request.path)
    with open_source(request.path, request.cache) as path, read_imatrix(path) as matrix:
        found = describe(matrix)
        if request.as_json:
            print_json(strict({"path": file, **asdict(found)}))
            return
        for line in lines(found, file):
            tell(line)
