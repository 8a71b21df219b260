"""Prove that shards hold what a whole GGUF file holds."""

from __future__ import annotations

import os
from dataclasses import KW_ONLY
from typing import Annotated

from ggferry.formats.files.local_files import Named
from ggferry.service.operation import ReportProgress, StrPath, argument, library_function
from ggferry.support.progress import silent
from ggferry.support.records import dataclass


@dataclass(frozen=True, slots=True)
class CheckShardsRequest:
    """Which files are compared."""

    shards: Annotated[StrPath, argument("One of the shards.")]
    whole: Annotated[StrPath, argument("The whole file.")]
    _: KW_ONLY
    progress: ReportProgress = silent


@dataclass(frozen=True, slots=True)
class ShardsChecked:
    """Shards that hold what the whole file holds.

    Attributes:
        shards: How many shards there are.
        tensors: How many tensors were compared, byte for byte.
    """

    shards: int
    tensors: int


def check(request: CheckShardsRequest) -> ShardsChecked:
    """Compare shards with the whole file. Raises as `run`."""
    from ggferry.converters.rewrite.splitting import check as carry_out

    whole, shards = Named(os.fspath(request.whole)), Named(os.fspath(request.shards))
    return ShardsChecked(*carry_out(shards, whole, request.progress))


def run(request: CheckShardsRequest) -> int:
    """Prove that shards hold what a whole GGUF file holds: every key, and every tensor byte for byte.

    Returns:
        The number of tensors compared.

    Raises:
        VerificationError: They differ; the message names the first difference.
        GgferryError: As `inspect`.

    Example:
        >>> ggferry.check_shards("model-00001-of-00002.gguf", "model.gguf")
        21
    """
    return check(request).tensors


check_shards = library_function("check_shards", CheckShardsRequest, run)
