"""Tiny models that see or hear, made by transformers, and what their towers make of a picture or a spectrum."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ggferry.converters.conversion.run import Result, convert
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.understand import graph_of, understand_projector
from helpers.tiny_models import relative, shake

TEXT = {
    "vocab_size": 300,
    "hidden_size": 48,
    "intermediate_size": 88,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
"""A text model's configuration: the sizes that most classes share."""
MEAN, STD = [0.5, 0.4, 0.3], [0.5, 0.6, 0.7]
LIMIT = 2e-5
"""How far our float32 may be from transformers' float64, relative RMS (issue 20)."""

Rows = Callable[[Any, Any], Any]
"""Returns transformers' rows `(rows, width)` for a model in float64 and an input of ours, a tensor in float64."""


def save(folder: Path, model: Any, preprocessor: Mapping[str, Any] | None = None, seed: int = 7) -> Path:
    """Give the model values that leave no convention unseen, and save it as transformers does, with its processor's
    settings. `model` is changed."""
    import torch

    torch.manual_seed(seed)
    shake(model.float().eval())
    model.save_pretrained(folder)
    settings = {"image_mean": MEAN, "image_std": STD, **(preprocessor or {})}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder


def written(folder: Path, out: Path, **options: Any) -> Result:
    """Convert to both files, without a vocabulary; the result is that of the second file, and both are proved."""
    from ggferry.converters.conversion.request import request_of

    made = request_of(str(folder), {"out": str(out), "outtype": "f32", "no_vocab": True, **options})
    *_, second = convert(made)
    assert second.kind == "mmproj"
    assert second.receipt["logits"] is not None, "the rows of both sides were not compared"
    return second


def rows_of(source: str, given: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the rows that a folder's tower, or a file, makes of an input by its name."""
    if source.endswith(".gguf"):
        return forward(graph_of(source), (), inputs=given)
    graph = understand_projector(open_checkpoint(source))
    assert graph is not None
    return forward(graph, (), inputs=given)


def picture(height: int, width: int, seed: int = 3) -> np.ndarray:
    """A normalized picture, float32 `(3, height, width)`."""
    return np.random.default_rng(seed).standard_normal((3, height, width)).astype(np.float32)


def check(folder: Path, out: Path, model: Any, rows: Rows, given: Mapping[str, np.ndarray], **options: Any) -> Result:
    """Convert `folder`, and compare what both sides make of an input with `rows(model in float64, input)`."""
    import torch

    second = written(folder, out, **options)
    (name, values), *_ = given.items()
    with torch.no_grad():
        expected = rows(model.double().eval(), torch.from_numpy(values).double()).numpy()
    for side in (str(folder), second.path):
        found = rows_of(side, given)
        assert found.shape == expected.shape
        assert relative(expected, found) <= LIMIT, (name, side)
    return second
