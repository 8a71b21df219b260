"""The receipts of a job as the ledger keeps them: that of its output; of several outputs the first holds the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from ggferry.converters.conversion_plan.grades import Grade
from ggferry.converters.metadata.beside import FOLDER_RECEIPT, RECEIPT, files_written, is_folder
from ggferry.formats.errors import NotFoundError

if TYPE_CHECKING:
    from ggferry.converters.metadata.receipt_fields import FileRecord, KeptReceipts, Receipt

FURTHER = "further"
"""The member of a kept receipt that lists those of the further outputs; receipts beside outputs do not have it."""
OWN = "receipt_file"
"""The member that records the file of a folder's receipt."""


def kept(receipts: Sequence[Receipt], own: FileRecord | None = None) -> KeptReceipts:
    """Return what the ledger keeps of the receipts of a job's outputs; `own`: the file of a folder's receipt."""
    first, *further = receipts
    more: Mapping[str, Any] = {**({FURTHER: further} if further else {}), **({OWN: own} if own is not None else {})}
    return cast("KeptReceipts", {**first, **more})


def receipts_of(found: Mapping[str, Any] | None) -> list[Receipt]:
    """Return the receipts of a job's outputs from what the ledger kept; nothing of a job that has none."""
    if found is None:
        return []
    first = cast("Receipt", {key: value for key, value in found.items() if key not in (FURTHER, OWN)})
    return [first, *found.get(FURTHER, ())]


def receipt_of(found: Mapping[str, Any], name: str) -> Receipt:
    """Return, of what the ledger kept, the receipt of the output that the file `name` belongs to.

    Raises NotFoundError for a file that is none of theirs.
    """
    for receipt in receipts_of(found):
        if name in (str(record["name"]) for record in receipt["output"]["files"]):
            return receipt
    raise NotFoundError("the job made no such output", found=name)


def files_kept(found: Mapping[str, Any]) -> list[FileRecord]:
    """Return the records of all files of a job's outputs, from what the ledger kept; of a folder the receipt, too."""
    own: list[FileRecord] = [found[OWN]] if found.get(OWN) else []
    return [*files_written(*receipts_of(found)), *own]


def place_of(output: str, receipt: Mapping[str, Any]) -> str:
    """Return the folder in which the files of an output are: of one that is a folder, itself."""
    from ggferry.service.storage.stores import split  # clients have no use for stores

    return output if is_folder(receipt) else split(output)[0]


def receipt_of_output(output: str, receipt: Mapping[str, Any]) -> str:
    """Return where the receipt of an output is."""
    from ggferry.service.storage.stores import join

    return join(output, FOLDER_RECEIPT) if is_folder(receipt) else output + RECEIPT


def grade_of(tensor: Mapping[str, Any]) -> str:
    """Return how exactly a tensor of an output was kept; what folders state of theirs is whether every value was."""
    return str(tensor.get("grade") or (Grade.REPACKED if tensor.get("exact") else Grade.ROUNDED).value)
