"""Rotation of patches along two axes, and tables of positions stretched over a picture."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ggferry.converters.forward.blocks.rope import rotate
from ggferry.converters.forward.model import Model
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor


def rotated(angles: Tensor, style: str) -> Callable[[Tensor], Tensor]:
    """Return what rotates queries or keys `(patches, heads, width)` by angles `(patches, width / 2)`.

    `style` is `Model.rope`.
    """
    turn = angles.cos().float(), angles.sin().float()
    return lambda x: rotate(x, turn, style)


def axes(rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Return the row and the column of every patch, float64 `(rows · columns, 1)`, in the order of reading."""
    at = torch.arange(rows * columns, dtype=torch.float64)[:, None]
    return torch.div(at, columns, rounding_mode="floor"), at % columns


def windows(rows: int, columns: int, side: int) -> Tensor:
    """Return what patches of different windows of `side` × `side` patches do not see, bool `(patches, patches)`."""
    row, column = (torch.div(at[:, 0], side, rounding_mode="floor") for at in axes(rows, columns))
    return (row[:, None] != row[None, :]) | (column[:, None] != column[None, :])


def frequencies(width: int, base: float = 10000.0) -> Tensor:
    """Return base^(-2i / width), float64 `(width / 2,)`."""
    return torch.pow(float(base), -torch.arange(0, width, 2, dtype=torch.float64) / width)


def by_halves(rows: int, columns: int, width: int, base: float = 10000.0) -> Tensor:
    """Return angles of which the first half grows with the row, and the second, at the same rates, with the column."""
    row, column = axes(rows, columns)
    rate = frequencies(width // 2, base)
    return torch.cat((row * rate, column * rate), -1)


def along_both(tower: Model, rows: int, columns: int, width: int) -> Callable[[Tensor], Tensor]:
    """Return what rotates queries or keys of patches `width` wide: half a head by rows, half by columns."""
    return rotated(by_halves(rows, columns, width // tower.sizes["n_head"]), tower.rope)


def in_turn(rows: int, columns: int, width: int, base: float = 10000.0) -> Tensor:
    """Return angles at the rates of `width` columns, of which the even ones grow with the row, the odd with the column.

    The former stand before the latter.
    """
    row, column = axes(rows, columns)
    rate = frequencies(width, base)
    return torch.cat((row * rate[0::2], column * rate[1::2]), -1)


def shuffled_by_channel(grid: Tensor, side: int) -> Tensor:
    """Return squares of patches as one row each, channel by channel: `(squares, width · side²)`, as `unfold` does."""
    rows, columns, width = grid.shape
    cut = grid.reshape(rows // side, side, columns // side, side, width)
    return cut.permute(0, 2, 4, 1, 3).reshape(-1, width * side**2)


def stretched(
    table: Tensor, rows: int, columns: int, mode: str, align_corners: bool = False, antialias: bool = False
) -> Tensor:
    """Return a square table of positions `(n², width)` stretched over a picture: `(rows, columns, width)`."""
    side = round(len(table) ** 0.5)
    grid = table.view(1, side, side, -1).permute(0, 3, 1, 2)
    found = torch.nn.functional.interpolate(grid, (rows, columns), None, mode, align_corners, antialias=antialias)
    return found[0].permute(1, 2, 0)


def sampled(table: Tensor, rows: int, columns: int) -> Tensor:
    """Return a square table of positions `(n², width)` sampled for a picture, cubically: `(rows, columns, width)`.

    The samples are those of the middle of each patch; beyond its border the table repeats it.
    """
    side = round(len(table) ** 0.5)
    y, x = ((2 * torch.arange(count) + 1) / count - 1 for count in (rows, columns))
    at = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1)[None].to(table.dtype)
    grid = table.view(1, side, side, -1).permute(0, 3, 1, 2)
    found = torch.nn.functional.grid_sample(grid, at, mode="bicubic", align_corners=False, padding_mode="border")
    return found[0].permute(1, 2, 0)
