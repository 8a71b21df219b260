"""Encoders of MXFP4 and NVFP4: `quantize_row_mxfp4_ref`, `quantize_row_nvfp4_ref` of ggml-quants.c."""

from __future__ import annotations

from functools import cache
from math import log
from typing import TYPE_CHECKING, Any

import numpy as np

from ggferry.quant.blocks import ValueRefused, refuse_nonfinite
from ggferry.quant.codecs.fp4 import TYPES, half_e8m0, half_ue4m3
from ggferry.quant.kernels.common import F, I, encode_rows, inline, kernel
from ggferry.quant.kernels.lanes import (
    WIDTH,
    absolute,
    as_ints,
    highest,
    load,
    maximum,
    pointer,
    rolled,
    scalar_bits,
    scalar_float,
    skip,
    spread,
    store,
    where,
)

if TYPE_CHECKING:
    from ggferry.quant.types import Bytes, Floats

_FINITE = F(3.4028235e38)
_LEAST_LOG2 = -149


@cache
def rounded_up() -> Any:
    """int32 by exponent + 149: so many of the floats just below 2^exponent have a `log2f` that rounds to it.

    log2(2^t·(1 − n·2⁻²⁴)) is about t − n·2⁻²⁴ / ln 2, which float32 rounds to t up to half the spacing below t.
    """
    exponents = np.arange(_LEAST_LOG2, 130, dtype=np.float32)
    spacing = exponents.astype(float) - np.nextafter(exponents, F(-np.inf)).astype(float)
    count: Any = np.floor(spacing / 2 * 2.0**24 * log(2)).astype(np.int32)
    return np.where(exponents == 0, 0, count).astype(np.int32)


@inline
def floor_log2(v, up):
    """floor(log2f(v)) of a positive float32."""
    shift = 0
    if v < F(2.0**-100):  # among them the denormals
        v *= F(2.0**64)
        shift = 64
    b = np.int64(scalar_bits(v))
    exponent = (b >> 23) - 127 - shift
    return (b + up[exponent + 1 - _LEAST_LOG2] >> 23) - 127 - shift


@inline
def greatest(x, n):
    most = spread(I(0))
    for i in range(0, n, WIDTH):
        most = maximum(most, as_ints(absolute(load(x, i))))
    return scalar_float(highest(most))


@inline
def with_signs(index, v):
    """Levels 8 and up are those from 0 on with a minus; zero keeps to itself."""
    return where((v < F(0)) & (index > 0), index | 8, index)


@inline
def levels_within(x, at, d):
    """Return indices of the E2M1 levels 0, d, 2d, 3d, 4d, 6d, 8d, 12d nearest to eight values of at most 16 d.

    Of two equally near the lower is taken. Differences around the middles are exact there, so that the middles decide.
    """
    v = load(x, at)
    magnitude = absolute(v)
    zero, one = spread(I(0)), spread(I(1))
    index = where(magnitude > d * F(0.5), one, zero)
    for middle in (F(1.5), F(2.5), F(3.5), F(5), F(7), F(10)):
        index += where(magnitude > d * middle, one, zero)
    return with_signs(index, v)


@inline
def levels_nearest(x, at, d):
    """The same for values of any size: differences may round to the same, and then the lowest index wins."""
    v = load(x, at)
    magnitude = absolute(v)
    least, index = magnitude, spread(I(0))
    i = I(0)
    for level in (F(1), F(2), F(3), F(4), F(6), F(8), F(12)):
        i += I(1)
        gap = absolute(magnitude - level * d)
        closer = gap < least
        index = where(closer, spread(I(i)), index)
        least = where(closer, gap, least)
    return with_signs(index, v)


@kernel
def _mxfp4(values, up, scales, out):
    """−1, or the number of the first block that is not finite, or whose exponent would be the one that says NaN."""
    for block in range(len(values) // 32):
        x, y = skip(pointer(values), 32 * block), skip(pointer(out), 17 * block)
        top = greatest(x, 32)
        if not top <= _FINITE:
            return block
        e = floor_log2(top, pointer(up)) + 125 & 255 if top > 0 else 0
        if e == 255:
            return block
        y[0] = e
        d = scales[e]
        for i in range(0, 16, WIDTH):
            rolled()
            store(y, 1 + i, levels_within(x, i, d) | levels_within(x, 16 + i, d) << 4)
    return -1


@inline
def ue4m3(v):
    """`ggml_fp32_to_ue4m3`: four bits of exponent, three of mantissa, half up; 256 and more is 448."""
    if not v > 0:
        return 0
    b = np.int64(scalar_bits(v))
    exponent = (b >> 23) - 120
    if exponent <= 0:
        return min(np.int64(v * F(512) + F(0.5)), 7)
    code = (exponent << 3) + ((b >> 20 & 7) + (b >> 19 & 1))
    return code if code < 0x78 else 0x7E


@kernel
def _nvfp4(values, scales, out):
    """−1, or the number of the first block that is not finite."""
    for block in range(len(values) // 64):
        x, y = skip(pointer(values), 64 * block), skip(pointer(out), 36 * block)
        for s in range(4):
            rolled()
            top = greatest(skip(x, 16 * s), 16)
            if not top <= _FINITE:
                return block
            e = ue4m3(top / F(6))
            y[s] = e
            d = scales[e]
            store(y, 4 + 8 * s, levels_nearest(x, 16 * s, d) | levels_nearest(x, 16 * s + 8, d) << 4)
    return -1


def encode_mxfp4(values: Floats, weights: Floats | None = None) -> Bytes:
    """Encode MXFP4 rows.

    Raises ValueRefused also for a block whose greatest magnitude is in [2⁻¹²⁶, 2⁻¹²⁵): the reference's exponent wraps
    around to the one that means NaN, and llama-quantize refuses that.
    """
    kind = TYPES["MXFP4"]

    def run(x: Floats, out: Bytes, first: int) -> bool:
        bad = _mxfp4(x, rounded_up(), half_e8m0(), out)
        if bad >= 0:
            refuse_nonfinite(kind, values)
            row, column = divmod((first + bad) * kind.elements, values.shape[1])
            raise ValueRefused(row, column, "the block here is too small for an MXFP4 exponent")
        return True

    return encode_rows(kind, run, values)


def encode_nvfp4(values: Floats, weights: Floats | None = None) -> Bytes:
    return encode_rows(TYPES["NVFP4"], lambda x, out, first: _nvfp4(x, half_ue4m3(), out) < 0, values)
