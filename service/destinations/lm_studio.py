"""LM Studio's folder of models: `models/PUBLISHER/MODEL/FILE.gguf` (lmstudio.ai/docs/app/advanced/import-model)."""

from __future__ import annotations

import os
import re

from ggferry.formats.errors import UsageError
from ggferry.formats.files.local_files import Named, read_text

POINTER = ".lmstudio-home-pointer"
"""Names LM Studio's home where a person has moved it."""
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}")


def folder_of(name: str) -> str:
    """Return the folder of PUBLISHER/MODEL, which is made. Raises UsageError for another form of a name."""
    parts = name.strip("/").split("/")
    if len(parts) != 2 or not all(_PART.fullmatch(part) for part in parts):
        raise UsageError("not a model of LM Studio's", found=name, expected="lmstudio://PUBLISHER/MODEL")
    folder = os.path.join(home(), "models", *parts)
    os.makedirs(folder, exist_ok=True)
    return folder


def home() -> str:
    """Return LM Studio's own folder on this machine; it need not exist."""
    user = os.path.expanduser("~")
    pointer = os.path.join(user, POINTER)
    if os.path.isfile(pointer) and (moved := read_text(Named(pointer)).strip()):
        return moved
    return os.path.join(user, ".lmstudio")
