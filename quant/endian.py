"""Byte order of tensor data: big-endian GGUF holds the same blocks with every item of their fields byte-swapped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ggferry.quant.blocks import as_blocks
from ggferry.quant.types import BlockError, BlockType
from ggferry.support.heavy import np

if TYPE_CHECKING:
    from ggferry.quant.types import Bytes


def swap(kind: BlockType, rows: Bytes) -> Bytes:
    """Return uint8 `(R, row bytes)` in the other byte order, as a new array. The function is its own inverse.

    The bytes of every item of every field of the block's table are reversed; fields of bytes stay. Raises BlockError
    when a row is not whole blocks.
    """
    odd = rows.ndim != 2 or (rows.shape[1] - kind.header_bytes) % kind.block_bytes or len(rows) % kind.interleaved
    if rows.dtype != np.uint8 or odd:
        raise BlockError(
            f"{kind.name} rows are uint8 (R, multiple of {kind.block_bytes}), not {rows.dtype} {rows.shape}"
        )
    swapped: Bytes = np.array(rows, order="C")
    parts = as_blocks(kind, swapped)
    for field in (*kind.header, *kind.fields):
        if field.item_bytes > 1:
            parts[field.name].byteswap(inplace=True)
    return swapped
