"""A model in Ollama's store: the proved GGUF file, its mmproj file and small texts as blobs, then a manifest.

All grows in a locked folder of the store that Ollama does not look at. Blobs get their names first, which only add to
the store; the manifest's name comes last and makes the model one. A killed run leaves no manifest, and its folder is
removed by the next; a blob that nobody names is removed by Ollama itself when it starts (server/images.go,
PruneLayers).

Source of the forms: ollama fb3076099, manifest/layer.go, server/create.go, types/model/config.go.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.formats.errors import of_os
from ggferry.formats.files.local_files import Named
from ggferry.formats.files.partial_files import exists_already, name_new, sync_folder
from ggferry.formats.files.sources import LocalFile
from ggferry.formats.gguf.values import Value
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.formats.ollama import manifest as form
from ggferry.formats.ollama.model import PREFIX
from ggferry.formats.ollama.names import SCHEME, parse_name
from ggferry.formats.ollama.store import BLOBS, MANIFESTS, default_store
from ggferry.formats.packed.scratch import Scratch, sweep
from ggferry.quant.recipes.file_types import file_type_name
from ggferry.support.interrupts import interrupts_wait

if TYPE_CHECKING:
    from ggferry.converters.conversion.run import Result

RECEIPT_TYPE = "application/vnd.ggferry.receipt.v1+json"
"""Media type of the layer with our receipt; Ollama passes over layers that it does not know (server/images.go)."""
PIECE = 4 << 20
_SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repeat_penalty",
}
"""`general.sampling.…` → the name of the parameter in Ollama (api/types.go, Options)."""


class LayerRecord(TypedDict):
    """A layer as a manifest states it."""

    mediaType: str
    digest: str
    size: int


class OllamaDestination:
    """A model of Ollama's to be."""

    def __init__(self, address: str, *, store: str | None = None, force: bool = False) -> None:
        """Take a name such as `ollama://me/model:tag`. Raises UsageError for what is no name."""
        self.name = parse_name(address)
        self.store = store or default_store()
        self.force = force
        self.out: str | None = None
        self._scratch: Scratch | None = None

    @property
    def manifest(self) -> str:
        """Where its manifest will be."""
        return os.path.join(self.store, MANIFESTS, self.name.place)

    def __enter__(self) -> OllamaDestination:
        if os.path.lexists(self.manifest) and not self.force:
            raise exists_already(f"{SCHEME}{self.name}")
        try:
            os.makedirs(os.path.join(self.store, BLOBS), exist_ok=True)
            os.makedirs(os.path.dirname(self.manifest), exist_ok=True)
        except OSError as error:
            raise of_os(error, "cannot be written", self.store) from None
        sweep(self.store)
        self._scratch = Scratch(self.store)
        self.out = os.path.join(self._scratch.path, f"{self.name.title}.gguf")
        return self

    def __exit__(self, *_: object) -> None:
        if self._scratch is not None:
            self._scratch.close()

    def publish(self, results: Sequence[Result]) -> list[str]:
        """Make proved outputs layers of the model. Raises RefusedError where the name has been taken meanwhile."""
        try:
            return self._publish(results)
        except OSError as error:
            raise of_os(error, "cannot be written", self.store) from None

    def _publish(self, results: Sequence[Result]) -> list[str]:
        layers: list[LayerRecord] = []
        keys: Mapping[str, Any] = {}
        for result in results:
            found, kind = _metadata(result.path), form.MODEL if result.kind == "gguf" else form.PROJECTOR
            keys = found if kind == form.MODEL else keys
            layers.append(self._move(result.path, form.LAYER + kind))
        layers += [self._blob(text.encode(), form.LAYER + kind) for kind, text in texts_of(keys)]
        layers += [self._move(result.receipt_path, RECEIPT_TYPE) for result in results]
        config = self._blob(_json(config_of(keys, results[0].receipt)), form.CONFIG_TYPE)
        sync_folder(os.path.join(self.store, BLOBS, ""))
        record = {"schemaVersion": 2, "mediaType": form.MANIFEST_TYPE, "config": config, "layers": layers}
        self._write_manifest(_json(record))
        size = sum(layer["size"] for layer in layers)
        return [f"stored   {SCHEME}{self.name}: {len(layers)} layers, {size:,} bytes, in {self.store}"]

    def _move(self, path: str, media_type: str) -> LayerRecord:
        """Make a file of the scratch folder a blob; one with the same bytes that is there already stays."""
        digest = hashlib.sha256()
        with LocalFile(Named(path)) as source:
            for at in range(0, source.size, PIECE):
                digest.update(source.read(at, min(PIECE, source.size - at)))
            size = source.size
        blob = os.path.join(self.store, BLOBS, f"sha256-{digest.hexdigest()}")
        with interrupts_wait():
            if not (os.path.isfile(blob) and os.path.getsize(blob) == size):
                os.replace(path, blob)
        return {"mediaType": media_type, "digest": f"sha256:{digest.hexdigest()}", "size": size}

    def _blob(self, data: bytes, media_type: str) -> LayerRecord:
        return self._move(self._written("layer", data), media_type)

    def _written(self, name: str, data: bytes) -> str:
        """Return the path of a small file of the scratch folder, on disk when this returns."""
        assert self._scratch is not None
        path = os.path.join(self._scratch.path, name)
        with open(path, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return path

    def _write_manifest(self, data: bytes) -> None:
        path = self._written("manifest", data)
        with interrupts_wait():
            if self.force:
                os.replace(path, self.manifest)
            else:
                try:
                    name_new(path, self.manifest)
                except FileExistsError:
                    raise exists_already(f"{SCHEME}{self.name}") from None
        sync_folder(self.manifest)


def _metadata(path: str) -> Mapping[str, Any]:
    checkpoint = open_checkpoint(path)
    checkpoint.close()
    return checkpoint.metadata


def _plain(keys: Mapping[str, Any], key: str) -> Any:
    value = keys.get(key)
    return value.data if isinstance(value, Value) else None


def texts_of(keys: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the small layers that a file's keys make: kind and text.

    A model that came from a store of Ollama's gets back what it had there. Of another one the sampling parameters that
    its publisher recommends are given; its chat template Ollama takes from the file itself.
    """
    kinds = (form.TEMPLATE, form.SYSTEM, form.MESSAGES)
    found = [(kind, text) for kind in kinds if isinstance(text := _plain(keys, PREFIX + kind), str)]
    licenses = keys.get(PREFIX + form.LICENSE)
    found += [(form.LICENSE, str(each)) for each in (licenses.data if isinstance(licenses, Value) else ())]
    params = _plain(keys, PREFIX + form.PARAMS)
    if not isinstance(params, str):
        declared = {name: _plain(keys, f"general.sampling.{key}") for key, name in _SAMPLING.items()}
        plain = {name: round(value, 6) for name, value in declared.items() if isinstance(value, int | float)}
        params = json.dumps(plain) if plain else None
    return [*found, *([(form.PARAMS, params)] if params else [])]


def config_of(keys: Mapping[str, Any], receipt: Mapping[str, Any]) -> JSONObject:
    """Return what Ollama shows of a model in lists (types/model/config.go)."""
    architecture = str(_plain(keys, "general.architecture") or "")
    file_type = _plain(keys, "general.file_type")
    count = sum(_elements(tensor) for tensor in receipt["tensors"])
    return {
        "model_format": "gguf",
        "model_family": architecture,
        "model_families": [architecture],
        "model_type": human_number(count),
        "file_type": file_type_name(file_type) if isinstance(file_type, int) else "unknown",
        "architecture": "amd64",
        "os": "linux",
    }


def _elements(tensor: Mapping[str, Any]) -> int:
    count = 1
    for size in tensor["shape"]:
        count *= size
    return count


def human_number(count: int) -> str:
    """Return a number of parameters as Ollama writes it: 3.2B, 135.16M, 12K (format/format.go, HumanNumber)."""
    if count >= 10**9:
        return f"{count / 10**9:.0f}B" if count % 10**9 == 0 else f"{count / 10**9:.1f}B"
    if count >= 10**6:
        return f"{count / 10**6:.0f}M" if count % 10**6 == 0 else f"{count / 10**6:.2f}M"
    return f"{count / 1000:.0f}K" if count >= 1000 else str(count)


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"
