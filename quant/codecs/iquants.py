"""Lattice and non-linear types: IQ1_S … IQ4_XS.

Layouts: `block_iq*` of ggml-common.h; values: `dequantize_row_iq*` of ggml-quants.c. Where the C code reads bytes of a
struct through a wider pointer (scales of IQ1_M, the last third of IQ3_XXS's qs) the field has that wider type here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING

from ggferry.quant.blocks import Array, Parts, Unpack, affine, decoder, floats, planes, spread, translate
from ggferry.quant.codec import Accuracy, Codec
from ggferry.quant.codecs.grids import even_signs, grid, signs
from ggferry.quant.compiled_decoders import compiled
from ggferry.quant.kernels import Encoder
from ggferry.quant.types import table
from ggferry.support.heavy import np

if TYPE_CHECKING:
    from ggferry.quant.types import Bytes, Floats

TYPES = table(
    """
    IQ2_XXS 16 256 d:f2 qs:u2*32
    IQ2_XS  17 256 d:f2 qs:u2*32 scales:u1*8
    IQ3_XXS 18 256 d:f2 qs:u1*64 scales_and_signs:u4*8
    IQ1_S   19 256 d:f2 qs:u1*32 qh:u2*8
    IQ4_NL  20 32  d:f2 qs:u1*16
    IQ3_S   21 256 d:f2 qs:u1*64 qh:u1*8 signs:u1*32 scales:u1*4
    IQ2_S   22 256 d:f2 qs:u1*32 signs:u1*32 qh:u1*8 scales:u1*8
    IQ4_XS  23 256 d:f2 scales_h:u2 scales_l:u1*4 qs:u1*128
    IQ1_M   29 256 qs:u1*32 qh:u1*16 scales:u2*4
    """
)

IQ4_LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""`kvalues_iq4nl` of ggml-common.h."""

_DELTA = 0.125
"""`IQ1S_DELTA`, `IQ1M_DELTA` of ggml-common.h."""

Levels = Callable[[Parts], Array]
Coefficients = Callable[[Parts], tuple[Array, ...]]


def pick(lattice: Array, codes: Array) -> Array:
    """Return rows of int8 `(points, n)` for integer codes `(…)` as int8 `(…, n)`.

    One table read fetches a whole point.
    """
    word = f"u{lattice.shape[-1]}"
    found: Array = lattice.view(word)[:, 0][codes]
    return found.view(np.int8).reshape(*codes.shape, lattice.shape[-1])


def bits(words: Array, width: int, step: int, count: int) -> Array:
    """Extract bits: `(…, n)` → `(…, n, count)`, the `width` bits at 0, step, 2·step, … of every word."""
    shifts = np.arange(0, count * step, step, dtype=words.dtype)
    return words[..., None] >> shifts & words.dtype.type((1 << width) - 1)


def nibble_pairs(packed: Array) -> Array:
    """Unpack nibbles: uint8 `(…, n)` → `(…, 2n)`, the low nibble of each byte before its high one."""
    out = np.empty((*packed.shape[:-1], 2 * packed.shape[-1]), np.uint8)
    np.bitwise_and(packed, 15, out=out[..., 0::2])
    np.right_shift(packed, 4, out=out[..., 1::2])
    return out


