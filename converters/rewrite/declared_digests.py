"""Hold the bytes of a model file against the digests that stand in it or beside it, where there are any."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ggferry.converters.metadata.beside import MAX_RECEIPT, RECEIPT
from ggferry.converters.rewrite.rewrite_output import digest_of
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import CorruptError
from ggferry.formats.files.digests import digest
from ggferry.formats.files.local_files import read_bytes
from ggferry.formats.files.sources import Source, wholes_of
from ggferry.formats.gguf.shards import SET_DIGEST
from ggferry.formats.gguf.tensor_digests import digest_of_set
from ggferry.formats.gguf.values import Value
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.support.progress import Phase, Progress, Stage


def receipt_beside(path: str) -> JSONObject | None:
    """Return the receipt beside an output; None where there is none. Raises CorruptError for one that is not sound."""
    path += RECEIPT
    if not os.path.lexists(path):
        return None
    try:
        receipt = json.loads(read_bytes(path, MAX_RECEIPT))
        if not isinstance(receipt, dict) or not isinstance(receipt.get("options"), dict):
            raise ValueError("not a receipt")
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"the receipt cannot be read: {error}", path=path) from None
    return receipt


def check_declared_digests(checkpoint: Checkpoint, stage: Stage) -> tuple[list[str], list[str]]:
    """Return what contradicts the digests that are stated of a model's files, and what agrees with them, in words.

    The receipt beside the file states those of whole files. Where there is none, shards that ggferry wrote hold the
    digest of all their tensors' data.

    Raises CorruptError for a receipt that cannot be read.
    """
    receipt = receipt_beside(checkpoint.path) if checkpoint.container == "gguf" else None
    if receipt is not None:
        wrong = list(_against_receipt(receipt, checkpoint, stage))
        return wrong, [] if wrong else ["the bytes are those that the receipt beside the file was written for"]
    declared = checkpoint.metadata.get(SET_DIGEST)
    if len(checkpoint.files) < 2 or not isinstance(declared, Value):
        return [], []
    found = digest_of_shards(checkpoint, stage)
    if found != declared.data:
        return [f"the tensors are not those of the set: BLAKE3 {found}, and {SET_DIGEST} states {declared.data}"], []
    return [], [f"the tensors of all {len(checkpoint.files)} shards are those that {SET_DIGEST} states"]


def digest_of_shards(checkpoint: Checkpoint, stage: Stage) -> str:
    """Return what the shards of a model must hold as the digest of their set; all tensor data is read."""
    refs = checkpoint.tensors.values()
    with stage(Phase.CHECKING, sum(ref.nbytes for ref in refs)) as progress:
        return digest_of_set(
            digest_of(checkpoint.files[ref.spans[0].file], ref.spans[0].offset, ref.nbytes, progress) for ref in refs
        )


def _against_receipt(receipt: Mapping[str, Any], checkpoint: Checkpoint, stage: Stage) -> Iterator[str]:
    output = receipt.get("output")
    records = output.get("files") if isinstance(output, Mapping) else None
    if not isinstance(records, list) or len(records) != len(checkpoint.files):
        found = len(records) if isinstance(records, list) else "no"
        yield f"the receipt beside the file states {found} output files, and there are {len(checkpoint.files)}"
        return
    with stage(Phase.CHECKING, checkpoint.nbytes) as progress:
        for file, found, declared in changed_files(records, checkpoint.files, progress):
            name = os.path.basename(file.path)
            yield f"{name} is not the file its receipt was written for: BLAKE3 {found}, the receipt states {declared}"


def changed_files(
    records: Sequence[Any], files: Sequence[Source], progress: Progress | None = None
) -> Iterator[tuple[Source, str, Any]]:
    """Yield each file that is not the one of its record in a receipt, with its BLAKE3 digest and the one stated."""
    for record, file in zip(records, wholes_of(files), strict=False):
        declared = record.get("blake3") if isinstance(record, Mapping) else None
        if (found := digest(file, progress=progress)) != declared:
            yield file, found, declared
