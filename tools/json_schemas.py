"""Write docs/schemas/ from the records that the product declares: python tools/json_schemas.py

A member that no schema knows is allowed: a newer version may have written the file (docs/versioning.md).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from ggferry.converters.metadata.receipt_fields import FolderReceipt, Receipt
from ggferry.service.records.fields import PlanLine, ReportRecord

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "schemas"
DRAFT = "https://json-schema.org/draft/2020-12/schema"
SCHEMAS: dict[str, tuple[Any, str, tuple[str, ...]]] = {
    "receipt": (Receipt, "FILE.gguf.receipt.json, the receipt of a GGUF file", ()),
    "folder-receipt": (FolderReceipt, "the receipt of a folder in Hugging Face's form", ()),
    "plan-line": (PlanLine, "a line of a migration plan, after its first", ("source", "verdict")),
    "report": (ReportRecord, "PLAN.report.json, and the JSON of `ggferry ledger export`", ()),
}
"""By name: the record, what has its form, and the members that are always there besides those it requires."""


def schema(name: str) -> dict[str, Any]:
    """Return one schema."""
    record, title, always = SCHEMAS[name]
    found = TypeAdapter(record).json_schema()
    found = {**found, "required": sorted({*found.get("required", ()), *always})}
    return {"$schema": DRAFT, **found, "title": title}


def text(name: str) -> str:
    """Return the text of a schema's file."""
    return json.dumps(schema(name), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def path(name: str) -> Path:
    return FOLDER / f"{name}.schema.json"


if __name__ == "__main__":
    for each in SCHEMAS:
        path(each).write_text(text(each), encoding="utf-8")
