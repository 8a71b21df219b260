"""Rows of a ledger whose database is whole and whose contents are not: which one, and what is wrong with it.

SQLite notices a damaged page, not a damaged byte of a text. What a row holds is checked where it is read, so that such
a ledger ends in words that name the job.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ggferry.formats.errors import CorruptError

HINT = "restore a copy of the ledger, or begin a new one: apply checks finished outputs and does not make them again"
OBJECTS = ("entry", "receipt", "error")
"""Columns that hold objects; null where there is nothing."""
NEEDED = ("source", "recipe", "output")
"""Members of a line of the plan without which nothing can be done for its job."""
DAMAGED_ROW = "a row of the ledger is damaged: "
_KINDS = {
    "source": str,
    "verdict": str,
    "recipe": dict,
    "output": str,
    "further": list,
    "files": list,
    "beside": list,
    "bytes_in": int,
    "bytes_out": int,
}


class DamagedError(Exception):
    """A value of a row cannot be read."""


def decoded(text: str | bytes) -> Any:
    """Return the JSON value in a column. Raises DamagedError."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"not JSON: {error}") from None


def check_row(row: Mapping[str, Any], ledger: str) -> None:
    """Raise CorruptError unless what a row of jobs holds is of the kinds that everything relies on."""
    for name in OBJECTS:
        value = row.get(name)
        if value is not None and not isinstance(value, dict):
            raise damaged(ledger, str(row.get("id")), f"{name} is not an object")
    if not isinstance(row.get("further") or [], list):
        raise damaged(ledger, str(row.get("id")), "further is of another kind")
    entry, receipt = row.get("entry"), row.get("receipt")
    if isinstance(entry, dict) and (odd := _odd(entry)):
        raise damaged(ledger, str(row.get("id")), f"entry: {odd}")
    if isinstance(receipt, dict) and (odd := _odd_receipt(receipt)):
        raise damaged(ledger, str(row.get("id")), f"receipt: {odd}")


def _odd(entry: Mapping[str, Any]) -> str | None:
    """Return what is wrong with the line of the plan that a row holds."""
    for name, kind in _KINDS.items():
        if entry.get(name) is not None and not isinstance(entry[name], kind):
            return f"{name} is of another kind"
    columns = {"further": ("outtype", "output"), "files": ("path",), "beside": ("path",)}
    for name, keys in columns.items():
        for each in entry.get(name) or ():
            if not isinstance(each, dict) or not all(isinstance(each.get(key), str) for key in keys):
                return f"{name} is of another kind"
    return None


def _odd_receipt(receipt: Mapping[str, Any]) -> str | None:
    further = receipt.get("further", [])
    if not isinstance(further, list) or not all(isinstance(each, dict) for each in further):
        return "further is of another kind"
    if not isinstance(receipt.get("receipt_file") or {}, dict):
        return "receipt_file is of another kind"
    for each in (receipt, *further):
        for end in ("source", "output"):
            part = each.get(end, {"files": []})
            files = part.get("files", []) if isinstance(part, dict) else None
            if not isinstance(files, list) or not all(isinstance(file, dict) for file in files):
                return f"{end} is of another kind"
    return None


def check_complete(entry: Mapping[str, Any], job: str) -> None:
    """Raise CorruptError unless the line of a job has all that doing it takes."""
    if missing := next((name for name in NEEDED if entry.get(name) is None), None):
        raise damaged(None, job, f"entry: {missing} is missing")


def raise_damaged(errors: Sequence[CorruptError]) -> None:
    """Raise one error for all rows that are damaged, if there are any: each job is named."""
    if errors[1:]:
        words = "; ".join(str(error.message).removeprefix(DAMAGED_ROW) for error in errors)
        raise CorruptError(f"{len(errors)} rows of the ledger are damaged: {words}", path=errors[0].path, hint=HINT)
    if errors:
        raise errors[0]


def damaged(ledger: str | None, job: str, what: str) -> CorruptError:
    """Return the error for a row that is not what was written."""
    return CorruptError(f"{DAMAGED_ROW}job {job}: {what}", path=ledger, hint=HINT)
