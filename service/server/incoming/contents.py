"""What an upload may hold, as a plan of it shows."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ggferry.formats.errors import UsageError
from ggferry.service.records.plan_file import ARCHIVE, BAD, CONVERT, DUPLICATE, SKIP, Entry


def check_models(entries: Sequence[Entry]) -> None:
    """Raise the first error of files that are broken, or UsageError where none is a model."""
    from ggferry.service.storage.broker import revive

    for entry in entries:
        if entry.verdict in (*BAD, ARCHIVE):
            name = os.path.basename(entry.source)
            raise revive(entry.error, name) if entry.error else UsageError(entry.reason or entry.verdict, path=name)
    if not any(entry.verdict in (CONVERT, SKIP, DUPLICATE) for entry in entries):
        raise UsageError("there is no model in it", hint="a model's weights, with the files that stand beside them")
