"""The receipts of a job as the ledger keeps them: that of its output; of several outputs the first holds the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from ggferry.formats.errors import NotFoundError

if TYPE_CHECKING:
    from ggferry.converters.metadata.receipt_fields import KeptReceipt, Receipt

FURTHER = "further"
"""The member of a kept receipt that lists those of the further outputs; receipts beside outputs do not have it."""


def kept(receipts: Sequence[Receipt]) -> KeptReceipt:
    """Return what the ledger keeps of the receipts of a job's outputs."""
    first, *further = receipts
    found = cast("KeptReceipt", {**first})
    if further:
        found["further"] = further
    return found


def receipts_of(found: Mapping[str, Any] | None) -> list[Receipt]:
    """Return the receipts of a job's outputs from what the ledger kept; nothing of a job that has none."""
    if found is None:
        return []
    first = cast("Receipt", {key: value for key, value in found.items() if key != FURTHER})
    return [first, *found.get(FURTHER, ())]


def receipt_of(found: Mapping[str, Any], name: str) -> Receipt:
    """Return, of what the ledger kept, the receipt of the output that the file `name` belongs to.

    Raises NotFoundError for a file that is none of theirs.
    """
    for receipt in receipts_of(found):
        if name in (str(record["name"]) for record in receipt["output"]["files"]):
            return receipt
    raise NotFoundError("the job made no such output", found=name)
