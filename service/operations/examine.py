"""Judge one file by itself: `ggferry verify FILE`."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, Annotated

from ggferry.service.operation import Cache, ReportProgress, StrPath, argument, library_function, open_source
from ggferry.support.progress import silent
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.converters.analysis.validate import Report


@dataclass(frozen=True, slots=True)
class ExamineRequest:
    """Which file is judged."""

    path: Annotated[StrPath, argument("A model of any container; a path or a URL.")]
    _: KW_ONLY
    data: Annotated[bool, "Whether to look at tensor data for NaN, infinities and constants."] = True
    cache: Cache = None
    progress: ReportProgress = silent


def run(request: ExamineRequest) -> Report:
    """Judge a file by itself, as `ggferry verify FILE` does.

    Returns:
        What was found, and which programs load the file; `sound` says whether there is no fault.

    Raises:
        CorruptError: The structure is broken.
        GgferryError: As `inspect`.

    Example:
        >>> ggferry.examine("model.gguf").sound
        True
    """
    from ggferry.converters.analysis.validate import examine as carry_out

    with open_source(request.path, request.cache) as path:
        report = carry_out(path, data=request.data, stage=path.staged(request.progress))
        path.check_unchanged()
    return report


examine = library_function("examine", ExamineRequest, run)
