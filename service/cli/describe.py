"""Describe a file without reading its tensor data: plain data for `--json`, and the same for a person."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import GgferryError
from ggferry.formats.files.sources import known_by
from ggferry.formats.gguf.values import Value, ValueType
from ggferry.formats.json_files.kinds import shown, strict
from ggferry.formats.limits import MAX_JSON
from ggferry.formats.reader import label_of
from ggferry.support.printable import printable

SHOWN_ITEMS = 8
SHOWN_TEXT = 200


def describe(checkpoint: Checkpoint, full: bool = False, plain: bool = True) -> dict[str, Any]:
    """Return what a file holds, as plain data.

    It contains container, family of the model and the programs that run it, header, hyper-parameters or metadata, a
    summary of the vocabulary, and the tensors with type, shape (outermost first), offset, bytes and spans.

    Args:
        checkpoint: The file.
        full: Give arrays and long texts of GGUF's metadata in full; a configuration always is.
        plain: Give the tensors as a list; otherwise they are made one by one.
    """
    tensors = Rows(checkpoint.tensors)
    return {
        "container": checkpoint.container,
        "version": checkpoint.version,
        "era": checkpoint.era,
        "layout": checkpoint.layout,
        "big_endian": checkpoint.big_endian,
        "alignment": checkpoint.alignment,
        "files": [{"path": known_by(source.path), "bytes": source.size} for source in checkpoint.files],
        "model": _model(checkpoint),
        "header": strict(dict(checkpoint.header)),
        "metadata": {key: _value(value, full) for key, value in checkpoint.metadata.items()},
        "vocabulary": _vocabulary(checkpoint),
        "tensors": list(tensors) if plain else tensors,
        "dropped": [{"name": d.ref.name, "reason": d.reason, "loses": d.loses} for d in checkpoint.dropped],
        "sidecars": {
            role: role if "/" in role else os.path.basename(path) for role, path in checkpoint.sidecars.items()
        },
        "notes": list(checkpoint.notes),
    }


def _model(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """Return the architecture, the current programs that run such a model, and what they do otherwise.

    They are known as far as header or configuration show. The result is None where no table describes the model.
    """
    from ggferry.converters.analysis.companion_file import other_half
    from ggferry.converters.model_graph.graph import runtimes_of_file
    from ggferry.converters.understand import understand

    try:
        graph = understand(checkpoint, vocab_only=True)
    except GgferryError:
        return None
    if not graph.architecture.hparams:
        return None
    other = other_half(checkpoint)
    return {
        "architecture": graph.architecture.identity,
        "runtimes": list(runtimes_of_file(graph, (ref.type for ref in checkpoint.tensors.values()))),
        "reservations": list(graph.reservations),
        **({"other_half": other} if other else {}),
    }


class Rows(Sequence[dict[str, Any]]):
    """What `describe` says about each tensor, made when it is asked for: a header may state half a million."""

    def __init__(self, tensors: Mapping[str, TensorRef]) -> None:
        self._tensors = tensors

    def __len__(self) -> int:
        return len(self._tensors)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(_tensor, self._tensors.values())

    def __getitem__(self, place: Any) -> Any:
        return list(self)[place]


def _tensor(ref: TensorRef) -> dict[str, Any]:
    return {
        "name": ref.name,
        "type": ref.type.name,
        "shape": list(ref.shape),
        "offset": ref.spans[0].offset,
        "bytes": ref.nbytes,
        "spans": [{"file": s.file, "offset": s.offset, "shape": list(s.shape)} for s in ref.spans],
    }


def _value(value: Any, full: bool) -> Any:
    if not isinstance(value, Value):
        return strict(value)
    if value.type is ValueType.STRING:
        return {"type": "string", "value": _plain(value.data if full else value.first(SHOWN_TEXT + 1), full)}
    if value.type is not ValueType.ARRAY:
        return {"type": value.type.name.lower(), "value": _plain(value.data, full)}
    items = value.data if full else value.first(SHOWN_ITEMS)
    return {
        "type": "array",
        "items": value.items.name.lower() if value.items is not None else None,
        "length": len(value),
        "value": [_value(item, full) if isinstance(item, Value) else _plain(item, full) for item in items],
    }


def _plain(item: Any, full: bool) -> Any:
    if isinstance(item, str):
        shown = item if full else item[: SHOWN_TEXT + 1]
        shown = shown.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        return shown if full or len(shown) <= SHOWN_TEXT else shown[:SHOWN_TEXT] + "…"
    return strict(item)


def _vocabulary(checkpoint: Checkpoint) -> dict[str, Any] | None:
    tokens = checkpoint.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, Value):
        model = checkpoint.metadata.get("tokenizer.ggml.model")
        count = len(tokens) if tokens.type is ValueType.ARRAY else 0
        return {"tokens": count, "model": model.data if isinstance(model, Value) else None}
    vocab = checkpoint.vocab
    if vocab is None:
        return None
    return {
        "tokens": len(vocab.tokens),
        "scores": vocab.scores is not None,
        "single_bytes": sum(len(token) == 1 for token in vocab.tokens),
        "empty": sum(not token for token in vocab.tokens),
        "not_utf8": sum(not _is_utf8(token) for token in vocab.tokens if len(token) > 1),
        "longest": max(map(len, vocab.tokens), default=0),
    }


def _is_utf8(token: bytes) -> bool:
    try:
        token.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def lines(facts: Mapping[str, Any], full: bool = False) -> Iterator[str]:
    """Yield the lines of `describe` for a person; `full`: long values in full."""
    version = "" if facts["version"] is None else f" v{facts['version']}"
    endian = ", big-endian" if facts["big_endian"] else ""
    family = facts["layout"] if facts["header"] else None
    parts = (f"{label_of(facts['container'])}{version}{endian}", family, facts["era"])
    yield ", ".join(part for part in parts if part)
    for file in facts["files"]:
        yield f"  {file['path']}  {file['bytes']:,} bytes"
    if model := facts["model"]:
        runtimes = (
            f"supported by {', '.join(model['runtimes'])} (as GGUF)"
            if model["runtimes"]
            else "no runtime is known to run it"
        )
        yield f"  {model['architecture']}: {runtimes}"
        if other := model.get("other_half"):
            what = "the text model" if other["kind"] == "text" else "the vision or audio encoder"
            where = f" in {other['file']}" if other["file"] else ", for an mmproj file"
            count = f"{other['tensors']} tensors, {other['bytes']:,} bytes"
            yield f"  {what}: {other['architecture']}, {count}{printable(where)}"
        yield from (f"  note: {text}" for text in model["reservations"])
    for note in facts["notes"]:
        yield f"  note: {note}"
    yield from metadata_lines(facts, full)
    yield from tensor_lines(facts)


def metadata_lines(facts: Mapping[str, Any], full: bool = False) -> Iterator[str]:
    """Yield the lines of header, metadata and vocabulary."""
    yield from _table("header", ((key, _json(value, full)) for key, value in _header(facts["header"])))
    short = _short if facts["container"] == "gguf" else lambda value: _json(value, full)
    yield from _table("metadata", ((key, short(value)) for key, value in facts["metadata"].items()))
    if facts["vocabulary"]:
        yield from _table("vocabulary", facts["vocabulary"].items())


def _header(header: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the fields; those of a part by themselves, but not what an index or a table of free texts has."""
    for key, value in header.items():
        if not isinstance(value, dict):
            yield key, value
        elif key not in ("index", "metadata"):
            yield from value.items()


