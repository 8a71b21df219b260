"""Jan's models: folders with files and a model.yml (janhq/jan, extensions/llamacpp-extension/src/index.ts)."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ggferry.formats.errors import UsageError, of_os
from ggferry.formats.files.local_files import Named, read_text
from ggferry.formats.files.partial_files import exists_already, write_text
from ggferry.support.platform import here

if TYPE_CHECKING:
    from ggferry.converters.conversion.run import Result

SCHEME = "jan://"
RECORD = "model.yml"
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}")
_SETTINGS = (("jan.ai.app", "settings.json"), ("Jan", "settings.json"))
"""Where Jan says that its folder was moved, below the folder of applications' data (core/app/commands.rs)."""


class JanDestination:
    """A model of Jan's to be: model.yml comes last, and makes the folder a model."""

    def __init__(self, address: str, *, force: bool = False) -> None:
        """Take a name such as `jan://me/model-Q4_K_M`. Raises UsageError for another form, RefusedError where taken."""
        parts = address.removeprefix(SCHEME).strip("/").split("/")
        if len(parts) > 3 or not all(_PART.fullmatch(part) for part in parts):
            raise UsageError(
                "not the name of a model of Jan's", found=address, expected=f"{SCHEME}NAME or {SCHEME}ME/NAME"
            )
        self.name = "/".join(parts)
        self.data, self.force = data_folder(), force
        self.out: str | None = os.path.join(self.data, "llamacpp", "models", *parts)
        self.record = os.path.join(self.out, RECORD)
        if os.path.lexists(self.record) and not force:
            raise exists_already(f"{SCHEME}{self.name}")
        try:
            os.makedirs(self.out, exist_ok=True)
        except OSError as error:
            raise of_os(error, "cannot be written", self.out) from None

    def publish(self, results: Sequence[Result]) -> list[str]:
        """Write model.yml beside the proved outputs. Raises GgferryError where that fails."""
        record = json.dumps(record_of(self.name, self.data, results), indent=2)  # JSON is YAML
        write_text(self.record, [record], overwrite=self.force)
        return [f"stored   {SCHEME}{self.name} in {self.data}"]


def record_of(name: str, data: str, results: Sequence[Result]) -> dict[str, Any]:
    """Return what model.yml holds: paths below Jan's folder, and the bytes of all files.

    Of several shards the first is named. SHA-256 digests, which Jan records of what it fetched itself, are left out.
    """
    found: dict[str, Any] = {"name": name, "size_bytes": 0}
    for result in results:
        half, files = "mmproj" if result.kind == "mmproj" else "model", result.receipt["output"]["files"]
        found[f"{half}_path"] = os.path.relpath(result.path, data).replace(os.sep, "/")
        found["size_bytes"] += sum(file["bytes"] for file in files)
    return found


def data_folder() -> str:
    """Return Jan's own folder on this machine; it need not exist."""
    home = os.path.expanduser("~")
    places = {
        "Windows": os.environ.get("APPDATA") or os.path.join(home, "AppData", "Roaming"),
        "macOS": os.path.join(home, "Library", "Application Support"),
    }
    base = places.get(here.NAME) or os.environ.get("XDG_DATA_HOME") or os.path.join(home, ".local", "share")
    old = base if here.NAME in places else os.environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    for folder, parts in zip((base, old), _SETTINGS, strict=True):
        path = os.path.join(folder, *parts)
        if os.path.isfile(path) and (moved := _moved(path)):
            return moved
    return os.path.join(base, "Jan", "data")


def _moved(path: str) -> str | None:
    try:
        found = json.loads(read_text(Named(path)))
    except ValueError:
        return None
    folder = found.get("data_folder") if isinstance(found, dict) else None
    return folder if isinstance(folder, str) and folder else None
