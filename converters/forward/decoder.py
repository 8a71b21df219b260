"""The reference decoder: every position at once, float32, one layer's activations in memory.

Definition: RMSNorm, rotary attention with grouped keys and values, gated feed-forward, as llama.cpp's graph of August
2023 and llama.go's `Eval` compute them (facts/legacy-llama.md §3–4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ggferry.converters.forward.recipe import Recipe, recipe_of
from ggferry.converters.forward.weights import Weights
from ggferry.converters.graph import ModelGraph
from ggferry.formats.errors import UnsupportedError, UsageError
from ggferry.quant.registry import lazy

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor
else:
    np = lazy("numpy")
    torch = lazy("torch")


def forward(graph: ModelGraph, tokens: Sequence[int], progress: Callable[[int], None] | None = None) -> Any:
    """Logits of every position, numpy float32 `(len(tokens), n_vocab)`.

    `graph` may be bound to any side: its dialect's conventions decide how the tensors are read. Raises UsageError for
    token ids outside the vocabulary, BadValueError for a weight that is not finite.
    """
    if not tokens:
        raise UsageError("no tokens to evaluate")
    if not graph.nodes:
        raise UnsupportedError("a vocabulary without tensors has no forward pass", path=graph.checkpoint.path)
    sizes = graph.sizes
    outside = [token for token in tokens if not 0 <= token < sizes["n_vocab"]]
    if outside:
        raise UsageError("token id", found=outside[0], expected=f"0..{sizes['n_vocab'] - 1}")
    recipe = recipe_of(graph.architecture.recipe, graph.dialect.conventions)
    with torch.inference_mode():
        return _Decoder(Weights(graph), recipe, sizes, progress or (lambda done: None)).run(tokens).numpy()


class _Decoder:
    def __init__(
        self, weights: Weights, recipe: Recipe, sizes: dict[str, Any], progress: Callable[[int], None]
    ) -> None:
        self.w = weights
        self.recipe = recipe
        self.sizes = sizes
        self.progress = progress

    def run(self, tokens: Sequence[int]) -> Tensor:
        x = self.w.rows("token_embd.weight", tokens)
        turn = self._rotation(len(tokens))
        for block in range(self.sizes["n_layer"]):
            x = x + self._attention(f"blk.{block}.", self._norm(f"blk.{block}.attn_norm", x), turn)
            x = x + self._feed_forward(f"blk.{block}.", self._norm(f"blk.{block}.ffn_norm", x))
            self.progress(1)
        head = "output.weight" if self.w.has("output.weight") else "token_embd.weight"
        return self.w.linear(head, self._norm("output_norm", x))

    def _norm(self, name: str, x: Tensor) -> Tensor:
        eps = self.sizes["eps"]
        if self.recipe.norm == "layer":
            x = x - x.mean(-1, keepdim=True)
        scaled = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * self.w.vector(f"{name}.weight")
        return scaled + self.w.vector(f"{name}.bias") if self.w.has(f"{name}.bias") else scaled

    def _linear(self, name: str, x: Tensor) -> Tensor:
        y = self.w.linear(f"{name}.weight", x)
        return y + self.w.vector(f"{name}.bias") if self.w.has(f"{name}.bias") else y

    def _rotation(self, count: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines, `(count, n_rot / 2)`: angle = position · base^(-2i / n_rot)."""
        n_rot, base = self.sizes["n_rot"], self.sizes["rope_base"]
        frequencies = float(base) ** (-torch.arange(0, n_rot, 2, dtype=torch.float64) / n_rot)
        angles = torch.outer(torch.arange(count, dtype=torch.float64), frequencies)
        return angles.cos().float(), angles.sin().float()

    def _rotate(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        """Rotary position embedding on x `(tokens, heads, head_dim)`."""
        cos, sin = (part[:, None, :] for part in turn)
        n_rot = 2 * cos.shape[-1]
        rest = x[..., n_rot:]
        if self.recipe.rope == "pairs":
            a, b = x[..., 0:n_rot:2], x[..., 1:n_rot:2]
            turned = torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
        else:
            a, b = x[..., : n_rot // 2], x[..., n_rot // 2 : n_rot]
            turned = torch.cat((a * cos - b * sin, a * sin + b * cos), -1)
        return torch.cat((turned, rest), -1)

    def _attention(self, block: str, x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        heads, groups, dim = self.sizes["n_head"], self.sizes["n_head_kv"], self.sizes["head_dim"]
        count = len(x)
        q = self._rotate(self._linear(f"{block}attn_q", x).view(count, heads, dim), turn)
        k = self._rotate(self._linear(f"{block}attn_k", x).view(count, groups, dim), turn)
        v = self._linear(f"{block}attn_v", x).view(count, groups, dim)
        mask = torch.full((count, count), float("-inf")).triu(1)
        out = torch.empty((count, heads, dim))
        for head in range(heads):
            group = head * groups // heads
            scores = q[:, head] @ k[:, group].T / dim**0.5 + mask
            out[:, head] = scores.softmax(-1) @ v[:, group]
        return self._linear(f"{block}attn_output", out.reshape(count, heads * dim))

    def _feed_forward(self, block: str, x: Tensor) -> Tensor:
        act = ACTIVATIONS[self.recipe.activation]
        if self.recipe.ffn == "gated":
            hidden = act(self._linear(f"{block}ffn_gate", x)) * self._linear(f"{block}ffn_up", x)
        else:
            hidden = act(self._linear(f"{block}ffn_up", x))
        return self._linear(f"{block}ffn_down", hidden)


ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "silu": lambda x: x * torch.sigmoid(x),
    "gelu": lambda x: torch.nn.functional.gelu(x),
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "relu": lambda x: torch.relu(x),
}
