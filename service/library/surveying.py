"""`hashes`, `diff` and `examine`: all of a model looked at."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ggferry.service.library.keywords import StrPath
from ggferry.service.sources.local_source import local_source
from ggferry.support.progress import Phase, Stage, silent

if TYPE_CHECKING:
    from ggferry.converters.analysis.differences.diff import Difference
    from ggferry.converters.analysis.validate import Report


def hashes(path: StrPath, algorithm: str = "sha256", *, progress: Stage = silent) -> dict[str | None, str]:
    """Digest every tensor of a model, and all together, as `ggferry hash` does.

    Args:
        path: A model of any container.
        algorithm: 'sha256', 'blake3', 'sha1', 'xxh64' or 'uuid'.
        progress: As for `convert`.

    Returns:
        Tensor → digest; under None the digest of all, in the order of the file. Metadata, alignment, byte order and
        shards make no difference.

    Raises:
        UsageError: There is no such digest.
        GgferryError: As `inspect`.

    Example:
        >>> ggferry.hashes("model.gguf")["output_norm.weight"][:8]
        '53a4d0a0'
    """
    from ggferry.converters.analysis.differences.hashes import digests
    from ggferry.converters.model_graph.open_checkpoint import open_checkpoint

    with local_source(os.fspath(path)) as here:
        checkpoint = open_checkpoint(here)
        try:
            total = sum(ref.nbytes for ref in checkpoint.tensors.values())
            with progress(Phase.CHECKING, total) as done:
                return {each.tensor: each.hex for each in digests(checkpoint, (algorithm,), progress=done)}
        finally:
            checkpoint.close()


def diff(first: StrPath, second: StrPath, *, data: bool = True, progress: Stage = silent) -> Difference:
    """Return how two models differ: keys, tensors, and by how much values lie apart, as `ggferry diff` does.

    Args:
        first: A model of any container.
        second: Another one. Of another container, it is compared by the roles of tensors, through their layouts.
        data: Whether to compare tensor data.
        progress: As for `convert`.

    Returns:
        The keys and tensors that differ, sorted by error; `differs` says whether there are any.

    Raises:
        GgferryError: As `inspect`.

    Example:
        >>> ggferry.diff("model.gguf", "model.gguf").differs
        False
    """
    from ggferry.converters.analysis.differences.diff_by_role import difference_of
    from ggferry.converters.model_graph.open_checkpoint import open_checkpoint

    with local_source(os.fspath(first)) as one, local_source(os.fspath(second)) as other:
        a, b = open_checkpoint(one), open_checkpoint(other)
        try:
            total = sum(ref.nbytes for side in (a, b) for ref in side.tensors.values())
            with progress(Phase.CHECKING, total) as done:
                return difference_of(a, b, data=data, progress=done)[0]
        finally:
            a.close()
            b.close()


def examine(path: StrPath, *, data: bool = True, progress: Stage = silent) -> Report:
    """Judge a file by itself, as `ggferry verify FILE` does.

    Args:
        path: A model of any container.
        data: Whether to look at tensor data for NaN, infinities and constants.
        progress: As for `convert`.

    Returns:
        What was found, and which programs load the file; `sound` says whether there is no fault.

    Raises:
        CorruptError: The structure is broken.
        GgferryError: As `inspect`.

    Example:
        >>> ggferry.examine("model.gguf").sound
        True
    """
    from ggferry.converters.analysis.validate import examine as run

    with local_source(os.fspath(path)) as here:
        return run(here, data=data, stage=progress)
