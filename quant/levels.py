"""Levels of blocks whose scales are fixed already: what a value is in steps of its scale, and back.

An encoder chooses scales and levels together. Rounding that corrects later columns for the errors of earlier ones
(`quant.rounding.feedback`) takes an encoder's scales and chooses the levels itself. Layouts: those of the codecs that
decode the types (`quant.codecs.simple`, `kquants`, `iquants`), read backwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ggferry.quant.blocks import Array, Parts, as_blocks
from ggferry.quant.codec import affine_of, block_type
from ggferry.quant.codecs.iquants import IQ4_LEVELS
from ggferry.quant.pack_levels import PACKINGS, put_nibbles, put_two_bits
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.quant.types import Bytes, Floats


@dataclass(frozen=True, slots=True)
class Levels:
    """The levels of one block type.

    Attributes:
        values: The level that each code stands for, ascending.
        put: Stores codes, uint8 `(blocks, elements)`, in the fields other than those of scales.
    """

    values: tuple[int, ...]
    put: Callable[[Parts, Array], None]

    @property
    def uniform(self) -> bool:
        """Whether levels are consecutive integers."""
        return self.values[-1] - self.values[0] == len(self.values) - 1


def _put_q3(parts: Parts, codes: Array) -> None:
    put_two_bits(parts, codes & 3)
    parts["hmask"][0] = _bits(codes >> 2)


def _put_nibbles_by_64(parts: Parts, codes: Array) -> None:
    pairs = (codes & 15).reshape(len(codes), 4, 2, 32)
    parts["qs"][0] = (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(len(codes), 128)


def _put_q5(parts: Parts, codes: Array) -> None:
    _put_nibbles_by_64(parts, codes)
    parts["qh"][0] = _bits(codes >> 4)


def _put_q6(parts: Parts, codes: Array) -> None:
    low = (codes & 15).reshape(len(codes), 2, 2, 64)
    parts["ql"][0] = (low[:, :, 0] | low[:, :, 1] << 4).reshape(len(codes), 128)
    high = (codes >> 4).reshape(len(codes), 2, 4, 32)
    parts["qh"][0] = (high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6).reshape(-1, 64)


def _put_nibbles_by_32(parts: Parts, codes: Array) -> None:
    pairs = codes.reshape(len(codes), 8, 2, 16)
    parts["qs"][0] = (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(len(codes), 128)


def _bits(codes: Array) -> Array:
    """Return bit k of byte j for element 32k + j: uint8 `(blocks, 256)`, each 0 or 1, to `(blocks, 32)`."""
    planes = codes.reshape(len(codes), 8, 32) << np.arange(8, dtype=np.uint8)[:, None]
    found: Array = np.bitwise_or.reduce(planes, axis=1)
    return found


def _integers(low: int, high: int) -> tuple[int, ...]:
    return tuple(range(low, high + 1))


LEVELS: Mapping[str, Levels] = {
    **{
        name: Levels(_integers(PACKINGS[name].low, PACKINGS[name].high), PACKINGS[name].put)
        for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
    },
    "IQ4_NL": Levels(IQ4_LEVELS, put_nibbles),
    "Q2_K": Levels(_integers(0, 3), put_two_bits),
    "Q3_K": Levels(_integers(-4, 3), _put_q3),
    "Q4_K": Levels(_integers(0, 15), _put_nibbles_by_64),
    "Q5_K": Levels(_integers(0, 31), _put_q5),
    "Q6_K": Levels(_integers(-32, 31), _put_q6),
    "IQ4_XS": Levels(IQ4_LEVELS, _put_nibbles_by_32),
}
"""The types whose levels can be chosen value by value; those of lattices (IQ1, IQ2, IQ3) hold several in one code."""


def coefficients(kind: str, rows: Bytes) -> tuple[Floats, Floats]:
    """Return scale and shift of every group of neighbors in encoded rows: value = level × scale + shift.

    Args:
        kind: Name of the type, one of `LEVELS`.
        rows: uint8 `(R, row bytes)`, C-contiguous.

    Returns:
        Two float32 arrays `(R, groups)`.
    """
    scale, *shift = affine_of(kind).coefficients(as_blocks(block_type(kind), rows))
    found: Any = scale.reshape(len(rows), -1)
    return found, shift[0].reshape(found.shape) if shift else np.zeros_like(found)


def put_codes(kind: str, rows: Bytes, codes: Array) -> None:
    """Store codes, uint8 `(R, columns)`, in encoded rows, uint8 `(R, row bytes)`, whose scales stay as they are."""
    one = block_type(kind)
    LEVELS[kind].put(as_blocks(one, rows), codes.reshape(-1, one.elements))
