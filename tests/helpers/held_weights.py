"""Parts of a forward pass on their own: weights that are held in memory, without a file or a graph."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch

from ggferry.converters.forward.model import Model
from ggferry.converters.forward.weights import Weights


class Held(Weights):
    """Tensors by role name, float32."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.tensors = {name: tensor.detach().float() for name, tensor in tensors.items()}

    def has(self, name: str) -> bool:
        return name in self.tensors

    def vector(self, name: str) -> torch.Tensor:
        return self.tensors[name].reshape(-1)

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return x @ self.tensors[name].T.to(x.dtype)

    def item(self, name: str, item: int) -> torch.Tensor:
        return self.tensors[name][item]

    def item_linear(self, name: str, item: int, x: torch.Tensor) -> torch.Tensor:
        return x @ self.tensors[name][item].T

    def rotated_item_linear(self, name: str, item: int, x: torch.Tensor) -> torch.Tensor:
        return x @ self.tensors[name][item]


def held_model(tensors: Mapping[str, torch.Tensor], sizes: Mapping[str, Any], **recipe: Any) -> Model:
    """A model of these tensors: what a block is made of, tried on its own."""
    graph = SimpleNamespace(
        sizes=dict(sizes),
        architecture=SimpleNamespace(recipe=recipe, hparams=(), blocks={}),
        dialect=SimpleNamespace(conventions={}),
    )
    return Model(graph, Held(tensors))  # type: ignore[arg-type]
