"""A manifest: which blobs a model of Ollama's is made of, and what each of them is.

Source: ollama fb3076099, manifest/manifest.go, manifest/layer.go, server/create.go.
"""

from __future__ import annotations

import os
import re
from typing import Any

from ggferry.formats.errors import CorruptError, MissingError, OutOfRangeError
from ggferry.formats.files.local_files import read_bytes
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.formats.json_files.text import load_object
from ggferry.support.records import dataclass

MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG_TYPE = "application/vnd.docker.container.image.v1+json"
LAYER = "application/vnd.ollama.image."
MODEL, PROJECTOR, ADAPTER, DRAFT, TENSOR = "model", "projector", "adapter", "draft", "tensor"
PROMPT, TEMPLATE, SYSTEM, LICENSE, PARAMS, MESSAGES = "prompt", "template", "system", "license", "params", "messages"
MAX_LAYERS, MAX_TEXT = 1 << 16, 4 << 20
_DIGEST = re.compile(r"sha256[:-](?P<hex>[0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Layer:
    """A blob of a model.

    Attributes:
        kind: What follows LAYER in its media type; the whole media type where it is another's.
        digest: SHA-256 of its bytes, hexadecimal.
        nbytes: How many bytes it has.
    """

    kind: str
    digest: str
    nbytes: int

    def path(self, store: str) -> str:
        """Return where it is in a store."""
        return os.path.join(store, "blobs", f"sha256-{self.digest}")


@dataclass(frozen=True, slots=True)
class Manifest:
    """The layers of a model, in their order; `config` describes it for lists."""

    path: str
    config: Layer | None
    layers: tuple[Layer, ...]

    def of(self, kind: str) -> list[Layer]:
        """Return the layers of a kind."""
        return [layer for layer in self.layers if layer.kind == kind]

    def text(self, layer: Layer, store: str) -> str:
        """Return a layer that is text. Raises OutOfRangeError, CorruptError and what opening it raises."""
        if layer.nbytes > MAX_TEXT:
            raise OutOfRangeError(
                f"{layer.kind} layer", path=self.path, found=layer.nbytes, expected=f"≤ {MAX_TEXT} bytes"
            )
        data = read_bytes(layer.path(store), MAX_TEXT, store)
        if len(data) != layer.nbytes:
            raise CorruptError("blob has another size", path=layer.path(store), found=len(data), expected=layer.nbytes)
        return data.decode("utf-8", "replace")


def read_manifest(path: str) -> Manifest:
    """Return the manifest at `path`. Raises CorruptError and what reading JSON raises."""
    found = load_object(path)
    listed = found.get("layers")
    if not isinstance(listed, list) or len(listed) > MAX_LAYERS:
        raise CorruptError("manifest without a list of layers", path=path)
    config = found.get("config")
    return Manifest(
        path,
        _layer(config, path, "config") if isinstance(config, dict) and config.get("digest") else None,
        tuple(_layer(each, path, f"layer {number}") for number, each in enumerate(listed)),
    )


def _layer(found: Any, path: str, what: str) -> Layer:
    record: JSONObject = found if isinstance(found, dict) else {}
    kind, digest, size = (record.get(key) for key in ("mediaType", "digest", "size"))
    match = _DIGEST.fullmatch(digest) if isinstance(digest, str) else None
    if not isinstance(kind, str) or match is None or not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise CorruptError(
            f"{what} of the manifest", path=path, found=str(found)[:80], expected="mediaType, digest sha256:…, size"
        )
    return Layer(kind.removeprefix(LAYER), match["hex"], size)


def model_layer(manifest: Manifest) -> Layer:
    """Return the layer that has the weights as one GGUF file.

    Raises MissingError where there is none, as in a name for a model in the cloud, and CorruptError where there are
    several.
    """
    models = manifest.of(MODEL)
    if len(models) == 1:
        return models[0]
    if models:
        raise CorruptError("several model layers", path=manifest.path, found=len(models), expected="one")
    kinds = sorted({layer.kind for layer in manifest.layers})
    hint = "its tensors are layers of their own (Ollama's MLX form), which are not read" if TENSOR in kinds else None
    raise MissingError("no model layer", path=manifest.path, found=", ".join(kinds) or "no layers", hint=hint)
