"""The receipts of a job as the ledger keeps them: that of its output; of several outputs the first holds the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ggferry.formats.errors import NotFoundError

FURTHER = "further"
"""The member of a kept receipt that lists those of the further outputs; receipts beside outputs do not have it."""


def kept(receipts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the ledger keeps of the receipts of a job's outputs."""
    first, *further = receipts
    return {**first, FURTHER: further} if further else dict(first)


def receipts_of(found: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return the receipts of a job's outputs from what the ledger kept; nothing of a job that has none."""
    if found is None:
        return []
    return [{key: value for key, value in found.items() if key != FURTHER}, *found.get(FURTHER, ())]


def receipt_of(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return, of what the ledger kept, the receipt of the output that the file `name` belongs to.

    Raises NotFoundError for a file that is none of theirs.
    """
    for receipt in receipts_of(found):
        if name in (str(record["name"]) for record in receipt["output"]["files"]):
            return receipt
    raise NotFoundError("the job made no such output", found=name)
