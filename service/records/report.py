"""The result of a migration: totals, errors by class, the proof of every model. JSON, and `report_html` for people."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, cast

import ggferry
from ggferry.converters.conversion.summary import OutputSummary, rating_of, table_of
from ggferry.formats.errors import Fault, GgferryError, RefusedError, UsageError, fault_of
from ggferry.formats.files.partial_files import check_target, write_text
from ggferry.formats.files.sources import LocalFile
from ggferry.service.records.fields import LedgerRow, PlanSummary, ReportedModel, ReportRecord, ReportTotals
from ggferry.service.records.ledger import DONE, FAILED, QUARANTINED, SKIPPED, STATES, Ledger
from ggferry.service.records.ledger_rows import raise_damaged
from ggferry.service.records.plan_file import CONVERT, VERDICTS, Entry, Head, outputs_of
from ggferry.service.records.receipts import grade_of, receipts_of
from ggferry.support.printable import printable_json

TURNS = {
    Fault.FILE: "at fault themselves: the same bytes fail again; --retry-failed tries them all the same",
    Fault.PERSON: "wait for you: put right what the report names, then run it again with --retry-failed",
    Fault.TRANSIENT: "met a temporary failure: the same command tries them again",
}
"""What happens next to models that did not end well, for a person."""
OURS = {
    ".json": re.compile(rb'\{\n "ggferry": "[^"\n]*",\n "roots": \['),
    ".html": re.compile(rb"<!doctype html><html lang=en><head>.*?<title>Migration to GGUF</title>", re.DOTALL),
}
"""How a report's files begin: `collect` and `report_html.page`."""
TABLES = 10  # models whose tables a run prints at its end
PROOF_KEYS = ("relative_rms", "max_error", "top1_agreement", "limit")


# --- of a plan -----------------------------------------------------------------------------------------------------


def summary(entries: Sequence[Entry], head: Head | None = None) -> PlanSummary:
    """Return a plan in numbers: models by verdict, bytes, the largest memory, reasons.

    With its head, and where models get several outputs, also the bytes of each type.
    """
    doing = [entry for entry in entries if entry.verdict == CONVERT]
    kinds = Counter(_kind(entry) for entry in doing)
    facts: PlanSummary = {
        "verdicts": {v: n for v in VERDICTS if (n := sum(entry.verdict == v for entry in entries))},
        "files": sum(len(entry.files) for entry in entries),
        "bytes_in": sum(entry.bytes_in for entry in doing),
        "bytes_out": sum(entry.bytes_out for entry in doing),
        "memory": max((entry.memory for entry in doing), default=0),
        "disk": sum(entry.bytes_out for entry in doing),
        "convert": dict(kinds.most_common()),
        "problems": dict(Counter((e.error or {}).get("class", e.verdict) for e in entries if e.error).most_common()),
        "duplicate_bytes": sum(entry.bytes_in for entry in entries if entry.same_as),
        "lossy": sum(bool(entry.lost) for entry in doing),
    }
    if head and (found := _by_type(doing, head)):
        facts["bytes_of_types"] = found
    return facts


def _by_type(entries: Sequence[Entry], head: Head) -> dict[str, int]:
    """Return the bytes of the outputs of each type, where models get several."""
    found: Counter[str] = Counter()
    for entry in entries if any(entry.further for entry in entries) else ():
        for outtype, size in zip(entry.outtypes(head), entry.sizes, strict=True):
            found[outtype] += max(0, size)
    return dict(found)


def _kind(entry: Entry) -> str:
    version = None if entry.version is None else f"v{entry.version}"
    return " ".join(filter(None, (entry.container, version, entry.architecture)))


