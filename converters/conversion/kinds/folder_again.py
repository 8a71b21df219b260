"""A folder that was written before, proved again: what its receipt says of how it was made."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ggferry.converters.conversion.kinds.hf_folder import is_ours
from ggferry.converters.conversion.request import FOLDERS, Request
from ggferry.converters.metadata.beside import FOLDER_RECEIPT, MAX_RECEIPT
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.checkpoint_folder.sidecars import vocabulary_names
from ggferry.formats.errors import CorruptError, VerificationError
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.formats.json_files.text import load_object


def receipt_in(folder: Checkpoint) -> JSONObject | None:
    """Return the receipt of a folder that ggferry wrote; None where there is none of the kind."""
    path = os.path.join(os.path.dirname(folder.path), FOLDER_RECEIPT)
    if not os.path.isfile(path):
        return None
    found = load_object(path, MAX_RECEIPT)
    return found if found.get("to") in FOLDERS else None


def as_made(request: Request, folder: Checkpoint, receipt: Mapping[str, Any]) -> Request:
    """Return the request by which the folder was made.

    Raises VerificationError for a folder with other files than its receipt lists, CorruptError for a receipt that does
    not state how it was made.
    """
    path = os.path.dirname(folder.path)
    if not is_ours(path):
        raise VerificationError("not the folder its receipt was written for", path=path)
    try:
        declared = receipt["options"]
        options = replace(
            request.options,
            outtype=str(declared.get("outtype", "keep")),
            allow_requantize=bool(declared.get("allow_requantize", False)),
        )
        files = {str(file["name"]) for file in receipt["output"]["files"]}
        bare = not files & vocabulary_names() and request.vocab == VocabOptions()
        return replace(
            request,
            to=str(receipt["to"]),
            out=path,
            options=options,
            dtype=declared["dtype"],
            max_shard_size=int(declared["max_shard_size"]),
            hparams={**declared["hparams"], **request.hparams},
            vocab=VocabOptions(none=True) if bare else request.vocab,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptError(f"the receipt's options: {error!r}", path=os.path.join(path, FOLDER_RECEIPT)) from None
