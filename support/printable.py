"""The one way in which text of a stranger reaches a terminal, a log or a page: file names, tensor names, metadata.

A file name may hold escape codes that repaint the screen, a newline behind which it forges a line of ours, or marks
that turn the reading order. What is not plainly printable is written as Python would escape it.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any

_BEYOND_ASCII = re.compile(r"[^\n -~]")


def printable(value: object, limit: int | None = None) -> str:
    """`value` as one line of at most `limit` characters: controls (C0, C1, newlines), marks of direction, half
    surrogates (bytes of a file name that are not UTF-8), private and unassigned characters escaped, the rest as it is.
    Paths and other texts as they stand, anything else as its repr."""
    text = str(os.fspath(value)) if isinstance(value, str | os.PathLike) else repr(value)
    if limit is not None and len(text) > limit:
        text = text[:limit] + "…"
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    return text if limit is None or len(text) <= limit else text[: limit - 1] + "…"


def printable_json(value: object, **form: Any) -> str:
    """JSON in which letters of all scripts stand as they are and what is not printable as escapes of JSON: the same
    value, safe to look at. `form`: of `json.dumps`."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, **form)
    return _BEYOND_ASCII.sub(lambda found: found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1], text)
