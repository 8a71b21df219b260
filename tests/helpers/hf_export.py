"""A checkpoint and the folder that came back from its GGUF, tensor by tensor."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open

CHANGED = ("Pointwise", "Scaled", "Halved", "Plus")
"""Layouts that change values: what undoes them rounds."""


def tensors(folder: Path) -> dict[str, np.ndarray]:
    """Return every tensor of a folder as float32, as safetensors' own library or PyTorch reads it."""
    found: dict[str, np.ndarray] = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:  # numpy has no bfloat16
            found |= {name: file.get_tensor(name).float().numpy() for name in file.keys()}  # noqa: SIM118
    for path in () if found else folder.glob("*.bin"):
        read = torch.load(path, map_location="cpu", weights_only=True)
        found |= {name: tensor.float().numpy() for name, tensor in read.items()}
    return found


def _alone(name: str) -> str:
    """Return the name of a text half's tensor as in a model without another half."""
    return name.replace("language_model.", "", 1)


def check_tensors(before: Path, after: Path, rotated: str = "") -> None:
    """Every tensor that the folder has as the original had it is the same, bit for bit.

    Args:
        before: The original.
        after: The folder that came back.
        turned: Part of the names of tensors whose last two axes the original has the other way round.
    """
    old, new = ({_alone(name): data for name, data in tensors(folder).items()} for folder in (before, after))
    listed = json.loads((after / "ggferry.receipt.json").read_text())["tensors"]
    changed = {_alone(one["name"]) for one in listed if set(one.get("undone", ())) & set(CHANGED)}
    shared, folded = set(old) & set(new), "FalconH1ForCausalLM" in (after / "config.json").read_text()
    named = [json.loads((folder / "config.json").read_text())["architectures"] for folder in (before, after)]
    assert shared or named[0] != named[1], "the names are others"
    old |= {name: old[name].swapaxes(-1, -2) for name in shared if rotated and rotated in name}
    for name in shared:
        if name.endswith("embed_tokens_per_layer.weight"):  # rows of tokens without one of their own are the first
            assert old[name].tobytes() == new[name][: len(old[name])].tobytes()
        elif folded:
            continue
        elif name.endswith("ngram_embedding.shard_0.weight"):  # what stood in many parts comes back in one
            parts = [old[other] for other in sorted(old) if "ngram_embedding.shard_" in other]
            assert len(parts) == 7 and b"".join(part.tobytes() for part in parts) == new[name].tobytes()
        elif name in changed:
            assert np.abs(old[name] - new[name]).max() <= 2.0**-22 * max(1.0, np.abs(old[name]).max()), name
        else:
            assert old[name].shape == new[name].shape, name
            assert old[name].tobytes() == new[name].tobytes(), name
