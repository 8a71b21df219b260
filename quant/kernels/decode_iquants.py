"""Decoders of the lattice and non-linear types; values as in codecs/iquants.py."""

from __future__ import annotations

import numpy as np

from ggferry.quant.codecs.grids import even_signs, grid, signs
from ggferry.quant.codecs.iquants import IQ4_LEVELS
from ggferry.quant.kernels.common import F, I, inline
from ggferry.quant.kernels.decode_common import decoder, endless_half, finite_half, half, scaled, word
from ggferry.quant.kernels.lanes import store, to_floats, where
from ggferry.quant.kernels.lanes_bytes import octets, points2, points4


def _flat(table):
    return np.ascontiguousarray(table, np.int8).reshape(-1)


IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, IQ1_S = (
    _flat(grid(name)) for name in ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S")
)
SIGNS, EVEN = _flat(signs()), _flat(even_signs())
DELTAS = np.array([1, -1], np.int8).repeat(8)
"""The sign of IQ1_M's delta by bit 3 of a nibble, eight elements each."""

L = tuple(I(level) for level in IQ4_LEVELS)


@inline
def iq4(q):
    """The levels of sixteen nibbles: of two neighbors by the lowest bit, of two of these by the next, and so on."""
    a, b = q & 1 != 0, q & 2 != 0
    c, d = q & 4 != 0, q & 8 != 0
    zero = q & 0
    low = where(
        c,
        where(b, where(a, zero + L[7], L[6]), where(a, zero + L[5], L[4])),
        where(b, where(a, zero + L[3], L[2]), where(a, zero + L[1], L[0])),
    )
    high = where(
        c,
        where(b, where(a, zero + L[15], L[14]), where(a, zero + L[13], L[12])),
        where(b, where(a, zero + L[11], L[10]), where(a, zero + L[9], L[8])),
    )
    return where(d, high, low)