def summary_lines(facts: PlanSummary) -> list[str]:
    lines = ["  ".join(f"{count} {verdict}" for verdict, count in facts["verdicts"].items()) or "nothing found"]
    lines += [f"  {count:>6}  {kind}" for kind, count in facts["convert"].items()]
    lines += [f"  {count:>6}  cannot be converted: {kind}" for kind, count in facts["problems"].items()]
    if facts["convert"]:
        lines.append(
            f"{facts['bytes_in']:,} bytes in, {facts['bytes_out']:,} bytes out; each worker takes about "
            f"{facts['memory'] >> 20:,} MiB of memory"
        )
    lines += [f"{size:>20,} bytes of {outtype}" for outtype, size in facts.get("bytes_of_types", {}).items()]
    if facts["lossy"]:
        lines.append(
            f"{facts['lossy']} models hold tensors that their outputs will not ('lost' in their lines says which); "
            "--delete-source spares them"
        )
    return lines


# --- of a ledger ---------------------------------------------------------------------------------------------------


def check_report(stem: str, *, overwrite: bool = False) -> None:
    """Raise RefusedError, before anything is done, where `write_report` would replace a file that is no report."""
    if not os.path.basename(stem):
        raise UsageError("--report", found=stem, expected="the beginning of two files' names")
    for suffix in OURS:
        if os.path.lexists(stem + suffix) and not (overwrite or _is_report(stem, suffix)):
            hint = "choose another name for the report"
            raise RefusedError("exists already and is not a report", path=stem + suffix, hint=hint)
        check_target(stem + suffix, overwrite=True)


def write_report(
    stem: str, ledger: Ledger, head: Head | None = None, entries: Sequence[Entry] = (), *, overwrite: bool = False
) -> ReportRecord:
    """Write `stem`.json and `stem`.html about a plan's jobs, or all, and return the facts in them.

    An earlier report is replaced, another file only with `overwrite`. Raises CorruptError after it is written where
    rows of the ledger are damaged: the report has the others.
    """
    from ggferry.service.records.report_html import page

    check_report(stem, overwrite=overwrite)
    rows, damaged = ledger.sound_rows(None if head is None else head.id)
    facts = collect(rows, head, [str(error.message) for error in damaged])
    for suffix, text in ((".json", printable_json(facts, indent=1)), (".html", page(facts))):
        write_text(stem + suffix, [text], overwrite=overwrite or _is_report(stem, suffix))
    raise_damaged(damaged)
    return facts


def _is_report(stem: str, suffix: str) -> bool:
    """Return whether `write_report` wrote a file, judging by how it begins."""
    try:
        with LocalFile(stem + suffix) as file:
            return OURS[suffix].match(file.read(0, min(file.size, 512))) is not None
    except GgferryError:
        return False


def collect(rows: Sequence[LedgerRow], head: Head | None = None, damaged: Sequence[str] = ()) -> ReportRecord:
    """Return the report as plain data; `damaged` says which rows of the ledger cannot be read, and are not in it."""
    done = [row for row in rows if row["state"] == DONE]
    bad = [row for row in rows if row["state"] in (FAILED, QUARANTINED)]
    names = {row["id"]: row["source"] for row in rows}
    found: ReportRecord = {
        "ggferry": ggferry.__version__,
        "roots": list(head.roots) if head else [],
        "dest": head.dest if head else None,
        "totals": _totals(rows, done),
        "errors": dict(Counter(str((row["error"] or {}).get("class", "?")) for row in bad).most_common()),
        "faults": dict(sorted(Counter(_fault(row).value for row in bad).items())),
        "grades": dict(_grades(done)),
        "skipped": dict(Counter(_why(row) for row in rows if row["state"] == SKIPPED).most_common()),
        "models": [_model(row, names) for row in rows if not _is_other(row)],
        "other_files": sum(_is_other(row) for row in rows),
    }
    if damaged:
        found["damaged_rows"] = list(damaged)
    return found


def _totals(rows: Sequence[LedgerRow], done: Sequence[LedgerRow]) -> ReportTotals:
    before, after = sum(row["bytes_in"] for row in done), sum(_written(row) for row in done)
    seconds = [row["finished"] - row["started"] for row in done if row["finished"] and row["started"]]
    states = {state: sum(row["state"] == state for row in rows) for state in STATES}
    sums = {
        "bytes_before": before,
        "bytes_after": after,
        "bytes_saved": before - after,
        "bytes_duplicate": sum(row["bytes_in"] for row in rows if row["entry"].get("same_as") or row["same_as"]),
        "worker_seconds": round(sum(seconds), 3),
        "peak_memory": max((row["peak"] or 0 for row in rows), default=0),
        "deleted_sources": sum(bool(row["deleted"]) for row in rows),
    }
    return cast("ReportTotals", {**states, **sums})


