"""Decoders of the super-blocks of 256, and of 64 (LLAMA_QKK_64); values as in codecs/kquants.py and legacy.py."""

from __future__ import annotations

from ggferry.quant.kernels.common import F, inline
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
from ggferry.quant.kernels.lanes_bytes import numbers, octets, octets2, signed


@inline
def small(b):
    """A byte as a signed number."""
    return b - 256 if b > 127 else b


@decoder
def q2_k(p, out, columns):
    for block in range(out.size // 256):
        at, o = 84 * block, 256 * block
        low, high = half(p, at + 80), half(p, at + 82)
        if endless_half(low) or endless_half(high):
            return False
        d, dmin = finite_half(low), -finite_half(high)
        for part in range(2):
            for side in range(2):
                q = octets(p, at + 16 + 32 * part + 16 * side)
                for k in range(4):
                    group = 8 * part + 2 * k + side
                    s = p[at + group]
                    shifted(out, o + 16 * group, q >> 2 * k & 3, d * F(s & 15), dmin * F(s >> 4))
    return True


@decoder
def q3_k(p, out, columns):
    for block in range(out.size // 256):
        at, o = 110 * block, 256 * block
        h = half(p, at + 108)
        if endless_half(h):
            return False
        d = finite_half(h)
        for side in range(2):
            mask = octets(p, at + 16 * side)
            for part in range(2):
                q = octets(p, at + 32 + 32 * part + 16 * side)
                for k in range(4):
                    group = 8 * part + 2 * k + side
                    s = p[at + 96 + (group & 7)] >> (4 if group >= 8 else 0) & 15
                    s |= (p[at + 104 + (group & 3)] >> 2 * (group >> 2) & 3) << 4
                    levels = (q >> 2 * k & 3 | (mask >> 4 * part + k & 1) << 2) - 4
                    scaled(out, o + 16 * group, levels, d * F(s - 32))
    return True


@inline
def six_bits(p, at, j):
    """`get_scale_min_k4`: the scale and the minimum of sub-block j."""
    if j < 4:
        return p[at + j] & 63, p[at + j + 4] & 63
    return (
        p[at + j + 4] & 15 | (p[at + j - 4] >> 6) << 4,
        p[at + j + 4] >> 4 | (p[at + j] >> 6) << 4,
    )


@inline
def affine(p, out, size, five):
    for block in range(out.size // 256):
        at, o = size * block, 256 * block
        low, high = half(p, at), half(p, at + 2)
        if endless_half(low) or endless_half(high):
            return False
        d, dmin = finite_half(low), -finite_half(high)
        for j in range(4):
            s, m = six_bits(p, at + 4, 2 * j)
            d1, m1 = d * F(s), dmin * F(m)
            s, m = six_bits(p, at + 4, 2 * j + 1)
            d2, m2 = d * F(s), dmin * F(m)
            for side in range(0, 32, 16):
                q = octets(p, at + size - 128 + 32 * j + side)
                a, b = q & 15, q >> 4
                if five:
                    h = octets(p, at + 16 + side) >> 2 * j
                    a, b = a | (h & 1) << 4, b | (h & 2) << 3
                shifted(out, o + 64 * j + side, a, d1, m1)
                shifted(out, o + 64 * j + 32 + side, b, d2, m2)
    return True


@decoder
def q4_k(p, out, columns):
    return affine(p, out, 144, False)


@decoder
def q5_k(p, out, columns):
    return affine(p, out, 176, True)


@decoder
def q6_k(p, out, columns):
    for block in range(out.size // 256):
        at, o = 210 * block, 256 * block
        h = half(p, at + 208)
        if endless_half(h):
            return False
        d = finite_half(h)
        for part in range(2):
            for side in range(2):
                high = octets(p, at + 128 + 32 * part + 16 * side)
                for k in range(4):
                    q = octets(p, at + 64 * part + 32 * (k & 1) + 16 * side) >> (4 if k > 1 else 0) & 15
                    group = 8 * part + 2 * k + side
                    levels = (q | (high >> 2 * k & 3) << 4) - 32
                    scaled(out, o + 16 * group, levels, d * F(small(p[at + 192 + group])))
    return True


@decoder
def q8_k(p, out, columns):
    for block in range(out.size // 256):
        at, o = 292 * block, 256 * block
        w = word(p, at)
        if endless_single(w):
            return False
        d = single(w)
        for i in range(0, 256, 16):
            scaled(out, o + i, signed(octets(p, at + 4 + i)), d)
    return True


# ------------------------------------------------------------------ of 64


@decoder
def q2_k_64(p, out, columns):
    for block in range(out.size // 64):
        at, o = 24 * block, 64 * block
        low, high = half(p, at + 20), half(p, at + 22)
        if endless_half(low) or endless_half(high):
            return False
        d, dmin = finite_half(low), -finite_half(high)
        q = octets(p, at + 4)
        for k in range(4):
            s = p[at + k]
            shifted(out, o + 16 * k, q >> 2 * k & 3, d * F(s & 15), dmin * F(s >> 4))
    return True


@decoder
def q3_k_64(p, out, columns):
    for block in range(out.size // 64):
        at, o = 28 * block, 64 * block
        h = half(p, at + 26)
        if endless_half(h):
            return False
        d = finite_half(h)
        mask, q = octets2(p, at, at) >> (numbers() >> 3), octets(p, at + 8)
        for k in range(4):
            s = p[at + 24 + (k >> 1)] >> 4 * (k & 1) & 15
            scaled(out, o + 16 * k, (q >> 2 * k & 3 | (mask >> 2 * k & 1) << 2) - 4, d * F(s - 8))
    return True


@decoder
def q4_k_64(p, out, columns):
    for block in range(out.size // 64):
        at, o = 38 * block, 64 * block
        low, high = half(p, at), half(p, at + 2)
        if endless_half(low) or endless_half(high):
            return False
        d, dmin = finite_half(low), -finite_half(high)
        s, t = p[at + 4], p[at + 5]
        for side in range(0, 32, 16):
            q = octets(p, at + 6 + side)
            shifted(out, o + side, q & 15, d * F(s & 15), dmin * F(s >> 4))
            shifted(out, o + 32 + side, q >> 4, d * F(t & 15), dmin * F(t >> 4))
    return True


@decoder
def q5_k_64(p, out, columns):
    for block in range(out.size // 64):
        at, o = 46 * block, 64 * block
        h = half(p, at)
        if endless_half(h):
            return False
        d = finite_half(h)
        fifth = octets2(p, at + 6, at + 6) >> (numbers() >> 3)
        for k in range(4):
            q = octets(p, at + 14 + 16 * (k & 1)) >> (4 if k > 1 else 0) & 15
            levels = (q | (fifth >> 2 * k & 1) << 4) - 16
            scaled(out, o + 16 * k, levels, d * F(small(p[at + 2 + k])))
    return True


@decoder
def q6_k_64(p, out, columns):
    for block in range(out.size // 64):
        at, o = 54 * block, 64 * block
        h = half(p, at + 52)
        if endless_half(h):
            return False
        d = finite_half(h)
        high = octets(p, at + 32)
        for k in range(4):
            q = octets(p, at + 16 * (k & 1)) >> (4 if k > 1 else 0) & 15
            levels = (q | (high >> 2 * k & 3) << 4) - 32
            scaled(out, o + 16 * k, levels, d * F(small(p[at + 48 + k])))
    return True