@decoder
def iq4_nl(p, out, columns):
    for block in range(out.size // 32):
        at, o = 18 * block, 32 * block
        h = half(p, at)
        if endless_half(h):
            return False
        d, q = finite_half(h), octets(p, at + 2)
        scaled(out, o, iq4(q & 15), d)
        scaled(out, o + 16, iq4(q >> 4), d)
    return True


@decoder
def iq4_xs(p, out, columns):
    for block in range(out.size // 256):
        at, o = 136 * block, 256 * block
        h = half(p, at)
        if endless_half(h):
            return False
        d, high = finite_half(h), half(p, at + 2)
        for g in range(8):
            s = np.int64(p[at + 4 + (g >> 1)] >> 4 * (g & 1) & 15) | (high >> 2 * g & 3) << 4
            step, q = d * F(s - 32), octets(p, at + 8 + 16 * g)
            scaled(out, o + 32 * g, iq4(q & 15), step)
            scaled(out, o + 32 * g + 16, iq4(q >> 4), step)
    return True


@inline
def half_step(d, s, factor):
    return d * (F(0.5) + F(s)) * factor


@decoder
def iq2_xxs(p, out, columns):
    for block in range(out.size // 256):
        at, o = 66 * block, 256 * block
        h = half(p, at)
        if endless_half(h):
            return False
        d = finite_half(h)
        for g in range(8):
            codes, marks = at + 2 + 8 * g, word(p, at + 6 + 8 * g)
            step = half_step(d, marks >> 28, F(0.25))
            for k in range(0, 4, 2):
                levels = points2(IQ2_XXS, 8 * np.int64(p[codes + k]), 8 * np.int64(p[codes + k + 1]))
                marked = points2(EVEN, 8 * (marks >> 7 * k & 127), 8 * (marks >> 7 * k + 7 & 127))
                scaled(out, o + 32 * g + 8 * k, levels * marked, step)
    return True


@decoder
def iq2_xs(p, out, columns):
    for block in range(out.size // 256):
        at, o = 74 * block, 256 * block
        h = half(p, at)
        if endless_half(h):
            return False
        d = finite_half(h)
        for g in range(16):
            a, b = half(p, at + 2 + 4 * g), half(p, at + 4 + 4 * g)
            s = p[at + 66 + (g >> 1)] >> 4 * (g & 1) & 15
            levels = points2(IQ2_XS, 8 * (a & 511), 8 * (b & 511)) * points2(EVEN, 8 * (a >> 9), 8 * (b >> 9))
            scaled(out, o + 16 * g, levels, half_step(d, s, F(0.25)))
    return True


@decoder
def iq2_s(p, out, columns):
    for block in range(out.size // 256):
        at, o = 82 * block, 256 * block
        h = half(p, at)
        if endless_half(h):
            return False
        d = finite_half(h)
        for g in range(16):
            high = np.int64(p[at + 66 + (g >> 1)]) >> 4 * (g & 1)
            a = np.int64(p[at + 2 + 2 * g]) | (high & 3) << 8
            b = np.int64(p[at + 3 + 2 * g]) | (high >> 2 & 3) << 8
            s = p[at + 74 + (g >> 1)] >> 4 * (g & 1) & 15
            marks = points2(SIGNS, 8 * np.int64(p[at + 34 + 2 * g]), 8 * np.int64(p[at + 35 + 2 * g]))
            scaled(out, o + 16 * g, points2(IQ2_S, 8 * a, 8 * b) * marks, half_step(d, s, F(0.25)))
    return True


@decoder
def iq3_xxs(p, out, columns):
    for block in range(out.size // 256):
        at, o = 98 * block, 256 * block
        h = half(p, at)
        if endless_half(h):
            return False
        d = finite_half(h)
        for g in range(8):
            marks = word(p, at + 66 + 4 * g)
            step = half_step(d, marks >> 28, F(0.5))
            for k in range(2):
                c = at + 2 + 8 * g + 4 * k
                levels = points4(
                    IQ3_XXS, 4 * np.int64(p[c]), 4 * np.int64(p[c + 1]), 4 * np.int64(p[c + 2]), 4 * np.int64(p[c + 3])
                )
                marked = points2(EVEN, 8 * (marks >> 14 * k & 127), 8 * (marks >> 14 * k + 7 & 127))
                scaled(out, o + 32 * g + 16 * k, levels * marked, step)
    return True


@decoder
def iq3_s(p, out, columns):
    for block in range(out.size // 256):
        at, o = 110 * block, 256 * block
        h = half(p, at)
        if endless_half(h):
            return False
        d = finite_half(h)
        for g in range(8):
            s = p[at + 106 + (g >> 1)] >> 4 * (g & 1) & 15
            step, high = d * F(1 + 2 * s), np.int64(p[at + 66 + g])
            for k in range(2):
                c, up = at + 2 + 8 * g + 4 * k, high >> 4 * k
                levels = points4(
                    IQ3_S,
                    4 * (np.int64(p[c]) | (up & 1) << 8),
                    4 * (np.int64(p[c + 1]) | (up & 2) << 7),
                    4 * (np.int64(p[c + 2]) | (up & 4) << 6),
                    4 * (np.int64(p[c + 3]) | (up & 8) << 5),
                )
                sign = at + 74 + 4 * g + 2 * k
                marked = points2(SIGNS, 8 * np.int64(p[sign]), 8 * np.int64(p[sign + 1]))
                scaled(out, o + 32 * g + 16 * k, levels * marked, step)
    return True


@decoder
def iq1_s(p, out, columns):
    for block in range(out.size // 256):
        at, o = 50 * block, 256 * block
        h = half(p, at)
        if endless_half(h):
            return False
        d = finite_half(h)
        for g in range(8):
            q = half(p, at + 34 + 2 * g)
            step = d * F(2 * (q >> 12 & 7) + 1)
            delta = F(-0.125) if q & 0x8000 else F(0.125)
            for k in range(0, 4, 2):
                a = np.int64(p[at + 2 + 4 * g + k]) | (q >> 3 * k & 7) << 8
                b = np.int64(p[at + 3 + 4 * g + k]) | (q >> 3 * k + 3 & 7) << 8
                store(out, o + 32 * g + 8 * k, (to_floats(points2(IQ1_S, 8 * a, 8 * b)) + delta) * step)
    return True


@decoder
def iq1_m(p, out, columns):
    for block in range(out.size // 256):
        at, o = 56 * block, 256 * block
        h = half(p, at + 48) >> 12 | half(p, at + 50) >> 12 << 4
        h |= half(p, at + 52) >> 12 << 8 | half(p, at + 54) >> 12 << 12
        if endless_half(h):
            return False
        d = finite_half(h)
        for g in range(16):
            s = half(p, at + 48 + 2 * (g >> 2)) >> 3 * (g & 3) & 7
            q = np.int64(p[at + 32 + g])
            a = np.int64(p[at + 2 * g]) | (q & 7) << 8
            b = np.int64(p[at + 2 * g + 1]) | (q >> 4 & 7) << 8
            levels = points2(IQ1_S, 8 * a, 8 * b)
            signs = points2(DELTAS, q & 8, q >> 4 & 8)
            store(out, o + 16 * g, (to_floats(levels) + to_floats(signs) * F(0.125)) * (d * F(2 * s + 1)))
    return True
