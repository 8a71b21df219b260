"""How weights are multiplied: by which library, in which threads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from ggferry.converters.forward import weights
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.forward.weights import Weights
from ggferry.converters.understand import graph_of
from ggferry.formats.checkpoint import TensorRef
from ggferry.formats.errors import BadValueError

TOKENS = [1, 5, 9, 300, 2]


class Watched(Weights):
    """Weights that note with how many threads torch computes where their values are used."""

    seen: set[int]

    def values(self, ref: TensorRef, start: int, stop: int) -> np.ndarray:
        self.__dict__.setdefault("seen", set()).add(torch.get_num_threads())
        return super().values(ref, start, stop)


@pytest.fixture
def path(fixtures: Path) -> str:
    return str(fixtures / "hf/ckpt/qwen2")


def test_the_kernel_of_large_models_gives_what_torch_does(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(path)
    expected = forward(graph, TOKENS)
    monkeypatch.setattr(weights, "LARGE", 0)
    monkeypatch.setattr(torch, "matmul", None)
    found = forward(graph, TOKENS)
    assert np.abs(found - expected).max() <= 2e-6 * np.abs(expected).max()


def test_each_thread_computes_with_one(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """MKL has a number of threads for each of ours, and two of its own would only wait for each other."""
    monkeypatch.setattr(weights, "CHUNK", 256)
    graph = graph_of(path)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        watched = Watched(graph, 2)
        forward(graph, TOKENS, weights=watched)
        assert watched.seen == {1}
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_the_kernel_shows_where_a_weight_is_no_number(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "LARGE", 0)
    graph = graph_of(path)
    ref = graph.by_name["blk.0.ffn_down.weight"].inputs[0]

    class Spoiled(Weights):
        def values(self, one: TensorRef, start: int, stop: int) -> np.ndarray:
            rows = np.array(super().values(one, start, stop))
            if one.name == ref.name:
                rows[3, 2] = np.nan
            return rows

    with pytest.raises(BadValueError, match="not a number") as error:
        forward(graph, TOKENS, weights=Spoiled(graph))
    assert error.value.found == "row 3"
