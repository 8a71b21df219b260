"""Pack integer levels and their scales into GGUF's blocks without rounding any value.

An encoder finds scale and levels of floats; here both are given, as a checkpoint holds them that is quantized already.
Layouts: `block_q4_0` … `block_tq1_0` of ggml-common.h, as in `quant/codecs/simple.py`, `ternary.py` and `onebit.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ggferry.quant.blocks import Array, Parts, as_blocks
from ggferry.quant.codec import block_type
from ggferry.quant.types import BlockError
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.quant.types import Bytes


@dataclass(frozen=True, slots=True)
class Packing:
    """How levels become the fields of one block type.

    Attributes:
        low: The least level a block holds.
        high: The greatest.
        minimum: Whether a block has a minimum that is added to level × scale.
        put: Stores levels less `low`, uint8 `(blocks, elements)`, in the fields other than scale and minimum.
    """

    low: int
    high: int
    minimum: bool
    put: Callable[[Parts, Array], None]


def put_nibbles(parts: Parts, codes: Array) -> None:
    """Store element j in the low nibble of byte j, and element j + 16 in its high one."""
    parts["qs"][0] = codes[:, :16] & 15 | (codes[:, 16:] & 15) << 4


def _five_bits(parts: Parts, codes: Array) -> None:
    put_nibbles(parts, codes)
    parts["qh"][0] = np.packbits(codes >> 4, axis=1, bitorder="little").view("<u4")


def _bytes(parts: Parts, codes: Array) -> None:
    parts["qs"][0] = (codes ^ 128).view(np.int8)


def _two_bits_in_order(parts: Parts, codes: Array) -> None:
    """Store element 4j + k in bits 2k and 2k + 1 of byte j."""
    quads = codes.reshape(len(codes), -1, 4)
    parts["qs"][0] = quads[..., 0] | quads[..., 1] << 2 | quads[..., 2] << 4 | quads[..., 3] << 6


def put_two_bits(parts: Parts, codes: Array) -> None:
    """Store elements 128h + 32k + j in bits 2k and 2k + 1 of byte 32h + j."""
    planes = codes.reshape(len(codes), 2, 4, 32)
    packed = planes[:, :, 0] | planes[:, :, 1] << 2 | planes[:, :, 2] << 4 | planes[:, :, 3] << 6
    parts["qs"][0] = packed.reshape(len(codes), 64)


def _base_three(parts: Parts, codes: Array) -> None:
    """Store five digits of base 3 a byte, and four in each of the last four bytes, as fractions of 256 rounded up."""
    first = _fractions(codes[:, :160].reshape(-1, 5, 32))
    second = _fractions(codes[:, 160:240].reshape(-1, 5, 16))
    last = codes[:, 240:].reshape(-1, 4, 4)
    parts["qs"][0] = np.concatenate((first, second), 1)
    parts["qh"][0] = _fractions(np.concatenate((last, np.zeros_like(last[:, :1])), 1))


def _fractions(digits: Array) -> Array:
    """Return uint8 `(blocks, bytes)` of digits `(blocks, 5, bytes)`, the most significant first."""
    weights = (3 ** np.arange(5, dtype=np.uint16)[::-1])[:, None]
    number = (digits * weights).sum(1, dtype=np.uint32)
    return ((number * 256 + 242) // 243).astype(np.uint8)


PACKINGS: Mapping[str, Packing] = {
    "TQ2_0": Packing(-1, 1, False, put_two_bits),
    "Q4_0": Packing(-8, 7, False, put_nibbles),
    "Q5_0": Packing(-16, 15, False, _five_bits),
    "Q8_0": Packing(-128, 127, False, _bytes),
    "Q4_1": Packing(0, 15, True, put_nibbles),
    "Q5_1": Packing(0, 31, True, _five_bits),
    "TQ1_0": Packing(-1, 1, False, _base_three),
    "Q2_0": Packing(-1, 2, False, _two_bits_in_order),
}
"""By type, in the order in which they are preferred: the smallest first, after which come two that are slower, or newer
than most programs that read GGUF, and are made only where they are asked for."""


def pack(kind: str, levels: Array, scales: Array, minima: Array | None = None) -> Bytes:
    """Return blocks that mean level × scale, plus the minimum of the block where the type has one.

    Args:
        kind: Name of the type, one of `PACKINGS`.
        levels: Integers `(rows, columns)`.
        scales: float16 `(rows, blocks)`.
        minima: The same of the minima; None where the type has none.

    Raises:
        BlockError: A level, in the row that is named, is not one that the type holds.
    """
    packing, one = PACKINGS[kind], block_type(kind)
    wrong = (levels < packing.low) | (levels > packing.high)
    if wrong.any():
        row, column = (int(place[0]) for place in np.nonzero(wrong))
        found, held = int(levels[row, column]), f"{packing.low} to {packing.high}"
        raise BlockError(f"row {row}: level {found} in a {kind} block, which holds {held}")
    out = np.empty((len(levels), one.row_bytes(levels.shape[1])), np.uint8)
    parts: dict[str, Any] = as_blocks(one, out)
    parts["d"][0, :, 0] = scales.reshape(-1)
    if packing.minimum:
        assert minima is not None
        parts["m"][0, :, 0] = minima.reshape(-1)
    codes = (levels - packing.low).astype(np.uint8).reshape(-1, one.elements)
    packing.put(parts, codes)
    return out
