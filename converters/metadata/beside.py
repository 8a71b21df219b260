"""What stands beside an output, by name: its receipt, and the mmproj file of a multimodal model.

Kept apart from what makes them, because whoever looks for one needs the name alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ggferry.converters.metadata.receipt_fields import FileRecord

RECEIPT = ".receipt.json"
"""What a receipt's name adds to the name of its file."""
FOLDER_RECEIPT = "ggferry.receipt.json"
"""The receipt of an output that is a folder, in that folder."""
FOLDER_FORMATS = ("safetensors", "mlx")
"""The values of --to, and of a receipt's member `to`, whose outputs are folders."""
MAX_RECEIPT = 1 << 28
MMPROJ: Final = "mmproj"
"""The type (`general.type`) of the mmproj file, llama.cpp's prefix of its name, and the receipt's
member that lists it beside a text model."""
TEXT: Final = "text"
"""The member of that file's receipt that lists the text models beside it."""


def mmproj_name(name: str) -> str:
    """Return the file name of an mmproj file (mmproj): with llama.cpp's prefix, unless the name says so already."""
    return name if MMPROJ in name else f"{MMPROJ}-{name}"


def is_folder(receipt: Mapping[str, Any]) -> bool:
    """Return whether a receipt is that of a folder, whose files it names as they are called in there."""
    return receipt.get("to") in FOLDER_FORMATS


def files_written(*receipts: Mapping[str, Any]) -> list[FileRecord]:
    """Return the records of all files that hold the model: the outputs', and the mmproj files beside them.

    Several outputs share the latter; each is listed once.
    """
    beside = {record["name"]: record for receipt in receipts for record in receipt.get(MMPROJ, ())}
    return [*(record for receipt in receipts for record in receipt["output"]["files"]), *beside.values()]
