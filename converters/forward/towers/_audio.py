"""Parts that the towers of models that hear share: norms, convolutions, blocks of an encoder, positions.

Every function takes the model as seen from its audio encoder, and names its tensors by role. Norms are named by what
they are,
because one model may hear with other norms than it sees with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ggferry.converters.forward.blocks.softmax_attention import attend
from ggferry.converters.forward.model import Model, silu
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor

STRIDE = 2
"""Frames for each state: the stride of Whisper's second convolution."""
FRAMES = 200
"""Most frames of a fixed spectrum."""


def gelu(x: Tensor) -> Tensor:
    """Return the exact GELU of x."""
    return torch.nn.functional.gelu(x)


def weighted(model: Model, name: str, y: Tensor) -> Tensor:
    """Return y times the weights of this name, plus its bias, if the model has them."""
    if name and model.has(name):
        y = y * model.weights.vector(f"{name}.weight")
    return model.biased(name, y) if name else y


def layer_norm(model: Model, name: str, x: Tensor, eps: float | None = None) -> Tensor:
    """Return LayerNorm of x along its last axis; `eps` is by default the tower's."""
    x = x - x.mean(-1, keepdim=True)
    return weighted(model, name, x * torch.rsqrt(x.square().mean(-1, keepdim=True) + _eps(model, eps)))


def rms_norm(model: Model, name: str, x: Tensor, eps: float | None = None) -> Tensor:
    """Return RMSNorm of x along its last axis; `eps` is by default the tower's."""
    return weighted(model, name, x * torch.rsqrt(x.square().mean(-1, keepdim=True) + _eps(model, eps)))


def _eps(model: Model, eps: float | None) -> float:
    return float(model.sizes["eps"]) if eps is None else eps


def kernel(model: Model, name: str) -> Tensor:
    """Return a kernel in the shape that its checkpoint gives it."""
    (ref,) = model.weights.refs(f"{name}.weight")
    return model.weights.vector(f"{name}.weight").view(ref.shape)


def bias(model: Model, name: str) -> Tensor | None:
    """Return the bias of this name, `(n,)`, if the model has it."""
    return model.weights.vector(f"{name}.bias") if model.weights.has(f"{name}.bias") else None


def convolved(model: Model, mel: Tensor) -> Tensor:
    """Return the states `(frames / 2, width)` that Whisper's two convolutions make of mel `(channels, frames)`.

    Both have width 3 over the frames, and the second has stride 2.
    """
    x = mel
    for name, stride in (("a.conv1d.1", 1), ("a.conv1d.2", STRIDE)):
        x = gelu(torch.nn.functional.conv1d(x, kernel(model, name), bias(model, name), stride, padding=1))
    return x.T


def positions(model: Model, count: int) -> Tensor:
    """Return the first `count` positions of the tower's table, `(count, width)`."""
    return model.weights.rows("a.position_embd.weight", range(count))


