"""The encoder of Segment Anything: blocks that see windows of a picture, or all of it, and how far every key is.

Source: transformers `modeling_unlimited_ocr.py` (`UnlimitedOcrSamVisionEncoder`); llama.cpp
`tools/mtmd/models/deepseekocr.cpp` (`build_sam`).
"""

from __future__ import annotations

from math import isqrt
from typing import TYPE_CHECKING

from ggferry.converters.forward.model import Model
from ggferry.converters.forward.towers import _vision as vision
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor

LAYER_NORM = 1e-6
"""Epsilon of all its norms."""


def encoded(tower: Model, picture: Tensor) -> Tensor:
    """Return the states of squares of four by four patches of a picture, `(rows, columns, n_embd)`."""
    width = int(tower.sizes["sam_n_embd"])
    flat = tower.weights.vector("v.sam.patch_embd.weight")
    side = isqrt(flat.numel() // (width * len(picture)))
    found = torch.nn.functional.conv2d(picture[None], flat.view(width, len(picture), side, side), stride=side)[0]
    x = tower.biased("v.sam.patch_embd", found.permute(1, 2, 0))
    x = x + placed(tower.weights.vector("v.sam.pos_embd.weight").view(-1, width), *x.shape[:2])
    for number, reach in enumerate(tower.sizes["sam_reach"]):
        x = _block(tower, f"v.sam.blk.{number}.", x, 0 if number in _whole(tower) else int(reach))
    for step, norm in (("0", "1"), ("2", "3")):
        x = vision.layer_norm(tower, f"v.sam.neck.{norm}", _convolved(tower, f"v.sam.neck.{step}", x), LAYER_NORM)
    for name in ("v.sam.net_2", "v.sam.net_3"):
        x = _convolved(tower, name, x, stride=2)
    return x


def placed(table: Tensor, rows: int, columns: int) -> Tensor:
    """Return a square table of positions `(n², width)` for a picture, smoothed where it has fewer."""
    side = isqrt(len(table))
    grid = table.view(1, side, side, -1)
    if (rows, columns) != (side, side):
        grid = torch.nn.functional.interpolate(
            grid.permute(0, 3, 1, 2), (rows, columns), None, "bicubic", False, antialias=True
        ).permute(0, 2, 3, 1)
    return grid[0]


def _whole(tower: Model) -> set[int]:
    """Return the numbers of the blocks that see the whole picture."""
    return {number for number in (2, 5, 8, 11) if number < int(tower.sizes["sam_n_layer"])}


def _block(tower: Model, name: str, x: Tensor, window: int) -> Tensor:
    """Return the states `(rows, columns, width)` of a block that sees windows, or with 0 all of the picture."""
    read = vision.layer_norm(tower, f"{name}pre_ln", x, LAYER_NORM)
    if not window:
        seen = _attended(tower, name, read)
    else:
        rows, columns, width = x.shape
        read = torch.nn.functional.pad(read, (0, 0, 0, -columns % window, 0, -rows % window))
        high, wide = read.shape[0] // window, read.shape[1] // window
        cut = read.view(high, window, wide, window, width).transpose(1, 2).flatten(0, 1)
        done = torch.stack([_attended(tower, name, one) for one in cut]).view(high, wide, window, window, width)
        seen = done.transpose(1, 2).reshape(read.shape)[:rows, :columns]
    x = x + seen
    read = vision.layer_norm(tower, f"{name}post_ln", x, LAYER_NORM).reshape(-1, x.shape[-1])
    return x + tower.linear(f"{name}mlp.lin2", tower.activate(tower.linear(f"{name}mlp.lin1", read))).view(x.shape)


def _attended(tower: Model, name: str, x: Tensor) -> Tensor:
    """Return what patches `(rows, columns, width)` see of each other; one head after the other, for memory's sake."""
    rows, columns, width = x.shape
    heads = int(tower.sizes["sam_n_head"])
    q, k, v = tower.linear(f"{name}attn.qkv", x.reshape(-1, width)).view(-1, 3, heads, width // heads).unbind(1)
    high, wide = (_distances(tower, f"{name}attn.pos_{axis}.weight", n) for axis, n in (("h", rows), ("w", columns)))
    found = []
    for head in range(heads):
        grid = q[:, head].view(rows, columns, -1)
        far = torch.einsum("hwc,hkc->hwk", grid, high)[..., None] + torch.einsum("hwc,wkc->hwk", grid, wide)[:, :, None]
        scores = q[:, head] @ k[:, head].T * (width // heads) ** -0.5 + far.reshape(rows * columns, -1)
        found.append(torch.softmax(scores, -1) @ v[:, head])
    return tower.linear(f"{name}attn.out", torch.cat(found, -1)).view(rows, columns, width)


def _distances(tower: Model, name: str, count: int) -> Tensor:
    """Return what stands for the distance of each of `count` queries from each key: `(count, count, head width)`."""
    table = tower.weights.vector(name).view(-1, int(tower.sizes["sam_n_embd"]) // int(tower.sizes["sam_n_head"]))
    if len(table) != 2 * count - 1:
        table = torch.nn.functional.interpolate(table.T[None], 2 * count - 1, mode="linear")[0].T
    at = torch.arange(count)
    return table[at[:, None] - at[None, :] + count - 1]


def _convolved(tower: Model, name: str, grid: Tensor, stride: int = 1) -> Tensor:
    """Return a grid `(rows, columns, width)` through a convolution of width 1 or 3 without a bias."""
    (ref,) = tower.weights.refs(f"{name}.weight")
    kernel = tower.weights.vector(f"{name}.weight").view(ref.shape)
    side = kernel.shape[-1]
    found = torch.nn.functional.conv2d(grid.permute(2, 0, 1)[None], kernel, stride=stride, padding=side // 2)[0]
    return found.permute(1, 2, 0)
