"""Types of ik_llama.cpp with one float for a whole row: IQ2_KS … IQ5_KS, IQ4_KSS, IQ2_KL, Q8_KV.

Layouts: `block_iq2_ks` … `block_iq2_kl` of its ggml-common.h, and `row_meta_size` of its ggml.c; values:
`dequantize_row_*` of its iqk/iqk_quantize.cpp (8337e4cd).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from ggferry.quant.blocks import Array, Parts, affine, decoder, floats, planes, split_nibbles
from ggferry.quant.codec import IK_LLAMA_CPP, Codec
from ggferry.quant.codecs.iquants import bits, nibble_pairs
from ggferry.quant.codecs.nonlinear import chosen, five_bits, nibbles, three_bits, two_bits
from ggferry.quant.types import table
from ggferry.support.heavy import np

TYPES = table(
    """
    IQ4_KS  144 256 d:f4 / scales:u1*8 qs:u1*128
    IQ2_KS  145 256 d:f2 / extra:u2 scales:u1*4 qs:u1*64
    IQ4_KSS 146 256 d:f4 / qs:u2*64
    Q8_KV   151 32  d:f4 sum:i4 / qs:i1*32
    IQ5_KS  152 256 d:f4 / scales:u1*8 qs:u1*128 qh:u1*32
    IQ3_KS  156 256 d:f2 / extra:u2 scales:u1*4 qs:u1*64 qh:u1*32
    IQ2_KL  157 256 d:f2 / scales_h:u2 scales_l:u1*4 qs:u1*64 qh:u1*16
    """
)

_PAIR_LEVELS = (-63, -40, -23, -10, 1, 13, 28, 47)
_PAIRS = "02 05 10 13 15 17 21 22 24 25 26 30 34 35 37 42 43 44 45 46 51 52 53 54 55 60 62 64 66 67 72 75"
"""`iq2kl_values`: the indices, in the levels of three bits, of the two values that each code stands for."""


@cache
def _pairs() -> Array:
    """Return int8 `(32, 2)`."""
    return np.array([[_PAIR_LEVELS[int(digit)] for digit in pair] for pair in _PAIRS.split()], np.int8)


def _scaled(parts: Parts, scale: Array) -> Array:
    return parts["d"].astype(np.float32) * scale


def _flagged(codes: Callable[[Parts], Array], width: int) -> Callable[[Parts], Array]:
    """Return a function that gives the levels of groups of 32 whose table is the lowest bit of their scale."""
    return lambda parts: chosen(codes(parts), parts["scales"] & 1, width)


def _codes_of_16_bytes(parts: Parts) -> Array:
    """Return the codes of groups of 32: 16 low nibbles, then 16 high ones."""
    return nibbles(parts, 8).reshape(*parts["qs"].shape[:-1], 8, 32)


def _even_scales(parts: Parts) -> tuple[Array]:
    return (_scaled(parts, (parts["scales"] & 254).astype(np.int16) - np.int16(127)),)


def _extra(parts: Parts) -> Array:
    """Return uint16 `(…, 16)`: the bits of `extra`."""
    return bits(parts["extra"], 1, 1, 16)[..., 0, :]


def _iq2_ks_scales(parts: Parts) -> tuple[Array]:
    high = _extra(parts)[..., 8:].astype(np.uint8) << 4
    return (_scaled(parts, (nibble_pairs(parts["scales"]) | high).view(np.int8) - np.int8(16)),)


def _iq3_ks_scales(parts: Parts) -> tuple[Array]:
    high = _extra(parts)[..., :8].astype(np.uint8) << 4
    return (_scaled(parts, (split_nibbles(parts["scales"]) | high).view(np.int8) - np.int8(16)),)


def _kss_scale_bits(parts: Parts) -> Array:
    """Return uint8 `(…, 8)`: the lowest bits of eight words each."""
    low = (parts["qs"] & 1).astype(np.uint8)
    found: Array = np.packbits(low, axis=-1, bitorder="little")
    return found


def _kss_levels(parts: Parts) -> Array:
    """Return the levels: of each word, whose lowest bit is the scale's, the Gray code is undone in one step."""
    words = parts["qs"] & np.uint16(0xFFFE)
    words ^= words >> np.uint16(1)
    codes = np.ascontiguousarray(words).view(np.uint8)
    codes = planes(codes.reshape(*codes.shape[:-1], 8, 16), 4).reshape(*codes.shape[:-1], 8, 32)
    return chosen(codes, _kss_scale_bits(parts) & 1, 4)


def _kss_scales(parts: Parts) -> tuple[Array]:
    return (_scaled(parts, (_kss_scale_bits(parts) & 254).astype(np.int16) - np.int16(127)),)


def _iq2_kl_levels(parts: Parts) -> Array:
    qs = parts["qs"]
    codes = planes(qs.reshape(*qs.shape[:-1], 4, 16), 4).reshape(*qs.shape[:-1], 8, 16) | planes(parts["qh"], 1, 4)
    return _pairs()[codes]


def _iq2_kl_scales(parts: Parts) -> tuple[Array]:
    high = bits(parts["scales_h"], 2, 2, 8)[..., 0, :].astype(np.uint8) << 4
    return (_scaled(parts, (split_nibbles(parts["scales_l"]) | high).view(np.int8) - np.int8(32)),)


UNPACK = {
    "IQ4_KS": affine(_flagged(_codes_of_16_bytes, 4), _even_scales),
    "IQ2_KS": affine(lambda parts: chosen(two_bits(parts), _extra(parts)[..., :8], 2), _iq2_ks_scales),
    "IQ4_KSS": affine(_kss_levels, _kss_scales),
    "Q8_KV": affine(lambda parts: parts["qs"], floats("d")),
    "IQ5_KS": affine(_flagged(five_bits, 5), _even_scales),
    "IQ3_KS": affine(lambda parts: chosen(three_bits(parts), _extra(parts)[..., 8:], 3), _iq3_ks_scales),
    "IQ2_KL": affine(_iq2_kl_levels, _iq2_kl_scales),
}

CODECS = tuple(Codec(kind, decoder(kind, UNPACK[name]), runtime=IK_LLAMA_CPP) for name, kind in TYPES.items())
