"""Blocks taken apart into integers, scales and biases of groups, as MLX keeps matrices.

value = code × scale + bias, in float32. A type is listed where that gives the values of its own decoder, none changed:
code × scale needs at most 24 bits, since scales are float16, times an integer of 6 bits in the K types; so the one
rounding is that of the sum, which the decoder rounds likewise, or the sum is exact. Types with float32 scales of 2023
are not: there the product rounds, too. Groups of 16 (Q2_K, Q3_K, Q6_K) are none of MLX's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ggferry.quant.blocks import Array, as_blocks
from ggferry.quant.codec import affine_of
from ggferry.quant.types import BlockType
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.quant.types import Bytes, Floats

LARGEST_GROUP = 128
LEVELS: Mapping[str, tuple[int, int]] = {
    "Q4_0": (4, -8),
    "Q4_1": (4, 0),
    "Q5_0": (5, -16),
    "Q5_1": (5, 0),
    "Q8_0": (8, -128),
    "Q4_K": (4, 0),
    "Q5_K": (5, 0),
    "TQ1_0": (2, -1),
    "TQ2_0": (2, -1),
    "Q5_0_V1": (5, -16),
    "Q5_1_V1": (5, 0),
    "Q4_K_64": (4, 0),
}
"""By type: the bits of a code, and the level that code 0 means."""
ENCODED = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k")
"""Those of them that floats can be encoded to."""


@dataclass(frozen=True, slots=True)
class AffineGroups:
    """How the blocks of a type are taken apart.

    Attributes:
        kind: The type.
        bits: Bits of a code.
        low: The level that code 0 means.
        size: Neighbors that share a scale and a bias.
    """

    kind: BlockType
    bits: int
    low: int
    size: int

    def words_bytes(self, columns: int) -> int:
        """Return the bytes of the codes of a row."""
        return columns * self.bits // 8

    def apart(self, blocks: Bytes, columns: int) -> tuple[Bytes, Floats, Floats]:
        """Return packed codes, uint8 `(R, words_bytes)`, scales and biases, float32 `(R, columns / size)`.

        Args:
            blocks: uint8 `(R, row bytes)`.
            columns: Elements of a row.
        """
        rows, parts = len(blocks), as_blocks(self.kind, np.ascontiguousarray(blocks))
        unpack = affine_of(self.kind.name)
        levels = unpack.levels(parts).reshape(rows, columns)
        with np.errstate(all="ignore"):  # what is not finite is found by whoever writes it
            scales, *shifts = (self._whole(each, rows, columns) for each in unpack.coefficients(parts))
            biases = shifts[0] if shifts else scales * np.float32(self.low)
        codes = levels if self.low == 0 else levels - np.int8(self.low) if self.low > -128 else levels ^ np.int8(-128)
        return pack_stream(codes.view(np.uint8), self.bits), scales, biases

    def _whole(self, coefficients: Array, rows: int, columns: int) -> Floats:
        """Return coefficients as float32 `(rows, groups)`: once for each group of MLX's, which may be smaller."""
        found: Floats = np.ascontiguousarray(coefficients.reshape(rows, -1), np.float32)
        return found.repeat(columns // self.size // found.shape[1], axis=1)


def affine_groups(kind: BlockType) -> AffineGroups | None:
    """Return how blocks of a type are taken apart; None where no integers, scales and biases have their values."""
    if kind.name not in LEVELS:
        return None
    bits, low = LEVELS[kind.name]
    scales = affine_of(kind.name).coefficients(as_blocks(kind, np.zeros((1, kind.block_bytes), np.uint8)))[0]
    return AffineGroups(kind, bits, low, min(LARGEST_GROUP, kind.elements // scales.shape[-1]))


def pack_stream(codes: Bytes, bits: int) -> Bytes:
    """Pack uint8 `(R, n)`, n a multiple of 8, to `(R, n × bits / 8)`: the first in the lowest bits, without padding."""
    if bits == 8:
        return codes
    eights = codes.reshape(len(codes), -1, 8)
    packed = np.zeros(eights.shape[:2], "<u8")
    for number in range(8):
        packed |= eights[..., number].astype("<u8") << np.uint64(number * bits)
    found: Bytes = packed.view(np.uint8).reshape(*eights.shape)[..., :bits].reshape(len(codes), -1)
    return found
