"""`doctor` and `repair`: what files are, and what can be done with them."""

from __future__ import annotations

import os

from ggferry.converters.analysis.doctor import Diagnosis as Diagnosis
from ggferry.converters.analysis.doctor import examine
from ggferry.converters.analysis.mixed_endian import repair as _repair
from ggferry.service.library.keywords import StrPath
from ggferry.service.sources.local_source import local_source
from ggferry.support.progress import Stage, silent


def doctor(path: StrPath) -> Diagnosis:
    """Say what a file or folder is, whether it is whole, and what can be done with it, as `ggferry doctor` does.

    Args:
        path: A file or a folder of any kind; a path or a URL.

    Returns:
        The diagnosis. What is wrong with the file is not raised.

    Raises:
        GgferryError: A store does not answer.

    Example:
        >>> ggferry.doctor("new.gguf").whole
        True
    """
    with local_source(os.fspath(path), tensors=False) as here:
        return examine(here)


def repair(path: StrPath, out: StrPath, *, force: bool = False, progress: Stage = silent) -> tuple[str, ...]:
    """Write a big-endian GGUF file again with the data of every tensor big-endian, as `ggferry doctor --repair` does.

    Args:
        path: A file whose tensors `doctor` found to be of the other byte order; a path or a URL.
        out: The file to write.
        force: Whether an existing file is replaced.
        progress: As for `convert`.

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
    with local_source(os.fspath(path)) as here:
        swapped = _repair(here, os.fspath(out), force=force, stage=here.staged(progress))
        here.check_unchanged()
    return swapped
