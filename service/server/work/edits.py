"""Keys of a finished file changed: a new file with a receipt of its own beside the old one, which stays as it is."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from ggferry.converters.conversion.request import GGUF
from ggferry.converters.metadata.beside import MAX_RECEIPT, RECEIPT, files_written
from ggferry.formats.errors import ChangedError, RefusedError, UsageError
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.formats.json_files.text import load_object
from ggferry.formats.packed.scratch import Scratch
from ggferry.service.operation import changed_options
from ggferry.service.operations.edit import EditChanges
from ggferry.service.records.ledger import DONE, bucket
from ggferry.service.records.plan_file import digest_of
from ggferry.service.records.receipts import receipt_of, receipts_of
from ggferry.service.server.store import models
from ggferry.service.server.store.database import Store
from ggferry.service.server.work.inspectors import InspectorPool
from ggferry.service.server.work.outputs.output_files import Outputs, beside
from ggferry.service.storage.stores import is_remote
from ggferry.support.heavy import sa

FOLDER = "edits"
SLOWEST = 20 << 20  # bytes a second that no healthy edit falls below


def edit(
    store: Store, inspectors: InspectorPool, outputs: Outputs, job: str, changes: EditChanges, file: str | None = None
) -> str:
    """Change keys of a done job's file as `ggferry edit` does, and return the id under which the new file is listed.

    `file` names the output that is meant, and must where the job has several. The same changes of the same file are
    made once. What is in a store is fetched, changed here, and the new file goes there. Raises RefusedError for a job
    that is not done, UsageError, NotFoundError, and what `edit` raises.
    """
    row: JSONObject = {**store.row(job)}
    if row["state"] != DONE or row["receipt"] is None:
        raise RefusedError("only the file of a done job can be edited", found=row["state"], expected=DONE)
    if (to := row["receipt"].get("to", GGUF)) != GGUF:
        raise RefusedError("only GGUF files have keys to edit", found=f"--to {to}", expected=f"--to {GGUF}")
    row, declared = _of_file(row, file), changed_options(changes)
    key = digest_of([job, row["receipt"]["output"]["files"], declared])[:32]
    if store.first(sa.select(store.jobs.c.id).where(store.jobs.c.id == key)) is not None:
        return key
    settings, name = outputs.settings, str(row["output"]).rpartition("/")[2]
    if is_remote(row["output"]):
        out = f"{settings.outputs}/{FOLDER}/{key}/{name}"
        with closing(Scratch(settings.scratch)) as scratch:
            made = os.path.join(scratch.path, "to")
            os.mkdir(made)
            (source, *_) = outputs.fetch(job, scratch.path, files_written(row["receipt"]))
            receipt = _changed(inspectors, row, source, scratch.path, os.path.join(made, name), declared)
            outputs.publish(key, out, receipt, made, scratch.path)
    else:
        place = os.path.join(settings.output_folder, FOLDER, key)
        out = os.path.join(place, os.path.basename(row["output"]))
        os.makedirs(place, 0o700, exist_ok=True)
        try:
            receipt = _changed(inspectors, row, row["output"], settings.output_folder, out, declared)
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise
    _enter(store, key, row, out, receipt, declared)
    return key


def _changed(
    inspectors: InspectorPool, row: Mapping[str, Any], source: str, tree: str, out: str, declared: Mapping[str, Any]
) -> JSONObject:
    """Have a worker write the changed file to `out`, and return its receipt."""
    size = sum(each["bytes"] for each in row["receipt"]["output"]["files"])
    options = {**declared, "out": out, "force": True}
    command = {"op": "look", "question": "edit", "source": source, "trees": [tree], "options": options}
    done = inspectors.ask(command, seconds=60 + size / SLOWEST)
    if done["receipt_path"] is None:
        raise ChangedError("its receipt is not of this file any more", path=row["output"])
    return load_object(out + RECEIPT, MAX_RECEIPT)


def _of_file(row: Mapping[str, Any], file: str | None) -> JSONObject:
    """Return the row as if the output that is meant were its only one."""
    names = [str(receipt["output"]["files"][0]["name"]) for receipt in receipts_of(row["receipt"])]
    if file is None and names[1:]:
        raise UsageError("the job made several files: which one?", expected=", ".join(names), hint="file")
    if file is None:
        return dict(row)
    receipt = receipt_of(row["receipt"], file)
    size = sum(each["bytes"] for each in receipt["output"]["files"])
    output = beside(row, receipt["output"]["files"][0]["name"])
    return {**row, "receipt": receipt, "output": output, "bytes_out": size}


def _enter(
    store: Store,
    key: str,
    row: Mapping[str, Any],
    out: str,
    receipt: Mapping[str, Any],
    changes: Mapping[str, Any],
) -> None:
    """List the new file as a model that is done."""
    size, now = sum(each["bytes"] for each in receipt["output"]["files"]), time.time()
    same = ("architecture", "types", "recipe", "kind", "trees")
    entry = {name: row["entry"].get(name) for name in same} | {
        "source": row["output"],
        "verdict": "convert",
        "reason": "edited",
        "container": "gguf",
        "version": 3,
        "output": out,
        "bytes_in": row["bytes_out"],
        "bytes_out": size,
        "edit": dict(changes),
        "edit_of": row["id"],
        "era": None,
    }
    values = {
        "id": key,
        "plan": row["plan"],
        "source": row["output"],
        "output": out,
        "entry": entry,
        "state": DONE,
        "bucket": bucket(key),
        "bytes_in": row["bytes_out"],
        "bytes_out": size,
        "attempts": 1,
        "losses": 0,
        "claims": 0,
        "not_before": 0.0,
        "created": now,
        "started": now,
        "finished": now,
        "updated": now,
        "deleted": False,
        "receipt": dict(receipt),
    }
    listed = store.first(sa.select(store.t.models.c.plan).where(store.t.models.c.id == row["id"]))
    models.index(store, str((listed or {}).get("plan") or key[:16]), [(key, entry)])
    store.put(store.jobs, **values)