def tensor_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the tensors, and of what is not copied."""
    tensors, width, nbytes = facts["tensors"], 0, 0
    for t in tensors:
        width, nbytes = max(width, len(printable(t["name"]))), nbytes + t["bytes"]
    yield f"{len(tensors)} tensors, {nbytes:,} bytes"
    for t in tensors:
        shape = "×".join(map(str, t["shape"]))
        parts = f"  in {len(t['spans'])} parts" if len(t["spans"]) > 1 else ""
        at = f"{t['offset']:#012x}  {t['bytes']:>14,}{parts}"
        yield f"  {printable(t['name']):<{width}}  {t['type']:<8}  {shape:<14}  {at}"
    for drop in facts["dropped"]:
        yield f"  not copied: {drop['name']} ({drop['reason']})"


def _table(title: str, items: Any) -> Iterator[str]:
    rows = [(printable(str(key)), printable(str(value))) for key, value in items]
    if rows:
        yield title
        width = max(len(key) for key, _ in rows)
        yield from (f"  {key:<{width}}  {value}" for key, value in rows)


def _json(value: Any, full: bool) -> str:
    """Return a value of a configuration: text as it is, anything else as JSON on one line."""
    if isinstance(value, str):
        return value if full or len(value) <= SHOWN_TEXT else value[:SHOWN_TEXT] + "…"
    return shown(value, MAX_JSON if full else SHOWN_TEXT)


def _short(value: Mapping[str, Any]) -> str:
    """Return a value of GGUF's metadata, as `_value` describes it."""
    if value["type"] == "array":
        more = " …" if value["length"] > len(value["value"]) else ""
        return f"{value['items']}[{value['length']}] {value['value']}{more}"
    return f"{value['value']}"
