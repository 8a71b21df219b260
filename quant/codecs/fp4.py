"""Four-bit floats with shared scales: MXFP4 and NVFP4.

The E2M1 levels are stored doubled, so scales are halved. Layouts: `block_mxfp4`, `block_nvfp4` of ggml-common.h;
scales: `ggml_e8m0_to_fp32_half` and `ggml_ue4m3_to_fp32` of ggml-impl.h.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

from ggferry.quant.blocks import Array, Parts, affine, decoder, planes, translate
from ggferry.quant.codec import Accuracy, Codec
from ggferry.quant.compiled_decoders import compiled
from ggferry.quant.kernels import Encoder
from ggferry.quant.types import table
from ggferry.support.heavy import np

TYPES = table(
    """
    MXFP4 39 32 e:u1   qs:u1*16
    NVFP4 40 64 d:u1*4 qs:u1*32
    """
)

LEVELS = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""`kvalues_mxfp4`: E2M1, doubled; negative zero is zero."""


@cache
def _table() -> bytes:
    return bytes(level & 255 for level in LEVELS) + bytes(240)


def _mxfp4_levels(parts: Parts) -> Array:
    return translate(planes(parts["qs"], 4), _table())


def _nvfp4_levels(parts: Parts) -> Array:
    """Return the levels: sixteen elements, in eight bytes with the low nibbles first, share a scale."""
    qs = parts["qs"]
    return translate(planes(qs.reshape(*qs.shape[:-1], 4, 8), 4), _table())


@cache
def half_e8m0() -> Array:
    """Return float32 `(256,)`: 2^(e − 128), subnormal for 0 and 1."""
    return np.ldexp(np.float32(1), np.arange(256) - 128).astype(np.float32)


@cache
def half_ue4m3() -> Array:
    """Return float32 `(256,)`: exponent bias 7, halved.

    0x7F (NaN elsewhere) is 0. The sign bit is ignored, except that 0xFF is therefore 240.
    """
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    values = np.where(exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0)) / 2
    values[0x7F] = 0
    return values.astype(np.float32)


def _mxfp4_scales(parts: Parts) -> tuple[Array]:
    return (half_e8m0()[parts["e"]],)


def _nvfp4_scales(parts: Parts) -> tuple[Array]:
    return (half_ue4m3()[parts["d"]],)


UNPACK = {"MXFP4": affine(_mxfp4_levels, _mxfp4_scales), "NVFP4": affine(_nvfp4_levels, _nvfp4_scales)}

KERNELS = "ggferry.quant.kernels.fp4"

FILE_TYPE = {"MXFP4": 38, "NVFP4": 39}
ACCURACY = {
    "MXFP4": Accuracy((0.1150, 0.1420), 0.50, 0.40, floor=2.0**-120),
    "NVFP4": Accuracy((0.0910, 0.0952), 0.50, 0.40, floor=6 * 2.0**-9),
}
# 12 × 2^(e − 128) overflows from 253 on. NVFP4's scales are always finite.
SUSPICIOUS: Mapping[str, Mapping[str, Callable[[Array], Array]]] = {"MXFP4": {"e": lambda e: e >= 252}}

DECODE = {name: decoder(kind, UNPACK[name]) for name, kind in TYPES.items()}

CODECS = tuple(
    Codec(
        kind, DECODE[name], Encoder(KERNELS, f"encode_{name.lower()}"),
        accuracy=ACCURACY[name], file_type=FILE_TYPE[name], suspicious=SUSPICIOUS.get(name, {}),
        compiled=compiled(kind, DECODE[name], "decode_small"),
    )
    for name, kind in TYPES.items()
)
