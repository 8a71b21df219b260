"""The files of an upload by name: which names are taken, and what is shown of each."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ggferry.formats.errors import UsageError
from ggferry.formats.files.partial_names import NAME_MAX
from ggferry.formats.json_files.kinds import JSONObject

MOST_FILES, DEEPEST = 1000, 8


def check_names(names: Sequence[str]) -> None:
    """Raise UsageError for what is not the relative path of a file, or given twice."""
    if not names or len(names) > MOST_FILES:
        raise UsageError("the files of an upload", found=len(names), expected=f"1 to {MOST_FILES}")
    taken: set[str] = set()
    for name in names:
        parts = name.split("/")
        bad = len(parts) > DEEPEST or any(not _is_name(part) for part in parts)
        above = {"/".join(parts[:n]) for n in range(1, len(parts))}
        if bad or name in taken or above & set(names):
            raise UsageError("the name of a file", found=name[:200], expected="a relative path that no other file has")
        taken.add(name)


def _is_name(part: str) -> bool:
    fits = 0 < len(part.encode("utf-8", "surrogatepass")) <= NAME_MAX - 64
    return fits and not part.startswith(".") and part.isprintable() and "\\" not in part


def name_of(files: Sequence[Mapping[str, Any]]) -> str:
    """Return what an upload is called: its file, its folder, or the first of several files."""
    names = [str(each["name"]) for each in files]
    tops = {name.partition("/")[0] for name in names}
    if len(tops) == 1:
        return tops.pop()
    return f"{names[0]} and {len(names) - 1} more"


def shown(file: Mapping[str, Any], row: Mapping[str, Any] | None) -> JSONObject:
    """Return a file of an upload: `sha256` is of what was received, `announced` what its sender said of the whole."""
    found: JSONObject = {"name": file["name"], "bytes": file["bytes"], "offset": row["offset"] if row else 0}
    if file.get("sha256"):
        found["announced"] = file["sha256"]
    if not found["offset"]:
        return {**found, "sha256": hashlib.sha256().hexdigest()}
    return {**found, "sha256": row["sha256"]} if row and row["sha256"] else found


def listed(each: Mapping[str, Any]) -> JSONObject:
    """Return a file that is announced as the ledger keeps it."""
    digest = each.get("sha256")
    return {"name": str(each["name"]), "bytes": int(each["bytes"]), **({"sha256": digest.lower()} if digest else {})}


def below(path: Any, folder: str) -> Any:
    """Return a path in a folder without the folder, anything else as it is."""
    return os.path.relpath(path, folder) if isinstance(path, str) and path.startswith(folder + os.sep) else path
