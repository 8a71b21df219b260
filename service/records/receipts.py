"""The receipts of a job as the ledger keeps them: that of its output; of several outputs the first holds the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
