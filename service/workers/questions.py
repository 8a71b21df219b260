"""Questions about one model, answered by the library's functions as plain data that a page or a program can show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.formats.errors import UsageError
from ggferry.service.library.conversions import plan
from ggferry.service.library.models import open_model
from ggferry.service.operations.compare import on_text
from ggferry.service.operations.diff import DiffRequest, compare
from ggferry.service.operations.edit import EditRequest
from ggferry.service.operations.edit import run as edit
from ggferry.service.operations.inspect import InspectRequest
from ggferry.service.operations.inspect import run as inspect

MOST_ITEMS, MOST_TEXT = 64, 4000  # of a list of the file's metadata, of a text
MOST_TOKENS = 10_000


def answer(question: str, source: str, options: Mapping[str, Any]) -> Any:
    """Return the answer to one of QUESTIONS about the model at `source`. Raises GgferryError."""
    inspector = QUESTIONS.get(question)
    if inspector is None:
        raise UsageError("question", found=question, expected=", ".join(QUESTIONS))
    return inspector(source, dict(options))


def _inspect(source: str, options: Mapping[str, Any]) -> Any:
    found = plain(inspect(InspectRequest(source, **options)))
    found["metadata"] = {key: _short(value) for key, value in found["metadata"].items()}
    found["header"] = {key: _short(value) for key, value in found["header"].items()}
    return found


def _plan(source: str, options: Mapping[str, Any]) -> Any:
    found = plain(plan(source, **options))
    for each in (found, *found["further"]):
        for key in each["keys"].values():
            key["value"] = _short(key["value"])
    return found


def _tokenize(source: str, options: Mapping[str, Any]) -> Any:
    text = str(options["text"])
    with open_model(source) as model:
        ids = model.tokenize(text, special=bool(options.get("special")))
        pieces = model.pieces(ids[:MOST_TOKENS])
    return [{"id": each, "piece": piece} for each, piece in zip(ids[:MOST_TOKENS], pieces, strict=True)]


def _edit(source: str, options: Mapping[str, Any]) -> Any:
    return plain(edit(EditRequest(source, **options)))


def _diff(source: str, options: Mapping[str, Any]) -> Any:
    found = compare(DiffRequest(source, **options))
    return {**plain(found.difference), "by_roles": found.by_roles, "differs": found.difference.differs}


def _histogram(source: str, options: Mapping[str, Any]) -> Any:
    from ggferry.converters.analysis.differences.histogram import histogram

    checkpoint = open_checkpoint(source, options.get("arch"))
    try:
        return plain(histogram(checkpoint, str(options["tensor"])))
    finally:
        checkpoint.close()


def _quality(source: str, options: Mapping[str, Any]) -> Any:
    from ggferry.converters.understand import graph_of

    base = graph_of(source, options.get("hparams"), options.get("arch"))
    try:
        other = graph_of(str(options["second"]))
        try:
            given = {name: options[name] for name in ("context", "chunks", "jobs")}
            return plain(on_text(base, other, str(options["text"]), **given))
        finally:
            other.checkpoint.close()
    finally:
        base.checkpoint.close()


def _like(source: str, options: Mapping[str, Any]) -> Any:
    from ggferry.converters.conversion.like import recipe_like

    return recipe_like(source).splitlines()


QUESTIONS = {
    "like": _like,
    "quality": _quality,
    "inspect": _inspect,
    "plan": _plan,
    "tokenize": _tokenize,
    "edit": _edit,
    "diff": _diff,
    "histogram": _histogram,
}


def _short(value: Any) -> Any:
    """Return a long list by its length and beginning, a long text by its beginning."""
    if isinstance(value, list) and len(value) > MOST_ITEMS:
        return {"length": len(value), "first": [_short(item) for item in value[:MOST_ITEMS]]}
    if isinstance(value, str) and len(value) > MOST_TEXT:
        return value[:MOST_TEXT] + "…"
    return {key: _short(item) for key, item in value.items()} if isinstance(value, dict) else value


def plain(value: Any) -> Any:
    """Return a record of the library as plain data: what JSON cannot hold becomes text."""
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {_text(key): plain(item) for key, item in value.items()}
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [plain(item) for item in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return str(value)
    return value if value is None or isinstance(value, int | float) else str(value)


def _text(value: Any) -> str:
    return str(value).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
