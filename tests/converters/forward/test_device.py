"""Where forward passes compute. No GPU is needed: torch has a device of shapes without numbers."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

from ggferry.converters.forward import device, weights
from ggferry.converters.forward.batched_passes import batched
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.forward.weights import Weights, one_thread
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.understand import graph_of
from ggferry.formats.errors import UsageError
from ggferry.service.cli.app import _run as command_line
from helpers.builders import Llama

TOKENS = [1, 5, 9, 2]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Llama().write(tmp_path / "old.bin")


@pytest.mark.parametrize("word", ["gpu", "cuda:", "cuda:x", "cpu:1", "auto:0", ""])
def test_a_word_that_names_no_device_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="--device"):
        device.resolve(word)


def test_a_gpu_that_is_not_there_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device.resolve("auto") == device.resolve("cpu") == "cpu"
    with pytest.raises(UsageError, match=r"CUDA|GPU"):
        device.resolve("cuda:0")


def test_gpus_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert (device.resolve("auto"), device.resolve("cuda:1"), device.resolve("cpu")) == ("cuda:0", "cuda:1", "cpu")
    with pytest.raises(UsageError, match="cuda:0 to cuda:1"):
        device.resolve("cuda:2")


def test_products_are_of_float32_while_a_pass_runs_and_the_users_settings_come_back() -> None:
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn.conv
    products.fp32_precision = "tf32"
    try:
        with one_thread():
            assert products.fp32_precision == convolutions.fp32_precision == "ieee"
        assert (products.fp32_precision, convolutions.fp32_precision) == ("tf32", "tf32")
    finally:
        products.fp32_precision = "none"


@pytest.mark.parametrize("together", [1, 2])
def test_all_of_a_pass_is_on_the_device(model: Path, elsewhere: list[torch.Size], together: int) -> None:
    """torch refuses to add tensors of two places, so that one left behind ends the pass."""
    graph = graph_of(str(model))
    passes = [partial(_run, graph)] * together
    batched([(Weights(graph, 1, "meta"), passes)])
    assert elsewhere == [(len(TOKENS), graph.sizes["n_vocab"])] * together


def test_a_norm_left_behind_ends_the_pass(
    model: Path, elsewhere: list[torch.Size], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = graph_of(str(model))
    norm, move = torch.Size([1, graph.sizes["n_embd"]]), weights.moved
    monkeypatch.setattr(weights, "moved", lambda t, where: t if t.shape == norm else move(t, where))
    with pytest.raises(RuntimeError, match="device"):
        forward(graph, TOKENS, weights=Weights(graph, 1, "meta"))


def test_new_weights_are_on_the_device_that_was_chosen(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(str(model))
    monkeypatch.setattr(device, "resolve", lambda word: word)
    with device.computing_on("cuda:1"):
        assert Weights(graph).device == "cuda:1"
    assert Weights(graph).device == "cpu"


def test_an_importance_matrix_is_measured_on_the_device(
    model: Path, tmp_path: Path, elsewhere: list[torch.Size], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "resolve", lambda word: word.replace("cuda:1", "meta"))
    text, out = tmp_path / "text.txt", tmp_path / "out.gguf"
    text.write_text("the quick brown fox jumps over the lazy dog " * 8)
    command = ["imatrix", str(model), "--text", str(text), "--chunk-size", "16", "-o", str(out), "--device", "cuda:1"]
    assert command_line(command) == 0
    assert torch.Size([graph_of(str(model)).sizes["n_embd"]]) in elsewhere


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """Imitate a GPU by torch's device without numbers; return the shapes of what comes back from it."""
    back: list[torch.Size] = []

    def finished(tensor: torch.Tensor) -> torch.Tensor:
        assert tensor.device.type == "meta"
        back.append(tensor.shape)
        return torch.zeros(tensor.shape, device="cpu")

    monkeypatch.setattr(weights, "moved", lambda tensor, where: torch.empty_like(tensor, device=where))
    monkeypatch.setattr(torch.Tensor, "cpu", finished)
    return back


def _run(graph: ModelGraph, shared: Weights) -> None:
    forward(graph, TOKENS, weights=shared)