def high_bits(packed: Array, width: int, count: int) -> Array:
    """Return uint16 `(…, n · count)`: `width`-bit fields that are `8/count` bits apart, moved to bit 8 and up."""
    fields = bits(packed.astype(np.uint16), width, 8 // count, count) << 8
    return fields.reshape(*packed.shape[:-1], packed.shape[-1] * count)


def signed(name: str, codes: Array, sign_table: Array, sign_codes: Array) -> Array:
    """Return int8 `(…, 256)`: points of the lattice, with elements negated where the signs say so."""
    points = pick(grid(name), codes)
    marks = pick(sign_table, sign_codes)
    return np.multiply(points.reshape(marks.shape), marks, out=marks)


def iq2_xxs_levels(parts: Parts) -> Array:
    """Return the levels.

    Two u32 for every 32 elements hold four lattice codes, then four 7-bit sign codes below the 4-bit scale.
    """
    words = np.ascontiguousarray(parts["qs"]).view("<u4")
    codes = np.ascontiguousarray(words[..., 0::2]).view(np.uint8)
    return signed("IQ2_XXS", codes, even_signs(), bits(words[..., 1::2], 7, 7, 4))


def iq2_xxs_scales(parts: Parts) -> tuple[Array]:
    words = np.ascontiguousarray(parts["qs"]).view("<u4")
    return (_half_step(parts["d"], words[..., 1::2] >> 28, 0.25),)


def _half_step(d: Array, scale: Array, factor: float) -> Array:
    """Return d · (0.5 + scale) · factor, computed in the order of the C code."""
    steps = d.astype(np.float32) * (np.float32(0.5) + scale.astype(np.float32))
    steps *= np.float32(factor)
    return steps


def iq2_xs_levels(parts: Parts) -> Array:
    """Return the levels: each u16 holds nine bits of lattice code and seven of signs."""
    return signed("IQ2_XS", parts["qs"] & 511, even_signs(), parts["qs"] >> 9)


def iq2_xs_scales(parts: Parts) -> tuple[Array]:
    return (_half_step(parts["d"], nibble_pairs(parts["scales"]), 0.25),)


def iq2_s_levels(parts: Parts) -> Array:
    return signed("IQ2_S", parts["qs"] | high_bits(parts["qh"], 2, 4), signs(), parts["signs"])


def iq3_xxs_levels(parts: Parts) -> Array:
    return signed("IQ3_XXS", parts["qs"], even_signs(), bits(parts["scales_and_signs"], 7, 7, 4))


def iq3_xxs_scales(parts: Parts) -> tuple[Array]:
    return (_half_step(parts["d"], parts["scales_and_signs"] >> 28, 0.5),)


def iq3_s_levels(parts: Parts) -> Array:
    return signed("IQ3_S", parts["qs"] | high_bits(parts["qh"], 1, 8), signs(), parts["signs"])


def iq3_s_scales(parts: Parts) -> tuple[Array]:
    return (parts["d"].astype(np.float32) * (1 + 2 * nibble_pairs(parts["scales"])),)


def iq1_s_levels(parts: Parts) -> Array:
    codes = parts["qs"].reshape(*parts["qh"].shape, 4) | bits(parts["qh"], 3, 3, 4) << 8
    return pick(grid("IQ1_S"), codes)


def iq1_s_coefficients(parts: Parts) -> tuple[Array, Array]:
    qh = parts["qh"]
    scales = parts["d"].astype(np.float32) * (2 * (qh >> 12 & 7) + 1)
    return scales, np.where(qh & 0x8000, np.float32(-_DELTA), np.float32(_DELTA))


def iq1_m_levels(parts: Parts) -> Array:
    """Return the levels: qh has a nibble for every lattice code, with three high bits and the sign of the delta."""
    return pick(grid("IQ1_S"), parts["qs"] | (nibble_pairs(parts["qh"]).astype(np.uint16) & 7) << 8)


def iq1_m_coefficients(parts: Parts) -> tuple[Array, Array]:
    scales = parts["scales"]
    d = iq1_m_d(scales).astype(np.float32)
    steps = d * (2 * bits(scales, 3, 3, 4) + 1).reshape(*scales.shape[:-1], 16)
    return steps, np.where(nibble_pairs(parts["qh"]) & 8, np.float32(-_DELTA), np.float32(_DELTA))


def iq1_m_d(scales: Array) -> Array:
    """Return float16 `(…, 1)`, whose four nibbles, lowest first, are the top nibbles of the four scale words."""
    nibbles = scales >> 12 << np.arange(0, 16, 4, dtype=np.uint16)
    d: Array = np.bitwise_or.reduce(nibbles, axis=-1, keepdims=True).view(np.float16)
    return d


def scaled_sum(levels: Levels, coefficients: Coefficients) -> Unpack:
    """Return an Unpack for value = scale × (level + delta), the order of the IQ1 types.

    Scales and deltas have groups of their own.
    """

    def unpack(parts: Parts, out: Array) -> None:
        np.copyto(out, levels(parts).reshape(out.shape))
        scale, delta = coefficients(parts)
        out += spread(delta, out.shape[-1])
        out *= spread(scale, out.shape[-1])

    return unpack


def iq4_levels(groups: int) -> Levels:
    """Return a function that gives the levels of split nibbles in `groups` runs of 32."""

    def levels(parts: Parts) -> Array:
        qs = parts["qs"]
        return translate(planes(qs.reshape(*qs.shape[:-1], groups, 16), 4), iq4_table())

    return levels


@cache
def iq4_table() -> bytes:
    return bytes(level & 255 for level in IQ4_LEVELS) + bytes(240)


def iq4_xs_scales(parts: Parts) -> tuple[Array]:
    """Return the scales: eight 6-bit numbers less 32, nibbles in scales_l and bit pairs in scales_h."""
    high = bits(parts["scales_h"], 2, 2, 8)[..., 0, :].astype(np.uint8) << 4
    scales = (nibble_pairs(parts["scales_l"]) | high).view(np.int8) - np.int8(32)
    return (parts["d"].astype(np.float32) * scales,)


UNPACK = {
    "IQ2_XXS": affine(iq2_xxs_levels, iq2_xxs_scales),
    "IQ2_XS": affine(iq2_xs_levels, iq2_xs_scales),
    "IQ3_XXS": affine(iq3_xxs_levels, iq3_xxs_scales),
    "IQ1_S": scaled_sum(iq1_s_levels, iq1_s_coefficients),
    "IQ4_NL": affine(iq4_levels(1), floats("d")),
    "IQ3_S": affine(iq3_s_levels, iq3_s_scales),
    "IQ2_S": affine(iq2_s_levels, iq2_xs_scales),
    "IQ4_XS": affine(iq4_levels(8), iq4_xs_scales),
    "IQ1_M": scaled_sum(iq1_m_levels, iq1_m_coefficients),
}

# `tensor_type_requires_imatrix` of llama-quant.cpp
NEED_IMATRIX = frozenset({"IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS"})


def _encoder(name: str) -> Callable[[Floats, Floats | None], Bytes]:
    family = {"IQ1": "iquants1", "IQ4": "iquants4"}.get(name[:3], "iquants")
    return Encoder(f"ggferry.quant.kernels.{family}", f"encode_{name.lower()}")


FILE_TYPE = {
    "IQ2_XXS": 19, "IQ2_XS": 20, "IQ3_XXS": 23, "IQ1_S": 24, "IQ4_NL": 25, "IQ3_S": 26, "IQ2_S": 28, "IQ4_XS": 30,
    "IQ1_M": 31,
}
ACCURACY = {
    "IQ2_XXS": Accuracy((0.3440, 0.4980)),
    "IQ2_XS": Accuracy((0.3000, 0.4120)),
    "IQ3_XXS": Accuracy((0.1810, 0.2500), 0.90, 0.80),
    "IQ1_S": Accuracy((0.4850, 0.6380)),
    "IQ4_NL": Accuracy((0.0761, 0.1050), 0.50, 0.35),
    "IQ3_S": Accuracy((0.1660, 0.2170), 0.90, 0.80),
    "IQ2_S": Accuracy((0.2480, 0.3800)),
    "IQ4_XS": Accuracy((0.0767, 0.1060), 0.50, 0.35),
    "IQ1_M": Accuracy((0.4510, 0.5550)),
}


def _not_finite_iq1_m(scales: Array) -> Array:
    """Mark where the exponent of the scale, a float16 in the upper nibbles of four words, is all ones."""
    found: Array = (scales[..., 3:] >> 12 & 7 == 7) & (scales[..., 2:3] >> 14 == 3)
    return found


SUSPICIOUS: Mapping[str, Mapping[str, Callable[[Array], Array]]] = {"IQ1_M": {"scales": _not_finite_iq1_m}}

SEARCHED = {"IQ4_XS": Encoder("ggferry.quant.kernels.searched_iquants", "encode_iq4_xs")}

DECODE = {name: decoder(kind, UNPACK[name]) for name, kind in TYPES.items()}

CODECS = tuple(
    Codec(
        kind, DECODE[name], _encoder(name), needs_imatrix=name in NEED_IMATRIX, searches=True,
        accuracy=ACCURACY[name], file_type=FILE_TYPE[name], suspicious=SUSPICIOUS.get(name, {}),
        compiled=compiled(kind, DECODE[name], "decode_iquants"), searched=SEARCHED.get(name),
    )
    for name, kind in TYPES.items()
)
