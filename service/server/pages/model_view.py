"""One model as a view: from its job, its receipt, and what workers read of its headers."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ggferry.converters.conversion.request import GGUF
from ggferry.converters.conversion.summary import rating_of
from ggferry.converters.metadata.beside import is_folder
from ggferry.converters.metadata.receipt_fields import (
    CrossCheckRecord,
    DroppedRecord,
    KeptReceipts,
    LogitsRecord,
    Receipt,
    TensorRecord,
)
from ggferry.converters.model_graph.hparams import Known, Param, is_assumed
from ggferry.converters.proof.references.cross_check import CONVERSATIONS
from ggferry.formats.reader import label_of
from ggferry.quant.codec import block_type
from ggferry.quant.types import BlockError
from ggferry.service.library.answers import DroppedTensor
from ggferry.service.records.ledger import DONE, FAILED, QUARANTINED
from ggferry.service.records.plan_file import CONVERT
from ggferry.service.records.receipts import files_kept, grade_of, receipts_of
from ggferry.service.server.pages import wording
from ggferry.service.server.pages.archive_view import row_of
from ggferry.service.server.pages.model_page import Agreement, Attempt, Fact, ModelPage, Proof, TensorPage, TensorRow
from ggferry.service.server.pages.option_form import OptionForm, form_of, source_named
from ggferry.service.server.pages.views import ACTIVE, PER_PAGE, Problem
from ggferry.service.server.work.outputs.output_files import Output

_LOADS = {"safetensors": "transformers", "mlx": "mlx-lm"}
"""The library that loads a folder of a format."""
LONGEST = 600  # characters of a value


def page_of(found: Mapping[str, Any], uploads: str = "") -> ModelPage:
    """Return the page of a model as `functions.model` describes it, without what its source holds."""
    row = row_of(found, uploads)
    bad = row.state not in (DONE, "cancelled", "expired", *ACTIVE) and found.get("error")
    return ModelPage(
        row=row,
        sentence=wording.sentence(row.architecture, row.container, row.era, row.types, 0, row.bytes_in),
        output=", ".join(found.get("outputs") or ()) or found.get("output") or "",
        problem=problem_of(found["error"]) if bad and not found.get("same_as") else None,
        attempts=tuple(map(_attempt, found.get("tried", ()))),
        same_as=str(found.get("entry", {}).get("same_as") or ""),
        same_job=str(found.get("same_as") or ""),
        can_retry=row.state in ("cancelled", "expired", FAILED, QUARANTINED)
        and found.get("entry", {}).get("verdict", CONVERT) == CONVERT
        and "edit_of" not in found.get("entry", {}),
        can_cancel=row.state in ACTIVE,
        is_looked_at=False,
        form=_form(found, uploads),
    )


def _form(found: Mapping[str, Any], uploads: str) -> OptionForm | None:
    """Return the form with the options of a model, and with those that its error asks for."""
    entry = found.get("entry") or {}
    if "edit_of" in entry:
        return None
    hint = str((found.get("error") or {}).get("hint") or "")
    return form_of(entry.get("recipe") or {}, source_named(str(found["source"]), uploads), hint, uploads)


def problem_of(error: Mapping[str, Any], status: int | None = None) -> Problem:
    """Return an error, as `GgferryError.as_dict` describes it, as a person reads it."""
    names = ("path", "found", "expected", "hint")
    texts = {name: None if error.get(name) is None else str(error[name]) for name in names}
    offset = error.get("offset")
    return Problem(
        str(error.get("message") or error.get("detail") or "something went wrong"),
        str(error.get("code") or error.get("class") or ""),
        offset=offset if isinstance(offset, int) else None,
        fault=str(error.get("fault") or "person"),
        status=status,
        **texts,
    )


def _attempt(tried: Mapping[str, Any]) -> Attempt:
    message = str((tried.get("error") or {}).get("message") or "")
    return Attempt(int(tried["attempt"]), tried.get("outcome") or "", tried["started"], tried["ended"], message)


# --- of a receipt --------------------------------------------------------------------------------------------------


def with_receipt(page: ModelPage, found: KeptReceipts, files: str) -> ModelPage:
    """Return the page of a done job from its receipt as the ledger keeps it.

    `files` is the address below which its files are fetched. Of several outputs tensors and proof are the first's.
    """
    receipt, *further = receipts_of(found)
    folder = str(receipt["to"]) if is_folder(receipt) else ""
    tensors = tuple(map(_of_folder if folder else _of_receipt, receipt["tensors"]))
    source = receipt["source"]
    container = label_of(source["container"]) + ("" if source["version"] is None else f" v{source['version']}")
    weights = sum(math.prod(tensor.shape) for tensor in tensors)
    facts = (receipt["architecture"], container, source["era"] or "", source["types"], weights, page.row.bytes_in)
    return replace(
        page,
        sentence=wording.sentence(*facts),
        header=_facts(source.get("header", {})),
        hparams=tuple(_hparam(name, each["value"], each["origin"]) for name, each in receipt["hparams"].items()),
        keys=tuple(Fact(key, "", origin) for key, origin in receipt.get("metadata", {}).items()),
        tensors=tensors,
        dropped=_drops(receipt.get("dropped", ())),
        notes=tuple(receipt["notes"]),
        proof=_proof(receipt, tensors),
        files=tuple(
            Output(each["name"], each["bytes"], "", each["blake3"], f"{files}/{wording.segment(each['name'])}")
            for each in files_kept(found)
        ),
        archive=f"{files.removesuffix('/files')}/archive" if folder else "",
        can_edit=receipt.get("to", GGUF) == GGUF,
        ratings=tuple(rating_of(each, each["output"]["files"][0]["name"]) for each in (receipt, *further))
        if further
        else (),
        runtimes=(_LOADS[folder],) if folder else tuple(receipt["runtimes"]["run_it"]),
        has_vocabulary=bool(receipt["tokenizer"].get("texts"))
        if folder
        else any(key.startswith("tokenizer.ggml.tokens") for key in receipt["metadata"]),
        is_looked_at=True,
    )


def _hparam(name: str, value: Any, origin: str) -> Fact:
    return Fact(name, shown(value), origin, is_assumed(origin))


def _of_receipt(record: TensorRecord) -> TensorRow:
    shape = tuple(record["shape"])
    return TensorRow(
        record["name"],
        tuple(record["from"]),
        shape,
        record["source_type"],
        record["type"],
        bytes_of(record["source_type"], shape),
        record["bytes"],
        record["grade"],
        record["route"],
        record.get("why") or "",
        record.get("relative_rms"),
        record.get("max_error"),
        bool(record.get("outlier")),
    )


def _of_folder(record: Mapping[str, Any]) -> TensorRow:
    types = dict.fromkeys(name for part in record["of"] for name in part["types"])
    return TensorRow(
        record["name"],
        tuple(str(part["name"]) for part in record["of"]),
        tuple(record["shape"]),
        ", ".join(types),
        record["type"],
        grade=grade_of(record),
        why=str(record.get("packed") or ""),
        max_error=record.get("max_error"),
    )


def bytes_of(kind: str, shape: Sequence[int]) -> int | None:
    """Return the bytes that a tensor takes in a type; None for a type without a size of its own."""
    try:
        return block_type(kind).nbytes(tuple(shape))
    except BlockError:
        return None


def _drops(records: Iterable[DroppedRecord]) -> tuple[DroppedTensor, ...]:
    return tuple(DroppedTensor(each["name"], each["reason"], bool(each["loses"])) for each in records)


def _proof(receipt: Receipt, tensors: Sequence[TensorRow]) -> Proof:
    tokens = receipt["tokenizer"]
    logits: LogitsRecord = receipt["logits"] or {}
    found = _own(logits) if logits else []
    if deltas := receipt.get("deltas"):
        who, text = (
            f"ggferry: what {wording.count(deltas['pairs'], 'pair')} add",
            f"furthest apart in {deltas['worst']}",
        )
        found.append(Agreement(who, "products", deltas["relative_rms"], deltas["limit"], text))
    found += [_reference(each) for each in receipt["testimonies"]]
    return Proof(
        str(receipt.get("verified") or receipt["options"]["verify"]),
        tuple(found),
        logits.get("top1_agreement"),
        int(tokens.get("texts") or 0),
        int(tokens.get("equal") or 0),
        tokens.get("vocabulary"),
        Counter(tensor.grade for tensor in tensors if tensor.relative_rms is not None or is_folder(receipt)),
        tuple(logits.get("reached") or ()),
        tuple(logits.get("not_reached") or ()),
        all(each.get("why") or each.get("what") == CONVERSATIONS for each in receipt["testimonies"]),
    )


def _own(logits: LogitsRecord) -> list[Agreement]:
    """Return our own comparisons. The limit holds where no value was rounded; rounding has a cost, and no limit."""
    rows = sum(len(prompt.get("rows") or prompt["tokens"]) for prompt in logits.get("prompts") or ())
    text = f"{wording.count(rows, 'position')} of {wording.count(len(logits['prompts']), 'prompt')}" if rows else ""
    what, apart, structure = str(logits.get("what") or "logits"), logits["relative_rms"], logits.get("structure")
    if structure is None:
        return [Agreement("ggferry: source and output", what, apart, logits["limit"], text)]
    return [
        Agreement(
            "ggferry: structure",
            what,
            structure,
            logits["limit"],
            f"the output's model over the source's values; {text}",
        ),
        Agreement("ggferry: cost of rounding", what, apart, None, f"source and output; {text}"),
    ]


def _reference(each: CrossCheckRecord) -> Agreement:
    who = f"{each['witness']} {each['version']}".strip()
    text = f"{each['count']:,} {each['what']}, against the {each['side']}"
    if each.get("place"):
        text += f"; furthest apart at {each['place']}"
    return Agreement(who, each["what"], each["worst"], each["limit"], text, each.get("why") or "")


# --- of what workers read ------------------------------------------------------------------------------------------


def with_inspection(page: ModelPage, facts: Mapping[str, Any]) -> ModelPage:
    """Return the page with what `functions.inspection` found."""
    tensors = tuple(
        TensorRow(name, (name,), tuple(each["shape"]), each["type"], bytes_in=each["bytes"])
        for name, each in facts["tensors"].items()
    )
    weights = sum(math.prod(tensor.shape) for tensor in tensors)
    row = page.row
    described = (
        facts["architecture"] or row.architecture,
        row.container,
        facts["era"] or "",
        row.types,
        weights,
        row.bytes_in,
    )
    return replace(
        page,
        sentence=wording.sentence(*described),
        header=_facts(facts["header"] or facts["metadata"]),
        tensors=tensors,
        dropped=_drops(facts["dropped"]),
        notes=tuple(facts["notes"]),
        runtimes=tuple(facts["runtimes"]),
        has_vocabulary=True,
        is_looked_at=True,
    )


def unread(page: ModelPage, problem: Problem | None) -> ModelPage:
    """Return the page with the reason why nothing, or no more, could be read; None where the page says it already."""
    return replace(page, facts_problem=problem, is_looked_at=True)


def with_plan(page: ModelPage, plan: Mapping[str, Any]) -> ModelPage:
    """Return the page with what `functions.conversion_plan` would make of the model."""
    prefix = f"{plan['architecture']}."
    keys = tuple(Fact(key, shown(each["value"]), each["origin"]) for key, each in plan["keys"].items())
    hparams = [
        replace(fact, name=fact.name.removeprefix(prefix), assumed=is_assumed(fact.origin))
        for fact in keys
        if fact.name.startswith(prefix)
    ]
    seen = {fact.origin for fact in hparams}
    for each in plan["assumed"]:
        origin = Param(None, each["reason"], Known.ASSUMED).origin
        hparams += [] if origin in seen else [Fact(each["name"], shown(each["value"]), origin, True)]
    return replace(
        page,
        hparams=tuple(hparams),
        keys=keys,
        tensors=tuple(map(planned_tensor, plan["tensors"])),
        dropped=_drops(plan["dropped"]),
        notes=tuple(plan["notes"]),
    )


def planned_tensor(each: Mapping[str, Any]) -> TensorRow:
    """Return a tensor of a plan."""
    shape = tuple(each["shape"])
    return TensorRow(
        each["name"],
        tuple(each["sources"]),
        shape,
        each["source_type"],
        each["type"],
        bytes_of(each["source_type"], shape),
        each["bytes"],
        each["grade"],
        each["route"],
        each["why"],
    )


def _facts(found: Mapping[str, Any]) -> tuple[Fact, ...]:
    return tuple(Fact(str(key), shown(value)) for key, value in found.items())


def shown(value: Any) -> str:
    """Return a value for people: text as it is, anything else as JSON on one line, long ones cut."""
    if isinstance(value, dict) and value.keys() == {"length", "first"}:  # a long list, as `workers.questions` cuts it
        value = f"{value['length']:,} values: {', '.join(map(shown, value['first']))} …"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= LONGEST else text[:LONGEST] + "…"


def with_tensors(page: ModelPage, text: str, number: int) -> ModelPage:
    """Return the page with the tensors that its table shows."""
    words = text.lower().split()
    found = (
        [tensor for tensor in page.tensors if all(word in tensor.name.lower() for word in words)]
        if words
        else page.tensors
    )
    pages = max(1, -(-len(found) // PER_PAGE))
    number = min(number, pages)
    rows = tuple(found[(number - 1) * PER_PAGE : number * PER_PAGE])
    return replace(page, shown=TensorPage(rows, len(found), number, pages, text))
