"""Granite 4 Vision's tower: SigLIP, and a Q-Former for each of several blocks' states, window by window.

Source: transformers `modeling_granite4_vision.py`, `modeling_blip_2.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ggferry.converters.forward.model import Model
from ggferry.converters.forward.towers import _qformer as qformer
from ggferry.converters.forward.towers import _vision as vision
from ggferry.formats.errors import UsageError
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor

LAYER_NORM = 1e-6
"""Epsilon of the norm before every Q-Former."""
HEAD = 64
"""Width of a Q-Former's head."""


def embed(tower: Model, picture: Tensor, progress: Callable[[int], None]) -> Tensor:
    """Return the rows that stand for a picture, `(rows, projectors · width of the text model)`.

    A picture as high as wide is one tile. A higher one is a stack: the picture as a whole, and below it its tiles,
    which stand one below another in one column; each line of their rows ends with a row that is the same for all.
    """
    side, (height, width) = int(tower.sizes["image_size"]), picture.shape[1:]
    if width != side or height % side:
        expected = f"3 × height × {side}, the height a multiple of it"
        raise UsageError("a picture", found=f"3 × {height} × {width}", expected=expected)
    whole, *tiles = (_tile(tower, tile, progress) for tile in picture.chunk(height // side, 1))
    if not tiles:
        return whole
    columns = side // int(tower.sizes["patch_size"]) // tower.sizes["window_side"] * tower.sizes["query_side"]
    end = tower.weights.vector("v.image_newline").repeat(len(tower.sizes["corners"]))
    grid = torch.cat(tiles).view(-1, columns, whole.shape[-1])
    return torch.cat((whole, torch.cat((grid, end.expand(len(grid), 1, -1)), 1).flatten(0, 1)))


def patches(tower: Model) -> tuple[int, int]:
    """Return rows and columns of patches of the picture on which proofs compare both sides: the whole and one tile."""
    side = int(tower.sizes["image_size"]) // int(tower.sizes["patch_size"])
    return 2 * side, side


def _tile(tower: Model, tile: Tensor, progress: Callable[[int], None]) -> Tensor:
    x = vision.patch_embed(tower, tile)
    rows, columns, width = x.shape
    x = (x + vision.table_positions(tower, rows, columns)).view(-1, width)
    layers = list(tower.sizes["feature_layer"])
    kept: dict[int, Tensor] = {}
    for number in range(tower.sizes["n_layer"]):
        x = vision.block(tower, f"v.blk.{number}.", x)
        kept |= {number: x.view(rows, columns, width)} if number in layers else {}
        progress(1)
    corners = tower.sizes["corners"]
    parts = (_projected(tower, f"v.proj_blk.{n}.", kept[layers[n]], corners[n]) for n in range(len(layers)))
    return torch.cat(list(parts), -1)


def _projected(tower: Model, name: str, x: Tensor, corner: int) -> Tensor:
    """Return what a Q-Former makes of states `(rows, columns, width)`, row by row; `corner` is -1 for the mean."""
    side, window = tower.sizes["query_side"], tower.sizes["window_side"]
    x = vision.layer_norm(tower, f"{name}norm", x, LAYER_NORM)
    rows, columns, width = x.shape
    small = x[corner // 2 :: 2, corner % 2 :: 2] if corner >= 0 else _mean(x)
    starts, states = _windows(small, side), _windows(x, window)
    query = tower.weights.vector(f"{name}query").view(-1, width)
    places = tower.weights.vector(f"{name}img_pos").view(-1, width)
    found = []
    for start, seen in zip(starts, states, strict=True):
        queries = vision.layer_norm(tower, f"{name}post_norm", start + query, qformer.EPS)
        found.append(qformer.block(tower, name, queries, seen + places, width // HEAD))
    flat = torch.stack(found).view(rows // window, columns // window, side, side, width).transpose(1, 2)
    return tower.linear(f"{name}linear", flat.reshape(-1, width))


def _mean(x: Tensor) -> Tensor:
    """Return the mean of every square of four states."""
    rows, columns, width = x.shape
    return x.view(rows // 2, 2, columns // 2, 2, width).mean((1, 3))


def _windows(x: Tensor, side: int) -> Tensor:
    """Return x `(rows, columns, width)` as windows, `(windows, side², width)`."""
    rows, columns, width = x.shape
    return x.reshape(rows // side, side, columns // side, side, width).transpose(1, 2).reshape(-1, side * side, width)
