"""Names from stores as names that a folder of this machine can hold."""

from __future__ import annotations

import os

from ggferry.formats.files.partial_names import NAME_MAX


def safe_name(name: str) -> str:
    """Return a name from a store as one that a folder of this machine can hold.

    It is unchanged wherever possible; else what can be kept of it, and a mark.
    """
    if name not in ("", ".", "..") and "\0" not in name and len(os.fsencode(name)) <= NAME_MAX:
        return name
    stem, suffix = os.path.splitext(name.replace("\0", ""))
    kept = os.fsencode(stem)[: NAME_MAX // 2].decode("utf-8", "ignore").strip(".")
    return kept + mark_of(name) + (suffix if len(os.fsencode(suffix)) < NAME_MAX // 4 else "")


def mark_of(text: str) -> str:
    """Return a short name that only this text has."""
    from blake3 import blake3

    return f"~{blake3(text.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"
