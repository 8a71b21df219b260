"""Types of ik_llama.cpp with tables of levels, two for every group: IQ2_K … IQ6_K, and Q6_0.

Layouts: `block_iq2_k` … `block_iq6_k`, `block_q6_0` of its ggml-common.h; values: `dequantize_row_*` of its
iqk/iqk_quantize.cpp and ggml-quants.c (8337e4cd). Bit g of `extra` says which of the two tables group g has. Ids are
the fork's own; llama.cpp reads none of these types.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from ggferry.quant.blocks import Array, Parts, affine, decoder, floats, planes, spread, translate
from ggferry.quant.codec import IK_LLAMA_CPP, Codec
from ggferry.quant.codecs.iquants import IQ4_LEVELS, bits, nibble_pairs
from ggferry.quant.types import table
from ggferry.support.heavy import np

if TYPE_CHECKING:
    from ggferry.quant.types import Floats

TYPES = table(
    """
    Q6_0  133 32  d:f2 qh:u1*8 qs:u1*16
    IQ2_K 137 256 d:f2 extra:u2 scales:u1*8 qs:u1*64
    IQ3_K 138 256 d:f2 extra:u2 scales_h:u2 scales_l:u1*8 qs:u1*64 qh:u1*32
    IQ4_K 139 256 d:f2 extra:u2 scales_h:u1*4 scales_l:u1*8 qs:u1*128
    IQ5_K 140 256 d:f2 extra:u2 scales_h:u1*4 scales_l:u1*8 qs:u1*128 qh:u1*32
    IQ6_K 141 256 d:f2 extra:u2 scales:i1*16 qs:u1*128 qh:u1*64
    """
)

LEVELS = {
    2: ((-31, -13, 1, 17), 5),
    3: ((-63, -40, -23, -10, 1, 13, 28, 47), 4),
    4: (IQ4_LEVELS, 4),
    5: (
        (
            -126, -114, -103, -92, -83, -74, -65, -57, -50, -43, -36, -30, -24, -18, -12, -6,
            -1, 5, 11, 17, 23, 29, 36, 43, 51, 59, 68, 77, 87, 97, 109, 121,
        ),
        2,
    ),
}  # fmt: skip
"""By width: `iq2nl_values`, `iq3nl_values`, `iq4k_values`, `iq5nl_values`: the first table, and how much higher every
level of the second one is."""


@cache
def _levels(width: int) -> bytes:
    first, shift = LEVELS[width]
    return bytes(level & 255 for level in (*first, *(level + shift for level in first))).ljust(256, b"\0")


def chosen(codes: Array, second: Array, width: int) -> Array:
    """Return the int8 levels of uint8 codes, `(…, groups, n)`, by the table that each group has, `(…, groups)`."""
    marks = (second.astype(np.uint8) << width).repeat(codes.shape[-1], axis=-1)
    return translate(codes | marks.reshape(codes.shape), _levels(width))


def two_bits(parts: Parts) -> Array:
    """Return the codes of `qs`, uint8 `(…, 8, 32)`: each 32 bytes hold four runs of 32."""
    qs = parts["qs"]
    return planes(qs.reshape(*qs.shape[:-1], 2, 32), 2).reshape(*qs.shape[:-1], 8, 32)


def three_bits(parts: Parts) -> Array:
    return two_bits(parts) | planes(parts["qh"], 1, 2)


def nibbles(parts: Parts, runs: int) -> Array:
    """Return the codes of `qs`, uint8 `(…, 2 · runs, 128 / runs)`: the low nibbles of a run, then its high ones."""
    qs = parts["qs"]
    return planes(qs.reshape(*qs.shape[:-1], runs, 128 // runs), 4).reshape(*qs.shape[:-1], 2 * runs, 128 // runs)


def five_bits(parts: Parts) -> Array:
    return nibbles(parts, 4) | planes(parts["qh"], 1, 4)


def _grouped(codes: Callable[[Parts], Array], width: int) -> Callable[[Parts], Array]:
    """Return a function that gives the levels of 16 groups of 16."""

    def levels(parts: Parts) -> Array:
        found = codes(parts)
        return chosen(found.reshape(*found.shape[:-2], 16, 16), bits(parts["extra"], 1, 1, 16)[..., 0, :], width)

    return levels


def _iq2_scales(parts: Parts) -> tuple[Array]:
    return (_scaled(parts, nibble_pairs(parts["scales"]).view(np.int8) - np.int8(8)),)


def _iq3_scales(parts: Parts) -> tuple[Array]:
    """Return the scales: odd numbers, whose sign is a bit of `scales_h`."""
    odd = (2 * nibble_pairs(parts["scales_l"]) + 1).view(np.int8)
    return (_scaled(parts, np.where(bits(parts["scales_h"], 1, 1, 16)[..., 0, :], -odd, odd)),)


def _six_bit_scales(parts: Parts) -> tuple[Array]:
    """Return the scales: nibbles of `scales_l`, bit pairs of `scales_h`, less 32."""
    high = bits(parts["scales_h"], 2, 2, 4).reshape(*parts["scales_h"].shape[:-1], 16) << 4
    return (_scaled(parts, (nibble_pairs(parts["scales_l"]) | high).view(np.int8) - np.int8(32)),)


def _scaled(parts: Parts, scale: Array) -> Array:
    return parts["d"].astype(np.float32) * scale


@cache
def _cubic() -> Floats:
    """Return the 64 levels of IQ6_K, and those of groups whose bit of `extra` is set, in float32 as C computes them.

    The fork's macros `A_IQ6K` to `S_IQ6K`. A compiler that contracts products and sums may differ in the last bit.
    """
    q = np.arange(64, dtype=np.float32)
    a, b, c, d = np.array([-127, 6.2568, 0.11218, 0.0011972], np.float32)
    first = a + q * (b + q * (-c + q * d))
    found: Floats = np.concatenate([first + np.float32(0), first + np.float32(1)])
    return found


def iq6_k(parts: Parts, out: Array) -> None:
    """Fill in the values of IQ6_K, the only type here whose levels are no integers."""
    qh = parts["qh"]
    codes = nibbles(parts, 4) | planes(qh.reshape(*qh.shape[:-1], 2, 32), 2, 4).reshape(*qh.shape[:-1], 8, 32)
    second = bits(parts["extra"], 1, 1, 16)[..., 0, :].astype(np.uint8) << 6
    out[...] = _cubic()[codes.reshape(out.shape) | spread(second, 256)]
    out *= spread(_scaled(parts, parts["scales"]), 256)


def _q6_0_levels(parts: Parts) -> Array:
    """Return the levels: the two bits of `qh` of elements 0 … 7, 16 … 23, 8 … 15 and 24 … 31, from the lowest on."""
    high = planes(parts["qh"], 2, 4)[..., [0, 2, 1, 3], :].reshape(*parts["qs"].shape[:-1], 2, 16)
    return (planes(parts["qs"], 4) | high).view(np.int8) - np.int8(32)


UNPACK = {
    "Q6_0": affine(_q6_0_levels, floats("d")),
    "IQ2_K": affine(_grouped(two_bits, 2), _iq2_scales),
    "IQ3_K": affine(_grouped(three_bits, 3), _iq3_scales),
    "IQ4_K": affine(_grouped(lambda parts: nibbles(parts, 8), 4), _six_bit_scales),
    "IQ5_K": affine(_grouped(five_bits, 5), _six_bit_scales),
    "IQ6_K": iq6_k,
}

CODECS = tuple(Codec(kind, decoder(kind, UNPACK[name]), runtime=IK_LLAMA_CPP) for name, kind in TYPES.items())
