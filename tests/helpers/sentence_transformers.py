"""Folders as sentence-transformers saves them: modules beside a model of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

KIND = "sentence_transformers.models."
IDENTITY = "torch.nn.modules.linear.Identity"


def listed(folder: Path, *modules: tuple[str, str]) -> None:
    """Write modules.json of these kinds and folders, after the model itself."""
    rows = [("Transformer", ""), *modules]
    stated = [{"idx": n, "name": str(n), "path": path, "type": KIND + kind} for n, (kind, path) in enumerate(rows)]
    (folder / "modules.json").write_text(json.dumps(stated))


def pooled(folder: Path, mode: str = "mean_tokens", **more: Any) -> None:
    """Write the settings of the module that pools."""
    inside = folder / "1_Pooling"
    inside.mkdir(exist_ok=True)
    names = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
    modes = {f"pooling_mode_{name}": name == mode for name in names}
    (inside / "config.json").write_text(json.dumps({"word_embedding_dimension": 64, **modes, **more}))


def dense(
    folder: Path,
    name: str,
    rows: int,
    columns: int,
    *,
    bias: bool = False,
    activation: str = IDENTITY,
    pickled: bool = False,
) -> dict[str, torch.Tensor]:
    """Write a matrix behind the pooling, and return its tensors."""
    inside = folder / name
    inside.mkdir(exist_ok=True)
    rng = torch.Generator().manual_seed(rows)
    tensors = {"linear.weight": torch.randn(rows, columns, generator=rng) * columns**-0.5}
    if bias:
        tensors["linear.bias"] = torch.randn(rows, generator=rng)
    if pickled:
        torch.save(tensors, inside / "pytorch_model.bin")
    else:
        save_file(tensors, inside / "model.safetensors")
    stated = {"in_features": columns, "out_features": rows, "bias": bias, "activation_function": activation}
    (inside / "config.json").write_text(json.dumps(stated))
    return tensors
