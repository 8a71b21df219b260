"""Hold a file's blocks against its receipt: `ggferry verify FILE --receipt FILE --sample 1%`."""

from __future__ import annotations

import os
from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, Annotated

from ggferry.converters.conversion.options import option
from ggferry.formats.errors import NotFoundError
from ggferry.service.operation import Cache, ReportProgress, StrPath, argument, library_function, open_source
from ggferry.support.progress import silent
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.converters.rewrite.block_check import BlockCheck
    from ggferry.formats.json_files.kinds import JSONObject


@dataclass(frozen=True, slots=True)
class CheckBlocksRequest:
    """Which file is held against which receipt."""

    path: Annotated[StrPath, argument("A GGUF file, of several shards the first; a path or a URL.")]
    _: KW_ONLY
    receipt: Annotated[StrPath | None, option("receipt")] = None
    sample: Annotated[str | None, option("sample")] = None
    signed: Annotated[StrPath | None, option("signed")] = None
    cache: Cache = None
    progress: ReportProgress = silent


def run(request: CheckBlocksRequest) -> BlockCheck:
    """Hold the blocks of a file against the digests in its receipt, as `ggferry verify FILE --sample 1%` does.

    Of a URL, only the blocks are fetched that are read.

    Returns:
        What was read, the blocks that differ with the tensors in them, and with what probability a single changed block
        would have been found.

    Raises:
        NotFoundError: There is no receipt.
        CorruptError: The receipt has no digests of blocks.
        VerificationError: A file has another size, or the receipt's signature is not by this key.
        GgferryError: As `inspect`.

    Example:
        >>> ggferry.check_blocks("model-Q8_0.gguf", sample="1").changed
        ()
    """
    from ggferry.converters.rewrite.block_check import check_blocks as carry_out

    # Of a sample, small ranges are fetched; of a whole file, large ones that come in one after another.
    with open_source(request.path, request.cache, tensors=request.sample is None) as path:
        receipt, place = _receipt(request, path)
        if request.signed is not None:
            from ggferry.service.operations._signatures import check_signature

            check_signature(place, os.fspath(request.signed))
        found = carry_out(path, receipt, request.sample, request.progress)
        path.check_unchanged()
    return found


def _receipt(request: CheckBlocksRequest, path: str) -> tuple[JSONObject, str]:
    """Return the receipt that is named, or that lies beside the file, and its path."""
    from ggferry.converters.metadata.beside import MAX_RECEIPT, RECEIPT
    from ggferry.formats.files.local_files import Named
    from ggferry.formats.json_files.text import load_object

    place = os.fspath(request.receipt) if request.receipt is not None else path + RECEIPT
    if request.receipt is None and not os.path.lexists(place):
        raise NotFoundError("no receipt beside the file", path=path, hint="--receipt FILE names it")
    return load_object(Named(place), MAX_RECEIPT), place


check_blocks = library_function("check_blocks", CheckBlocksRequest, run)
