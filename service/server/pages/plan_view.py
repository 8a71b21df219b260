"""A plan as a view: what is there, and what would be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ggferry.converters.conversion.options import is_sized
from ggferry.converters.conversion.request import GGUF
from ggferry.service.library.answers import DroppedTensor
from ggferry.service.records.plan_file import CONVERT, OTHER, outputs_of, sizes_of
from ggferry.service.server.pages.archive_view import container_of, place_of
from ggferry.service.server.pages.model_view import problem_of
from ggferry.service.server.pages.option_form import FORMAT_NAMES, form_of
from ggferry.service.server.pages.plan_pages import PlannedModel, PlannedOutput, PlanPage
from ggferry.service.server.pages.views import PER_PAGE

LOST_SHOWN = 20
CHOSEN = "types for a size"


def page_of(
    found: Mapping[str, Any], lines: Sequence[Mapping[str, Any]], verdict: str, page: int, uploads: str = ""
) -> PlanPage:
    """Return a page of a plan, as `functions.show_plan` and `functions.plan_lines` describe it.

    `uploads` is the folder of what people sent.
    """
    models = [line for line in lines if line["verdict"] != OTHER and verdict in ("", line["verdict"])]
    facts, options = found.get("summary") or {}, found.get("options") or {}
    outtype = str(options.get("outtype", "keep"))
    some = models[(page - 1) * PER_PAGE : page * PER_PAGE]
    state = {"planning": "making", "failed": ""}.get(found["state"], "submitted" if found.get("submitted") else "")
    return PlanPage(
        id=found["id"],
        roots=(str(found["source"]),),
        outtype=CHOSEN if is_sized(options) else outtype,
        verify=str(options.get("verify", "full")),
        counts={name: n for name, n in (facts.get("verdicts") or {}).items() if name != OTHER},
        bytes_in=int(facts.get("bytes_in") or 0),
        bytes_out=int(facts.get("bytes_out") or 0),
        memory=int(facts.get("memory") or 0),
        models=tuple(planned(line, outtype, found["id"], uploads) for line in some),
        verdict=verdict,
        total=len(models),
        page=page,
        state=state,
        problem=problem_of(found["error"]) if found.get("error") else None,
        form=form_of(options, str(found["source"]), _hint(found, lines), uploads),
        ladder=tuple((facts.get("bytes_of_types") or {}).items()),
    )


def _hint(found: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the ways out that the errors of a plan name, where it converts nothing; else the models' pages do."""
    if any(line["verdict"] == CONVERT for line in lines):
        return ""
    errors = [found.get("error"), *(line.get("error") for line in lines)]
    return "; ".join(dict.fromkeys(str(error["hint"]) for error in errors if error and error.get("hint")))


def planned(line: Mapping[str, Any], outtype: str, plan: str = "", uploads: str = "") -> PlannedModel:
    """Return a line of a plan; `outtype` is the plan's, where the line states none.

    Of the server's own folders, those of the plan's outputs and of uploads, people see what is in them.
    """
    converts = line["verdict"] == CONVERT
    before = [container_of(line), line.get("architecture"), line.get("types"), line.get("era")]
    outtype_ = str((line.get("options") or {}).get("outtype", outtype))
    sized = is_sized(line.get("options") or {})
    sizes = [max(0, size) for size in sizes_of({**line, "bytes_out": line.get("bytes_out") or 0})]
    planned_outputs = [
        PlannedOutput(_inside(output, plan), _after(line, kind, sized), size)
        for output, kind, size in zip(outputs_of(line), outtype_.split(","), sizes, strict=False)
    ]
    lost = [
        DroppedTensor(str(each.get("name") or each.get("tensors") or ""), str(each.get("reason") or ""), True)
        for each in line.get("lost", ())[:LOST_SHOWN]
    ]
    return PlannedModel(
        source=place_of(line["source"], uploads) or line["source"],
        verdict=line["verdict"],
        before=", ".join(filter(None, before)),
        after=_after(line, outtype_.split(",")[0], sized) if converts else "",
        bytes_in=int(line.get("bytes_in") or 0),
        bytes_out=sizes[0],
        output=_inside(line.get("output") or "", plan),
        further=tuple(planned_outputs[1:]) if converts else (),
        reason=_reason(line),
        grades=dict(line.get("grades") or {}),
        lost=tuple(lost),
        notes=tuple(line.get("notes") or ()),
        problem=problem_of(line["error"]) if line.get("error") else None,
        id=line["id"] if converts and not sized else "",
    )


def _inside(output: str, plan: str) -> str:
    """Return where an output goes in the folder of a plan; the whole path of one that goes elsewhere."""
    return output.rpartition(f"/{plan}/")[2] if plan else output


def _after(line: Mapping[str, Any], outtype: str, sized: bool) -> str:
    """Return what an output of this type would be; `sized`: of types that a size leads to."""
    options = line.get("options") or {}
    to, plain = str(options.get("to") or GGUF), options.get("dtype")
    kind = CHOSEN if sized else "types kept" if outtype == "keep" and not plain else str(plain or outtype).upper()
    name = f"{FORMAT_NAMES[to]} v3" if to == GGUF else FORMAT_NAMES[to]
    return ", ".join(filter(None, (name, line.get("architecture"), kind)))


def _reason(line: Mapping[str, Any]) -> str:
    if line.get("same_as"):
        return f"the same content as {line['same_as']}"
    return "" if line.get("error") else str(line.get("reason") or "")