def transformer(
    model: Model,
    x: Tensor,
    progress: Callable[[int], None],
    windows: list[int] | None = None,
    turn: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Return x `(n, width)` behind all blocks of Whisper's encoder, which attend to both sides.

    `windows` are the numbers of consecutive states that see each other; by default all do. `turn` rotates queries and
    keys `(n, heads, width)`.
    """
    for number in range(model.sizes["n_layer"]):
        block = f"a.blk.{number}."
        read = layer_norm(model, f"{block}ln1", x)
        q, k, v = (model.linear(f"{block}attn_{name}", read).view(len(x), model.sizes["n_head"], -1) for name in "qkv")
        q, k = (q, k) if turn is None else (turn(q), turn(k))
        cuts = windows or [len(x)]
        seen = [attend(*parts) for parts in zip(*(torch.split(y, cuts) for y in (q, k, v)), strict=True)]
        x = x + model.linear(f"{block}attn_out", torch.cat(seen))
        read = layer_norm(model, f"{block}ln2", x)
        x = x + model.linear(f"{block}ffn_down", gelu(model.linear(f"{block}ffn_up", read)))
        progress(1)
    return x


def averaged(x: Tensor) -> Tensor:
    """Return the means of every two consecutive rows of x; an odd last row is left out."""
    pairs = x[: len(x) // 2 * 2].reshape(-1, 2, x.shape[-1])
    return pairs.mean(1)


def stacked(x: Tensor, factor: int) -> Tensor:
    """Return every `factor` consecutive rows of x as one row; the last one is filled with zeros."""
    missing = -len(x) % factor
    return torch.nn.functional.pad(x, (0, 0, 0, missing)).reshape(-1, factor * x.shape[-1])


def perceptron(
    model: Model, first: str, second: str, x: Tensor, activation: Callable[[Tensor], Tensor] = gelu
) -> Tensor:
    """Return x through two matrices with an activation between them."""
    return model.linear(second, activation(model.linear(first, x)))


def half_step(model: Model, norm: str, up: str, down: str, x: Tensor) -> Tensor:
    """Return x plus half of what a conformer's network makes of it."""
    return x + perceptron(model, up, down, layer_norm(model, norm, x), silu) / 2


def frames(tower: Model) -> int:
    """Return the frames of the fixed spectrum: what Whisper's table of positions allows, and at most two seconds."""
    return min(FRAMES, STRIDE * int(tower.sizes["n_ctx"]))


def whisper(model: Model, mel: Tensor, progress: Callable[[int], None], pooled: bool = False) -> Tensor:
    """Return the states of Whisper's encoder for a log-mel spectrum `(channels, frames)`.

    `pooled`: the means of every two, before the last norm.
    """
    x = convolved(model, mel)
    x = transformer(model, x + positions(model, len(x)), progress)
    return layer_norm(model, "a.post_ln", averaged(x) if pooled else x)


def pointwise(model: Model, name: str, x: Tensor) -> Tensor:
    """Return x `(n, columns)` through a convolution of width one, and its bias: a matrix."""
    stored = kernel(model, name)
    return model.biased(name, x @ stored.view(len(stored), -1).T)


def depthwise(model: Model, name: str, x: Tensor, centered: bool = False) -> Tensor:
    """Return x `(n, columns)` with every column convolved over the rows by a kernel of its own.

    A row sees itself and earlier ones, or, `centered`, as many before it as behind it.
    """
    stored = kernel(model, name).view(x.shape[-1], 1, -1)
    behind = stored.shape[-1] // 2 if centered else 0
    wide = torch.nn.functional.pad(x.T, (stored.shape[-1] - 1 - behind, behind))
    return model.biased(name, torch.nn.functional.conv1d(wide[None], stored, groups=len(stored))[0].T)


def batch_norm(model: Model, name: str, x: Tensor, eps: float = 1e-5) -> Tensor:
    """Return batch normalization of x by the means and variances that training left: a factor and a shift a column.

    A checkpoint keeps (weight, variance) where GGUF has the factor, and (bias, weight, mean, variance) where GGUF has
    the shift.
    """
    factor, shift = model.weights.vector(f"{name}.weight"), model.weights.vector(f"{name}.bias")
    if model.recipe.batch_norm == "running":
        weight, variance = factor.chunk(2)
        shift, _, mean, _ = shift.chunk(4)
        factor = weight * torch.rsqrt(variance + eps)
        shift = shift - mean * factor
    return x * factor + shift


def clipped(model: Model, name: str, x: Tensor) -> Tensor:
    """Return x through a matrix, with bounds of what goes in and what comes out, if the matrix has them (Gemma 4)."""
    return _bounded(model, name, "output", model.linear(name, _bounded(model, name, "input", x)))


def _bounded(model: Model, name: str, side: str, x: Tensor) -> Tensor:
    low, high = (
        model.weights.vector(f"{name}.{side}_{end}") if model.weights.has(f"{name}.{side}_{end}") else None
        for end in ("min", "max")
    )
    return x if low is None and high is None else x.clamp(low, high)
