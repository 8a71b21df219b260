"""What SINQ states of its layers beside their tensors.

Source: sinq 0.2.0 `patch_model.py`: `save_weights_safetensors` writes what is no tensor to
`model.safetensors.index.json.meta.json`, an object for each layer, with members of `meta`; `save_weights` keeps it in
the pickle, `qmodel.pt`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.json_files.text import load_object

LEVELS = ".W_q"
SECOND = ".meta.scale2"
"""What a layer of SINQ has, and none of HQQ, whose other tensors are called as its own."""
SIDECAR = "sinq_layers"


def layers(checkpoint: Checkpoint) -> dict[str, dict[str, Any]]:
    """Return the settings of each layer that has levels, by its name. Raises as `load_object`."""
    bases = [name.removesuffix(LEVELS) for name in checkpoint.tensors if name.endswith(LEVELS)]
    declared = load_object(checkpoint.sidecars[SIDECAR]) if SIDECAR in checkpoint.sidecars else {}
    values = checkpoint.header.get("values")
    found: dict[str, dict[str, Any]] = {base: _members(declared.get(base)) for base in bases}
    for name, value in (values if isinstance(values, Mapping) else {}).items():
        base, meta, key = name.partition(".meta.")
        if meta and base in found:
            found[base].setdefault(key, value)
    return found


def _members(layer: object) -> dict[str, Any]:
    inner = layer.get("meta") if isinstance(layer, dict) else None
    return dict(inner) if isinstance(inner, dict) else {}
