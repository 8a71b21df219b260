"""Where Ollama keeps models: `manifests/HOST/NAMESPACE/MODEL/TAG`, and `blobs/sha256-…` that they name.

The folder is `$OLLAMA_MODELS`, else `~/.ollama/models`, or that of the service's own user (ollama fb3076099,
envconfig/config.go; scripts/install.sh).
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator

from ggferry.formats.errors import NotFoundError
from ggferry.formats.ollama.names import ModelName, name_of_place

VARIABLE = "OLLAMA_MODELS"
_OF_THE_SERVICE = "/usr/share/ollama/.ollama/models"
MANIFESTS, BLOBS = "manifests", "blobs"


def default_store() -> str:
    """Return the folder in which Ollama keeps models on this machine; it need not exist."""
    if named := os.environ.get(VARIABLE):
        return named
    home = os.path.join(os.path.expanduser("~"), ".ollama", "models")
    return _OF_THE_SERVICE if not is_store(home) and is_store(_OF_THE_SERVICE) else home


def is_store(folder: str) -> bool:
    """Return whether a folder is a store."""
    return all(os.path.isdir(os.path.join(folder, name)) for name in (MANIFESTS, BLOBS))


def located(path: str) -> tuple[str, ModelName] | None:
    """Return the store that the manifest at `path` belongs to, and the name it has there; None elsewhere."""
    whole = os.path.abspath(path)
    head = whole
    parts: list[str] = []
    for _ in range(4):
        head, last = os.path.split(head)
        parts.insert(0, last)
    store, name = os.path.dirname(head), name_of_place(parts)
    if name is None or os.path.basename(head) != MANIFESTS or not is_store(store):
        return None
    return store, name


def manifests(store: str) -> Iterator[tuple[ModelName, str]]:
    """Yield every model of a store by name, with the path of its manifest."""
    top = os.path.join(store, MANIFESTS)
    for place, folders, files in os.walk(top):
        folders.sort()
        inner = os.path.relpath(place, top)
        if inner.count(os.sep) == 2:
            folders.clear()
            for file in sorted(files):
                if (name := name_of_place([*inner.split(os.sep), file])) is not None:
                    yield name, os.path.join(place, file)


def find_manifest(name: ModelName, store: str | None = None) -> str:
    """Return the path of a model's manifest. Raises NotFoundError, with the nearest names."""
    store = store or default_store()
    path = os.path.join(store, MANIFESTS, name.place)
    if os.path.isfile(path):
        return path
    if not is_store(store):
        raise NotFoundError("no store of Ollama's", path=store, hint=f"{VARIABLE} names another")
    known = [str(each) for each, _ in manifests(store)]
    near = difflib.get_close_matches(str(name), known, 3, 0.4) or known[:3]
    raise NotFoundError(
        "no such model in Ollama's store", path=store, found=str(name), expected=", ".join(near) or None
    )
