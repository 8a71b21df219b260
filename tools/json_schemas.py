"""Write docs/schemas/ from the records that the product declares: python tools/json_schemas.py

A member that no schema knows is allowed: a newer version may have written the file (docs/versioning.md).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Union

from pydantic import TypeAdapter

from ggferry.converters.analysis.quality.figures import Perplexity
from ggferry.converters.metadata import receipt_fields
from ggferry.converters.metadata.receipt_fields import FolderReceipt, Receipt
from ggferry.converters.supported import Coverage
from ggferry.service.archive_operations import _json_forms as archives
from ggferry.service.client.client import Fetched
from ggferry.service.operations import _json_forms as forms
from ggferry.service.operations.publish import Publication
from ggferry.service.operations.sign import Signatures
from ggferry.service.records.fields import (
    ListedJob,
    ListedModel,
    ModelRecord,
    PlanLine,
    ReportRecord,
    Totals,
    TriedRow,
    UploadRecord,
)
from ggferry.service.server.store.audit import AuditRecord
from ggferry.service.server.store.tokens import TokenRecord
from ggferry.service.server.work.notices import WebhookRecord
from ggferry.service.workers.messages import Event

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "schemas"
DRAFT = "https://json-schema.org/draft/2020-12/schema"
SCHEMAS: dict[str, tuple[Any, str, tuple[str, ...]]] = {
    "receipt": (Receipt, "FILE.gguf.receipt.json, the receipt of a GGUF file", ()),
    "folder-receipt": (FolderReceipt, "the receipt of a folder in Hugging Face's form", ()),
    "plan-line": (PlanLine, "a line of a migration plan, after its first", ("source", "verdict")),
    "report": (ReportRecord, "PLAN.report.json, and the JSON of `ggferry ledger export`", ()),
}
"""By name: the record, what has its form, and the members that are always there besides those it requires."""


COMMANDS: dict[str, tuple[Any, ...]] = {
    "convert": (
        forms.ConvertedFile,
        forms.ConvertedFiles,
        forms.PublishedConversion,
        forms.PlannedOutput,
        forms.PlannedFolder,
        forms.PlannedOutputs,
    ),
    "quantize": (forms.ConvertedFile, forms.ConvertedFiles, forms.PlannedOutput, forms.PlannedOutputs),
    "verify": (forms.VerifiedOutput, forms.ExaminedFile, forms.SignedFile, forms.CheckedBlocks),
    "inspect": (forms.InspectedFile,),
    "forward": (forms.WrittenRows, list[list[float]], list[forms.ScoredText]),
    "imatrix": (forms.WrittenImatrix, forms.ImatrixStatistics),
    "tokenize": (list[int],),
    "architectures": (forms.ListedFamilies, Coverage),
    "types": (forms.ListedTypes,),
    "edit": (forms.EditedFile, forms.PlannedEdit, forms.RecoveredEdit),
    "doctor": (forms.Diagnoses, forms.RepairedFile),
    "hash": (forms.HashedModel, forms.CheckedManifest),
    "diff": (forms.DifferenceForm,),
    "compare": (Perplexity,),
    "split": (forms.FinishedRewrite, forms.PlannedRewrite, forms.CheckedShards),
    "merge": (forms.FinishedRewrite, forms.PlannedRewrite, forms.CheckedShards),
    "sign": (Signatures,),
    "publish": (Publication,),
    "plan": (archives.PlannedArchive,),
    "apply": (archives.StartedRun, Event, archives.EndedRun, archives.SurveyedRun),
    "ledger-status": (dict[str, int],),
    "ledger-list": (ListedJob,),
    "ledger-show": (TriedRow,),
    "ledger-recheck": (archives.RecheckedJob,),
    "remote-submit": (forms.SubmittedJobs, ModelRecord),
    "remote-status": (Totals, ModelRecord),
    "remote-wait": (ModelRecord,),
    "remote-cancel": (ModelRecord,),
    "remote-retry": (ModelRecord,),
    "remote-delete": (forms.DeletedJob,),
    "remote-list": (ListedModel,),
    "remote-fetch": (Fetched,),
    "remote-uploads": (UploadRecord,),
    "serve-token-add": (forms.NewToken,),
    "serve-token-list": (TokenRecord,),
    "serve-webhook-add": (forms.NewWebhook,),
    "serve-webhook-list": (WebhookRecord,),
    "serve-audit": (AuditRecord,),
    "serve-backup": (forms.BackedUp,),
    "serve-restore": (forms.Restored,),
    "error": (forms.ErrorForm,),
}
"""By command: the forms of what it prints with `--json`; 'error': what any of them prints of an error."""


OF_COMMANDS = "commands/"
NAMES = (*SCHEMAS, *(OF_COMMANDS + command for command in COMMANDS))
"""Of all schemas, as their files below docs/schemas are called."""


def schema_of_command(command: str) -> dict[str, Any]:
    """Return the schema of what a command prints: one of its forms."""
    found: TypeAdapter[Any] = TypeAdapter(Union.__getitem__(COMMANDS[command]))
    found.rebuild(raise_errors=True, _types_namespace=vars(receipt_fields))
    words = "What every command prints of an error" if command == "error" else f"What `ggferry {command}` prints"
    return {**described(found.json_schema(mode="serialization")), "title": f"{words} with --json"}


def described(value: Any) -> Any:
    """Return a schema in which the attributes that a docstring lists are described where they stand."""
    if not isinstance(value, dict):
        return [described(each) for each in value] if isinstance(value, list) else value
    found = {key: described(each) for key, each in value.items()}
    words, _, listed = str(found.get("description", "")).partition("\n\nAttributes:\n")
    if listed and "properties" in found:
        lines = re.sub(r"\n {8,}", " ", listed).splitlines()
        for name, _, what in (line.strip().partition(": ") for line in lines):
            if name in found["properties"]:
                found["properties"][name]["description"] = what
        found["description"] = words
    return found


def schema(name: str) -> dict[str, Any]:
    """Return one schema."""
    if name.startswith(OF_COMMANDS):
        return {"$schema": DRAFT, **schema_of_command(name.removeprefix(OF_COMMANDS))}
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
    (FOLDER / OF_COMMANDS).mkdir(exist_ok=True)
    for each in NAMES:
        path(each).write_text(text(each), encoding="utf-8")
