"""Find values that a model file should not hold."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from ggferry.quant.blocks import Array, as_blocks, check_rows, cut, tiles
from ggferry.quant.codec import codec
from ggferry.quant.types import BlockType
from ggferry.support.heavy import np

if TYPE_CHECKING:
    from ggferry.quant.types import Bytes


LEAST_SUSPICIOUS = {"f2": 0x7C00, "bf16": 0x7F80, "f4": (127 + 96) << 23, "f8": (1023 + 127) << 52}
"""The least bits of a float, without its sign, that are suspicious.

These are infinity and NaN, and in the wider floats also values that may overflow float32 once multiplied by a level.
"""


def scan_bad(kind: BlockType, rows: Bytes, columns: int) -> int | None:
    """Return the first row of uint8 `(R, row bytes)` that decodes to a NaN or an infinity, or None.

    Only the scale fields of quantized blocks are checked; a row is decoded only where one of them is suspicious.
    """
    check_rows(kind, rows, columns)
    rows = np.ascontiguousarray(rows)
    if kind.whole_rows and not kind.planar:  # scales of whole rows, or of several in one
        bad = np.flatnonzero(~np.isfinite(codec(kind.name).values(rows, columns)).all(axis=1))
        return int(bad[0]) if bad.size else None
    checks = _checks(kind)
    if not checks:
        return None
    parts = {name: array for name, array in as_blocks(kind, rows).items() if name in checks}
    for tile in tiles(kind, len(rows), columns):
        fields = cut(parts, tile)
        marks = [check(fields[name]) for name, check in checks.items()]
        if not any(mark.any() for mark in marks):
            continue
        suspects = np.logical_or.reduce([mark.any(axis=-1) for mark in marks])
        for row in _rows_of(kind, suspects, tile, columns):
            if not np.isfinite(codec(kind.name).decode(rows[row : row + 1], columns)).all():
                return row
    return None


def _checks(kind: BlockType) -> dict[str, Callable[[Array], Array]]:
    own = codec(kind.name).suspicious
    found = {f.name: own.get(f.name) or _float_check(f.dtype) for f in kind.fields}
    return {name: check for name, check in found.items() if check is not None}


@cache
def _float_check(dtype: str) -> Callable[[Array], Array] | None:
    """Return a function that marks the suspicious floats of this dtype; None for an integer dtype."""
    if dtype not in LEAST_SUSPICIOUS:
        return None
    size = 8 * (2 if dtype == "bf16" else int(dtype[1]))
    unsigned, sign, least = f"<u{size // 8}", 1 << size - 1, LEAST_SUSPICIOUS[dtype]
    return lambda x: x.view(unsigned) & (sign - 1) >= least


def _rows_of(kind: BlockType, suspects: Array, tile: tuple[slice, slice], columns: int) -> list[int]:
    """Return the rows, in order, of the marked blocks `(rows, blocks)` of a tile of `as_blocks`."""
    row, block = np.nonzero(suspects)
    if not kind.planar:
        return sorted(set(((tile[1].start + block) * kind.elements // columns).tolist()))
    return sorted(set((tile[0].start + row).tolist()))
