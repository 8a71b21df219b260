"""A store of Ollama's, written as `ollama create` writes one (server/create.go, manifest/layer.go of fb3076099)."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

LAYER = "application/vnd.ollama.image."


def blob(store: Path, data: bytes, media_type: str) -> dict[str, Any]:
    """Write a blob; return the layer that names it."""
    digest = hashlib.sha256(data).hexdigest()
    path = store / "blobs" / f"sha256-{digest}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}


def make_model(store: Path, name: str, files: dict[str, Path], texts: dict[str, str] | None = None) -> Path:
    """Write a model called `namespace/model/tag` of files and texts by kind; return the path of its manifest."""
    layers = [blob(store, path.read_bytes(), LAYER + kind) for kind, path in files.items()]
    layers += [blob(store, text.encode(), LAYER + kind) for kind, text in (texts or {}).items()]
    config = blob(store, b'{"model_format":"gguf"}\n', "application/vnd.docker.container.image.v1+json")
    return write_manifest(store, name, {"config": config, "layers": layers})


def write_manifest(store: Path, name: str, record: dict[str, Any]) -> Path:
    """Write a manifest as Go's encoder does: one line, a line break behind it."""
    path = store / "manifests" / "registry.ollama.ai" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    head = {"schemaVersion": 2, "mediaType": "application/vnd.docker.distribution.manifest.v2+json"}
    path.write_text(json.dumps(head | record, separators=(",", ":")) + "\n")
    return path


def everything(store: Path) -> dict[str, bytes]:
    """Every file of a store by its name there."""
    return {str(path.relative_to(store)): path.read_bytes() for path in store.rglob("*") if path.is_file()}
