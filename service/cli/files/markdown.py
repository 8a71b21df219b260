"""What `inspect --markdown` prints: the metadata and the tensors as Markdown tables, as gguf-dump --markdown does."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ggferry.support.printable import printable

LONGEST = 80  # characters of a value, and of a text in a list


def lines(facts: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield the document. `facts`: of `describe`; `path`: of the file, for its title."""
    yield f"# {_cell(os.path.basename(path))}"
    yield ""
    version = f" v{facts['version']}" if facts["version"] is not None else ""
    yield f"{facts['container']}{version}, {len(facts['tensors'])} tensors, {len(facts['metadata'])} keys"
    yield ""
    yield "## Metadata"
    yield ""
    keys = ((key, _type(value), _value(value)) for key, value in facts["metadata"].items())
    yield from _table(("key", "type", "value"), keys)
    yield ""
    yield "## Tensors"
    yield ""
    rows = (
        (each["name"], each["type"], " × ".join(map(str, each["shape"])), f"{each['bytes']:,}")
        for each in facts["tensors"]
    )
    yield from _table(("name", "type", "shape", "bytes"), rows)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(map(_cell, row))} |"


def _type(value: Any) -> str:
    if not isinstance(value, Mapping):
        return type(value).__name__
    if "items" in value:
        return f"{value['items']}[{value['length']:,}]"
    return str(value.get("type", "object"))


def _value(value: Any) -> str:
    held = value["value"] if isinstance(value, Mapping) and "value" in value else value
    text = held if isinstance(held, str) else json.dumps(held, ensure_ascii=False)
    cut = isinstance(value, Mapping) and "items" in value and len(held or ()) < value["length"]
    return text[:LONGEST] + ("…" if cut or len(text) > LONGEST else "")


def _cell(text: str) -> str:
    """Return a text that neither ends a cell nor is taken for markup."""
    escaped = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|").replace("`", "\\`")
    return escaped.replace("*", "\\*").replace("[", "\\[").replace("\n", " ")
