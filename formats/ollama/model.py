"""Models of Ollama's: a manifest, or a store with a single model, stands for the GGUF file among its blobs.

What Ollama keeps beside the weights (template, system prompt, parameters, licenses, messages) becomes keys that begin
with `ollama.`; a projector is the model's mmproj file. Nothing goes by a file's name but its place in the store.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import CorruptError, NotFoundError, UsageError
from ggferry.formats.files.sources import Source, open_source
from ggferry.formats.gguf.values import Value, ValueType, array, string
from ggferry.formats.ollama.manifest import (
    ADAPTER,
    DRAFT,
    LICENSE,
    MESSAGES,
    PARAMS,
    PROJECTOR,
    PROMPT,
    SYSTEM,
    TEMPLATE,
    Manifest,
    model_layer,
    read_manifest,
)
from ggferry.formats.ollama.names import ModelName
from ggferry.formats.ollama.store import located, manifests

PREFIX = "ollama."
NAME_KEY = PREFIX + "name"
_TEXTS = (TEMPLATE, SYSTEM, PARAMS, MESSAGES)


def open_model(path: str, parse: Callable[[Source], Checkpoint]) -> Checkpoint:
    """Open the GGUF file that the manifest at `path` names, or the only manifest of the store at `path`.

    `parse` reads the file. Raises NotFoundError where a blob is missing, CorruptError where it has another size, and
    what `parse` raises.
    """
    if os.path.isdir(path):
        path = _only_manifest(path)
    place = located(path)
    if place is None:
        expected = "STORE/manifests/HOST/NAMESPACE/MODEL/TAG, beside STORE/blobs"
        raise NotFoundError("manifest is not in a store of Ollama's", path=path, expected=expected)
    store, name = place
    manifest = read_manifest(path)
    layer = model_layer(manifest)
    source = open_source(layer.path(store), store)
    if source.size != layer.nbytes:
        source.close()
        raise CorruptError("blob has another size", path=source.path, found=source.size, expected=layer.nbytes)
    found = parse(source)
    try:
        keys, notes = _keys(manifest, store, name)
    except BaseException:
        found.close()
        raise
    projectors = manifest.of(PROJECTOR)
    if len(projectors) > 1:
        notes.append(f"{len(projectors)} projectors; the first is taken")
    beside = {"mmproj": projectors[0].path(store)} if projectors else {}
    return replace(
        found, metadata={**found.metadata, **keys}, notes=(*found.notes, *notes), sidecars=beside, title=name.title
    )


def _only_manifest(store: str) -> str:
    known = [*manifests(store)]
    if len(known) == 1:
        return known[0][1]
    names = ", ".join(str(name) for name, _ in known[:5]) + (" …" if len(known) > 5 else "")
    raise UsageError(
        "a store of several models" if known else "a store without a model",
        path=store,
        found=names or None,
        hint="ollama://NAME, or ggferry plan STORE for all of them",
    )


def _keys(manifest: Manifest, store: str, name: ModelName) -> tuple[dict[str, Value], list[str]]:
    """Return what the small layers say, as keys, and notes on layers that are not copied."""
    keys = {NAME_KEY: string(str(name))}
    for kind in _TEXTS:
        if layers := manifest.of(kind) or (manifest.of(PROMPT) if kind == TEMPLATE else []):  # as it once was called
            keys[PREFIX + kind] = string(manifest.text(layers[-1], store))
    if licenses := manifest.of(LICENSE):
        keys[PREFIX + LICENSE] = array(ValueType.STRING, [manifest.text(each, store) for each in licenses])
    notes = [
        f"{kind} layer not copied: {layer.path(store)} is a GGUF file of its own"
        for kind in (ADAPTER, DRAFT)
        for layer in manifest.of(kind)
    ]
    return keys, notes
