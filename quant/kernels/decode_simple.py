"""Decoders of the blocks of 32 with one scale, of today and of the eras (codecs/simple.py, legacy.py)."""

from __future__ import annotations

from ggferry.quant.kernels.common import F, I, inline
from ggferry.quant.kernels.decode_common import (
    decoder,
    endless_half,
    endless_single,
    finite_half,
    half,
    scaled,
    shifted,
    single,
    word,
)
from ggferry.quant.kernels.lanes_bytes import fields, mixed_high, mixed_low, octets, octets2, signed


@inline
def scale_at(p, at, wide):
    """Return the scale, float32 where `wide`, else float16, and whether it is infinite or NaN."""
    if wide:
        w = word(p, at)
        return single(w), endless_single(w)
    h = half(p, at)
    return finite_half(h), endless_half(h)


@inline
def nibbles(p, out, size, wide, minimum, five, zero, mixed):
    """Blocks of 32 nibbles.

    Args:
        p: The blocks.
        out: Their values.
        size: Bytes of a block.
        wide: Whether scales are float32.
        minimum: Whether a minimum follows the scale.
        five: Whether four bytes of fifth bits follow.
        zero: The level that means 0.
        mixed: Whether a byte holds neighbors.
    """
    step = 4 if wide else 2
    m = F(0)
    for block in range(out.size // 32):
        at, o = block * size, 32 * block
        d, endless = scale_at(p, at, wide)
        at += step
        if minimum:
            m, more = scale_at(p, at, wide)
            endless = endless or more
            at += step
        if endless:
            return False
        high = 0
        if five:
            high = word(p, at)
            at += 4
        q = octets(p, at)
        a, b = q & 15, q >> 4
        if mixed:
            a, b = mixed_low(a, b), mixed_high(a, b)
        if five:
            a, b = a | fields(high & 0xFFFF, 1, 1) << 4, b | fields(high >> 16, 1, 1) << 4
        if minimum:
            shifted(out, o, a, d, m)
            shifted(out, o + 16, b, d, m)
        else:
            scaled(out, o, a - zero, d)
            scaled(out, o + 16, b - zero, d)
    return True


@decoder
def q4_0(p, out, columns):
    return nibbles(p, out, 18, False, False, False, I(8), False)


@decoder
def q4_1(p, out, columns):
    return nibbles(p, out, 20, False, True, False, I(0), False)


@decoder
def q5_0(p, out, columns):
    return nibbles(p, out, 22, False, False, True, I(16), False)


@decoder
def q5_1(p, out, columns):
    return nibbles(p, out, 24, False, True, True, I(0), False)


@decoder
def q4_0_v1(p, out, columns):
    return nibbles(p, out, 20, True, False, False, I(8), True)


@decoder
def q4_1_v1(p, out, columns):
    return nibbles(p, out, 24, True, True, False, I(0), True)


@decoder
def q5_0_v1(p, out, columns):
    return nibbles(p, out, 22, False, False, True, I(16), True)


@decoder
def q5_1_v1(p, out, columns):
    return nibbles(p, out, 24, False, True, True, I(0), True)


@decoder
def q4_0_v2(p, out, columns):
    return nibbles(p, out, 20, True, False, False, I(8), False)


@decoder
def q4_1_v2(p, out, columns):
    return nibbles(p, out, 24, True, True, False, I(0), False)


@inline
def bytes_of_32(p, out, size, wide):
    for block in range(out.size // 32):
        at, o = block * size, 32 * block
        d, endless = scale_at(p, at, wide)
        if endless:
            return False
        scaled(out, o, signed(octets(p, at + size - 32)), d)
        scaled(out, o + 16, signed(octets(p, at + size - 16)), d)
    return True


@decoder
def q8_0(p, out, columns):
    return bytes_of_32(p, out, 34, False)


@decoder
def q8_1(p, out, columns):
    return bytes_of_32(p, out, 36, False)


@decoder
def q8_0_v1(p, out, columns):
    return bytes_of_32(p, out, 36, True)


@inline
def sixteen(p, out, size, minimum):
    """Blocks of 16 nibbles, neighbors in a byte."""
    m = F(0)
    for block in range(out.size // 16):
        at, o = block * size, 16 * block
        d, endless = scale_at(p, at, False)
        if minimum:
            m, more = scale_at(p, at + 2, False)
            endless = endless or more
        if endless:
            return False
        q = octets2(p, at + size - 8, at + size - 8)
        levels = mixed_low(q & 15, q >> 4)
        if minimum:
            shifted(out, o, levels, d, m)
        else:
            scaled(out, o, levels - 8, d)
    return True


@decoder
def q4_2(p, out, columns):
    return sixteen(p, out, 10, False)


@decoder
def q4_3(p, out, columns):
    return sixteen(p, out, 12, True)


@decoder
def q4_1_o(p, out, columns):
    for block in range(out.size // 32):
        at, o = block * 24, 32 * block
        d, endless = scale_at(p, at, False)
        m, more = scale_at(p, at + 2, False)
        value, most = scale_at(p, at + 6, False)
        if endless or more or most:
            return False
        q = octets(p, at + 8)
        a, b = q & 15, q >> 4
        shifted(out, o, mixed_low(a, b), d, m)
        shifted(out, o + 16, mixed_high(a, b), d, m)
        outlier = half(p, at + 4)
        if outlier < 32:
            out[o + outlier] = value
    return True


@inline
def planar(p, out, columns, minimum):
    """Rows that hold all minima, then all scales, then all nibbles, neighbors in a byte."""
    blocks = columns // 32
    size = 24 if minimum else 20
    m = F(0)
    for row in range(out.size // columns):
        start = row * blocks * size
        for block in range(blocks):
            o = row * columns + 32 * block
            d, endless = scale_at(p, start + (4 * blocks if minimum else 0) + 4 * block, True)
            if minimum:
                m, more = scale_at(p, start + 4 * block, True)
                endless = endless or more
            if endless:
                return False
            q = octets(p, start + blocks * (size - 16) + 16 * block)
            a, b = q & 15, q >> 4
            if minimum:
                shifted(out, o, mixed_low(a, b), d, m)
                shifted(out, o + 16, mixed_high(a, b), d, m)
            else:
                scaled(out, o, mixed_low(a, b) - 8, d)
                scaled(out, o + 16, mixed_high(a, b) - 8, d)
    return True


@decoder
def q4_0_planar(p, out, columns):
    return planar(p, out, columns, False)


@decoder
def q4_1_planar(p, out, columns):
    return planar(p, out, columns, True)
