"""Tiny random models that hear, made by transformers, and the embeddings that they make of a spectrum."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.understand import graph_of, understand_projector
from helpers.tiny_models import relative

TEXT: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 40,
    "intermediate_size": 56,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
WHISPER: dict[str, Any] = {
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "num_mel_bins": 16,
    "max_source_positions": 32,
    "hidden_size": 24,
    "intermediate_size": 96,
}
OLD_WHISPER: dict[str, Any] = {
    "encoder_layers": 3,
    "encoder_attention_heads": 3,
    "num_mel_bins": 16,
    "max_source_positions": 32,
    "d_model": 24,
    "encoder_ffn_dim": 72,
}
LIMIT = 2e-5


def saved(folder: Path, model: Any) -> Any:
    """The model with weights large enough to tell, statistics and bounds that are not the neutral ones; it is saved."""
    import torch

    generator = torch.Generator().manual_seed(3)
    for name, parameter in model.named_parameters():
        values = torch.randn(parameter.shape, generator=generator) * 0.15
        parameter.data = values + (1 if "norm" in name and name.endswith("weight") else 0)
    bounds = {"input_min": -1.5, "input_max": 1.75, "output_min": -2.0, "output_max": 2.25}
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer.copy_(torch.randn(buffer.shape, generator=generator) / 10)
        if name.endswith("running_var"):
            buffer.copy_(torch.rand(buffer.shape, generator=generator) + 0.5)
        if (last := name.rpartition(".")[2]) in bounds:
            buffer.copy_(torch.tensor(bounds[last]))
    model.eval().save_pretrained(folder)
    return model


def spectrum(channels: int, frames: int) -> np.ndarray:
    return np.random.default_rng(5).normal(size=(channels, frames)).astype(np.float32)


def ear_of(folder: Path) -> ModelGraph:
    """What hears of the checkpoint in `folder`, bound."""
    graph = understand_projector(open_checkpoint(str(folder)))
    assert graph is not None
    return graph


def written(folder: Path, tmp_path: Path, **options: Any) -> ModelGraph:
    """The second file that `convert` writes of it, bound."""
    out = tmp_path / f"mmproj-{len(list(tmp_path.glob('*.gguf')))}.gguf"
    result = convert(Request(str(folder), str(out), mmproj="only", **options))[0]
    assert result.receipt["verified"] == "full"
    return graph_of(result.path)


def check(
    folder: Path, tmp_path: Path, inputs: dict[str, np.ndarray], features: Callable[[], Any], limit: float = LIMIT
) -> ModelGraph:
    """Both sides make of `inputs` what transformers makes of them; return the written file's graph."""
    import torch

    with torch.inference_mode():
        expected = features()
    expected = expected.reshape(-1, expected.shape[-1]).double().numpy()
    made = written(folder, tmp_path)
    for graph in (ear_of(folder), made):
        found = forward(graph, (), inputs=inputs)
        assert found.shape == expected.shape
        assert relative(expected, found) <= limit
    return made
