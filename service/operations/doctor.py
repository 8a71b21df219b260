"""Say what files are and what can be done with them; repair the byte order of tensors."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, Annotated

from ggferry.converters.conversion.options import Kind
from ggferry.service.operation import (
    AsJson,
    Cache,
    FollowRedirects,
    Force,
    ReportProgress,
    StrPath,
    argument,
    declare,
    library_function,
    open_source,
)
from ggferry.support.progress import silent
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.converters.analysis.doctor import Diagnosis


@dataclass(frozen=True, slots=True)
class DoctorRequest:
    """What is examined."""

    path: Annotated[StrPath, argument("A file or a folder of any kind; a path or a URL.")]
    _: KW_ONLY
    cache: Cache = None


@dataclass(frozen=True, slots=True)
class RepairRequest:
    """What is repaired."""

    path: Annotated[
        StrPath,
        argument("A file whose tensors `doctor` found to be of the other byte order; a path or a URL."),
    ]
    out: Annotated[StrPath, declare(Kind.TEXT, "The file to write.")]
    _: KW_ONLY
    force: Force = False
    cache: Cache = None
    progress: ReportProgress = silent


@dataclass(frozen=True, slots=True)
class DoctorCommand:
    """Say of each file what it is, whether it is whole, what can be done, and by which command.

    Exits with the code that other commands have for what was found: 0 where every file can be used.
    """

    files: Annotated[Sequence[StrPath], argument("Files or folders; paths or URLs.", Kind.FILES)]
    _: KW_ONLY
    repair: Annotated[
        bool, declare(Kind.FLAG, "Write a big-endian GGUF again with every tensor in its byte order.")
    ] = False
    out: Annotated[
        StrPath | None, declare(Kind.TEXT, "The file that --repair writes.", "--outfile", "-o", metavar="FILE")
    ] = None
    force: Force = False
    cache: Cache = None
    follow_redirects: FollowRedirects = False
    as_json: AsJson = False
    progress: ReportProgress = silent


def run(request: DoctorRequest) -> Diagnosis:
    """Say what a file or folder is, whether it is whole, and what can be done with it, as `ggferry doctor` does.

    Returns:
        The diagnosis. What is wrong with the file is not raised.

    Raises:
        GgferryError: A store does not answer.

    Example:
        >>> ggferry.doctor("new.gguf").whole
        True
    """
    from ggferry.converters.analysis.doctor import examine

    with open_source(request.path, request.cache, tensors=False) as path:
        return examine(path)


def run_repair(request: RepairRequest) -> tuple[str, ...]:
    """Write a big-endian GGUF file again with the data of every tensor big-endian, as `ggferry doctor --repair` does.

    Returns:
        The names of the tensors whose bytes were swapped.

    Raises:
        RefusedError: There is nothing to repair, or the values do not tell.
        GgferryError: As `convert`; then nothing is left.

    Example:
        >>> ggferry.repair("new.gguf", "repaired.gguf")
        Traceback (most recent call last):
        ggferry.formats.errors.RefusedError: new.gguf: nothing to repair: only big-endian GGUF files are
    """
    from ggferry.converters.analysis.mixed_endian import repair as carry_out

    with open_source(request.path, request.cache) as path:
        stage = path.staged(request.progress)
        swapped = carry_out(path, os.fspath(request.out), force=request.force, stage=stage)
        path.check_unchanged()
    return swapped


doctor = library_function("doctor", DoctorRequest, run)
repair = library_function("repair", RepairRequest, run_repair)
