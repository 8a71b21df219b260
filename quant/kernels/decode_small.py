"""Decoders of four-bit floats, ternary and binary types, and of packed integers; as in the codecs of those names."""

from __future__ import annotations

import numpy as np

from ggferry.quant.kernels.common import F, I, inline
from ggferry.quant.kernels.decode_common import decoder, endless_half, finite_half, half, scaled, word
from ggferry.quant.kernels.lanes import scalar_float, where
from ggferry.quant.kernels.lanes_bytes import fields, numbers, octets, octets2, octets4


@inline
def e2m1(q):
    """The levels of sixteen E2M1 numbers, doubled: 0 1 2 3 4 6 8 12, and below 0 where bit 3 is set."""
    size = q & 7
    levels = where(size < 4, size, ((size & 1) + 2) << (size >> 1) >> 1)
    return where(q > 7, 0 - levels, levels)


@decoder
def mxfp4(p, out, columns):
    for block in range(out.size // 32):
        at, o = 17 * block, 32 * block
        e = np.int64(p[at])
        d = scalar_float(I((e - 1) << 23)) if e > 1 else scalar_float(I(0x200000 << e))
        q = octets(p, at + 1)
        scaled(out, o, e2m1(q & 15), d)
        scaled(out, o + 16, e2m1(q >> 4), d)
    return True


@decoder
def nvfp4(p, out, columns):
    for block in range(out.size // 64):
        at, o = 36 * block, 64 * block
        for g in range(4):
            c = np.int64(p[at + g])
            e, m = c >> 3 & 15, c & 7
            d = scalar_float(I((e + 119) << 23 | m << 20)) if e else F(m) * F(2.0**-10)
            if c == 0x7F:
                d = F(0)
            q = octets2(p, at + 4 + 8 * g, at + 4 + 8 * g)
            scaled(out, o + 16 * g, e2m1(where(numbers() < 8, q & 15, q >> 4)), d)
    return True


@inline
def digit(q):
    """The first base-3 digit of fractions byte / 256, less one."""
    return ((q & 255) * 3 >> 8) - 1


@decoder
def tq1_0(p, out, columns):
    for block in range(out.size // 256):
        at, o = 54 * block, 256 * block
        h = half(p, at + 52)
        if endless_half(h):
            return False
        d, power = finite_half(h), 1
        a, b, c = octets(p, at), octets(p, at + 16), octets(p, at + 32)
        for n in range(5):
            scaled(out, o + 32 * n, digit(a * power), d)
            scaled(out, o + 32 * n + 16, digit(b * power), d)
            scaled(out, o + 160 + 16 * n, digit(c * power), d)
            power *= 3
        last, lane = octets4(p, at + 48, at + 48, at + 48, at + 48), numbers()
        times = where(lane < 8, where(lane < 4, (lane & 0) + 1, 3), where(lane < 12, (lane & 0) + 9, 27))
        scaled(out, o + 240, digit(last * times), d)
    return True


@decoder
def tq2_0(p, out, columns):
    for block in range(out.size // 256):
        at, o = 66 * block, 256 * block
        h = half(p, at + 64)
        if endless_half(h):
            return False
        d = finite_half(h)
        for part in range(2):
            for side in range(0, 32, 16):
                q = octets(p, at + 32 * part + side)
                for k in range(4):
                    scaled(out, o + 128 * part + 32 * k + side, (q >> 2 * k & 3) - 1, d)
    return True


@decoder
def q1_0(p, out, columns):
    for block in range(out.size // 128):
        at, o = 18 * block, 128 * block
        h = half(p, at)
        if endless_half(h):
            return False
        d = finite_half(h)
        for i in range(8):
            scaled(out, o + 16 * i, fields(half(p, at + 2 + 2 * i), 1, 1) * 2 - 1, d)
    return True


@decoder
def q2_0(p, out, columns):
    for block in range(out.size // 64):
        at, o = 18 * block, 64 * block
        h = half(p, at)
        if endless_half(h):
            return False
        d = finite_half(h)
        for i in range(4):
            scaled(out, o + 16 * i, fields(word(p, at + 2 + 4 * i), 2, 3) - 1, d)
    return True


@decoder
def unpack_stream(packed, out, bits):
    """Integers of `bits` ≤ 8 bits, one after the other in every row, the first in the lowest bits."""
    mask = (1 << bits) - 1
    for row in range(out.shape[0]):
        held, have, at = 0, 0, 0
        for i in range(out.shape[1]):
            if have < bits:
                held |= np.int64(packed[row, at]) << have
                have += 8
                at += 1
            out[row, i] = held & mask
            held >>= bits
            have -= bits
    return True
