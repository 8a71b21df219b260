"""The files that the options of a plan name: they decide what a conversion makes, as the model's own files do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from ggferry.formats.errors import UsageError
from ggferry.service.records.option_paths import files_named, urls_named
from ggferry.service.storage import stores
from ggferry.service.storage.mirror import Mirror
from ggferry.service.storage.stores import Found

MOST_BESIDE = 64  # files of stores that options name


def staged_options(options: Mapping[str, Any], mirror: Mirror) -> tuple[Found, ...]:
    """Return the files of stores that options name, put into the mirror."""
    found = [each for url in urls_named(options) for each in islice(stores.listing(url), MOST_BESIDE + 1)]
    if len(found) > MOST_BESIDE:
        raise UsageError("the files that options name", found=f"over {MOST_BESIDE}", expected=f"{MOST_BESIDE} at most")
    mirror.stage(found, beside=True)
    return tuple(found)


def further_files(options: Mapping[str, Any], known: Sequence[str]) -> list[str]:
    """Return the files that a line's options name, without those that are its own."""
    return [path for path in files_named(options) if path not in known]
