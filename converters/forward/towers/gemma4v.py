"""Gemma 4's vision encoder: patches with a place across and a place down, a transformer, squares averaged, one matrix.

Definition: transformers `modeling_gemma4.py` (Gemma4VisionModel, Gemma4MultimodalEmbedder); llama.cpp
tools/mtmd/models/gemma4v.cpp. A matrix may have bounds of what goes in and what comes out (`.input_max` and so on).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ggferry.converters.forward.blocks.softmax_attention import attend
from ggferry.converters.forward.model import Model
from ggferry.converters.forward.towers import _audio as shared
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor

BASE = 100.0
"""Of the rotation, as every Gemma 4 has it (llama.cpp has no key for it)."""


def patches(tower: Model) -> tuple[int, int]:
    """Return (rows, columns) of patches of the fixed picture: two squares down, three across."""
    merge = int(tower.sizes["merge"])
    return 2 * merge, 3 * merge


def embed(tower: Model, picture: Tensor, progress: Callable[[int], None]) -> Tensor:
    """Return the rows that stand for a picture `(3, height, width)`, `(squares, width of the text model)`."""
    x = _patches(tower, 2 * picture - 1)
    rows, columns, width = x.shape
    down, across = (at.reshape(-1) for at in torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij"))
    table = tower.weights.vector("v.position_embd.weight").view(2, -1, width)
    x = x.reshape(-1, width) + table[0, across] + table[1, down]
    for number in range(tower.sizes["n_layer"]):
        x = _block(tower, f"v.blk.{number}.", x, across, down)
        progress(1)
    squares = torch.nn.functional.avg_pool2d(x.T.reshape(1, width, rows, columns), int(tower.sizes["merge"]))
    x = squares.flatten(2)[0].T * width**0.5
    if tower.weights.has("v.std_bias"):
        x = (x - tower.weights.vector("v.std_bias")) * tower.weights.vector("v.std_scale")
    return shared.clipped(tower, "mm.input_projection", shared.rms_norm(tower, "", x))


def _patches(tower: Model, picture: Tensor) -> Tensor:
    """Return the embeddings of the patches of a picture, `(rows, columns, n_embd)`."""
    size = int(tower.sizes["patch_size"])
    stored = tower.weights.vector("v.patch_embd.weight")
    kernel = stored.view(-1, 3, size, size)
    if tower.recipe.patches == "pixels":
        kernel = stored.view(-1, size, size, 3).permute(0, 3, 1, 2)
    return torch.nn.functional.conv2d(picture[None], kernel, stride=size)[0].permute(1, 2, 0)


def _block(tower: Model, block: str, x: Tensor, across: Tensor, down: Tensor) -> Tensor:
    read = shared.rms_norm(tower, f"{block}ln1", x)
    q, k, v = (
        shared.clipped(tower, f"{block}attn_{name}", read).view(len(x), tower.sizes["n_head"], -1) for name in "qkv"
    )
    q, k = (
        _rotated(shared.rms_norm(tower, f"{block}attn_{name}_norm", y), across, down)
        for name, y in (("q", q), ("k", k))
    )
    seen = shared.clipped(tower, f"{block}attn_out", attend(q, k, shared.rms_norm(tower, "", v), scale=1.0))
    x = x + shared.rms_norm(tower, f"{block}attn_post_norm", seen)
    return x + shared.rms_norm(tower, f"{block}ffn_post_norm", _network(tower, block, x))


def _network(tower: Model, block: str, x: Tensor) -> Tensor:
    read = shared.rms_norm(tower, f"{block}ln2", x)
    gate = torch.nn.functional.gelu(shared.clipped(tower, f"{block}ffn_gate", read), approximate="tanh")
    return shared.clipped(tower, f"{block}ffn_down", gate * shared.clipped(tower, f"{block}ffn_up", read))


def _rotated(x: Tensor, across: Tensor, down: Tensor) -> Tensor:
    """Return x `(patches, heads, width)`, rotated: the first half by the place across, the second by that down."""
    return torch.cat([_by(half, at) for half, at in zip(x.chunk(2, -1), (across, down), strict=True)], -1)


def _by(x: Tensor, at: Tensor) -> Tensor:
    width = x.shape[-1]
    angles = at[:, None, None] * BASE ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)
    cosines, sines = angles.cos(), angles.sin()
    first, second = x.chunk(2, -1)
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines), -1)