def _is_other(row: LedgerRow) -> bool:
    return bool(row["entry"].get("verdict") == "other")


def _why(row: LedgerRow) -> str:
    verdict = str(row["entry"].get("verdict"))
    return "the same content as another" if row["same_as"] or verdict == "duplicate" else verdict


def _fault(row: LedgerRow) -> Fault:
    """Return the fault of a job's error; what was never tried was found bad by the plan, which a person makes again."""
    fault = fault_of(row["error"] or {})
    return Fault.PERSON if fault is Fault.TRANSIENT and not row["attempts"] else fault


def _written(row: LedgerRow) -> int:
    files = (file for receipt in receipts_of(row["receipt"]) for file in receipt.get("output", {}).get("files", ()))
    return sum(int(record["bytes"]) for record in files)


def _grades(rows: Sequence[LedgerRow]) -> Counter[str]:
    return Counter(
        grade_of(tensor)
        for row in rows
        for receipt in receipts_of(row["receipt"])
        for tensor in receipt.get("tensors", ())
    )


def _model(row: LedgerRow, names: Mapping[str, str]) -> ReportedModel:
    entry, receipts = row["entry"], receipts_of(row["receipt"])
    receipt: Mapping[str, Any] = receipts[0] if receipts else {}
    logits = receipt.get("logits") or {}
    return {
        "id": row["id"],
        "source": row["source"],
        "state": row["state"],
        "container": entry.get("container"),
        "version": entry.get("version"),
        "architecture": entry.get("architecture"),
        "bytes_in": row["bytes_in"],
        "bytes_out": _written(row) if receipt else None,
        "output": row["output"] if row["state"] == DONE else None,
        "outputs": [
            rating_of(each, output).as_dict() for each, output in zip(receipts, outputs_of(entry), strict=False)
        ]
        if receipts[1:]
        else [],
        "blake3": [record["blake3"] for each in receipts for record in each.get("output", {}).get("files", ())],
        "grades": dict(_grades([row])),
        "verified": receipt.get("verified"),
        "logits": {key: logits[key] for key in PROOF_KEYS if key in logits} or None,
        "tokenizer": receipt.get("tokenizer"),
        "runtimes": receipt.get("runtimes", {}).get("run_it"),
        "same_as": names.get(str(row["same_as"]), row["same_as"]) or entry.get("same_as"),
        "error": row["error"] if row["state"] in (FAILED, QUARANTINED, SKIPPED) else None,
        "attempts": row["attempts"],
        "adopted": bool(row["adopted"]),
        "source_deleted": bool(row["deleted"]),
        "peak_memory": row["peak"],
        "seconds": round(row["finished"] - row["started"], 3) if row["finished"] and row["started"] else None,
    }


def tables(facts: Mapping[str, Any]) -> list[str]:
    """Return a table for each model with several outputs: type, size, bits per weight, worst tensor, logits.

    Nothing of more than TABLES models: the report has them.
    """
    several = [model for model in facts["models"] if model["outputs"]]
    lines = []
    for model in several if len(several) <= TABLES else ():
        lines += [model["source"], *table_of([OutputSummary(**each) for each in model["outputs"]])]
    return lines


def migration_lines(facts: Mapping[str, Any], stem: str) -> list[str]:
    """Return the lines that a person reads at the end of a run."""
    totals = facts["totals"]
    lines = ["  ".join(f"{totals[state]} {state}" for state in STATES if totals[state]) or "nothing to do"]
    lines += [f"  {count:>6}  {kind}" for kind, count in facts["errors"].items()]
    lines += [f"{count} {TURNS[Fault(fault)]}" for fault, count in facts["faults"].items()]
    lines.append(f"{totals['bytes_before']:,} bytes became {totals['bytes_after']:,}; report: {stem}.html, {stem}.json")
    return lines
