"""The only way for untrusted text to reach a terminal, a log or a page: file names, tensor names, metadata.

A file name may hold escape codes that repaint the screen, a line break after which it forges a line of ours, or marks
that change the reading order. What is not plainly printable is escaped as in Python.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any

_BEYOND_ASCII = re.compile(r"[^\n -~]")


def printable(value: object, limit: int | None = None) -> str:
    """Return `value` as one line of at most `limit` characters.

    Escaped are controls (C0, C1, line breaks), direction marks, lone surrogates (bytes of a file name that are not
    UTF-8), and private and unassigned characters. Paths and other texts otherwise stay as they are; anything else is
    shown by its repr.
    """
    text = str(os.fspath(value)) if isinstance(value, str | os.PathLike) else repr(value)
    if limit is not None and len(text) > limit:
        text = text[:limit] + "…"
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    return text if limit is None or len(text) <= limit else text[: limit - 1] + "…"


def printable_json(value: object, **form: Any) -> str:
    """Return JSON in which letters of all scripts stay as they are and anything not printable is escaped.

    It encodes the same value and is safe to print. `form` goes to `json.dumps`.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, **form)
    return _BEYOND_ASCII.sub(lambda found: found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1], text)
