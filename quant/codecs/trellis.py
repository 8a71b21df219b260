"""Trellis types of ik_llama.cpp: IQ1_KT, IQ2_KT, IQ3_KT, IQ4_KT, whose codes are seeds of a generator.

Layouts: `block_iq1_kt` … `block_iq4_kt` of its ggml-common.h; values: `dequantize_row_iq*_kt` and
`QuantizerIQKT::set_values` of its iqk/iqk_quantize.cpp (8337e4cd). From a seed, x ← 0xCBAC1FED · x modulo 2^32 gives
one value a step: the sum of its four bytes' lower six bits, less 126.
"""

from __future__ import annotations

from functools import cache

from ggferry.quant.blocks import Array, Parts, Unpack, decoder, planes, split_nibbles, spread
from ggferry.quant.codec import IK_LLAMA_CPP, Codec
from ggferry.quant.codecs.iquants import IQ4_LEVELS, bits
from ggferry.quant.types import table
from ggferry.support.heavy import np

TYPES = table(
    """
    IQ2_KT 153 256 d:f4 / scales:u1*4 ql:u2*32
    IQ3_KT 154 256 d:f4 / scales:u1*4 ql:u2*32 qh:u1*32
    IQ4_KT 155 256 d:f4 / sh:u4*8 ql:u1*64 qh:u1*32
    IQ1_KT 158 256 d:f4 / sh:u1*8 ql:u1*32 qh:u1*16
    """
)

_FACTOR = 0xCBAC1FED
_SEEDS = 1 << 16
_FIRST = 4096
"""What is added to every code; IQ4_KT adds 32768 besides where a block's lowest bit says so."""


@cache
def _values() -> Array:
    """Return int8 `(65536, 8)`: the eight values that follow each seed less 4096."""
    x = np.arange(_FIRST, _FIRST + _SEEDS, dtype=np.uint32)
    found = np.empty((_SEEDS, 8), np.int8)
    for step in range(8):
        x = x * np.uint32(_FACTOR)
        found[:, step] = (x & np.uint32(0x3F3F3F3F)).view(np.uint8).reshape(-1, 4).sum(axis=1, dtype=np.int16) - 126
    return found


def _follow(seeds: Array, count: int) -> Array:
    """Return int8 `(…, groups · count)`: the first `count` values of each seed `(…, groups)`."""
    found: Array = _values()[:, :count][seeds]
    return found.reshape(*seeds.shape[:-1], seeds.shape[-1] * count)


def _fill(parts: Parts, levels: Array, scales: Array, out: Array) -> None:
    np.copyto(out, levels)
    out *= spread(parts["d"].astype(np.float32) * scales, out.shape[-1])


def _twelve_bits(parts: Parts) -> Array:
    """Return uint16: the bytes of `ql`, with the nibbles of `qh` above them: all low nibbles, then all high ones."""
    high = planes(parts["qh"], 4).reshape(parts["ql"].shape)
    found: Array = parts["ql"] | high.astype(np.uint16) << 8
    return found


@cache
def _table() -> Array:
    return np.array(IQ4_LEVELS, np.int8)


def iq1_kt(parts: Parts, out: Array) -> None:
    """Fill in the values: the lower nibble of `sh` is the scale, its upper one the top bits of four codes."""
    top = bits(parts["sh"] >> 4, 1, 1, 4).reshape(parts["ql"].shape)
    seeds = _twelve_bits(parts) | top.astype(np.uint16) << 12
    _fill(parts, _follow(seeds, 8), _table()[parts["sh"] & 15], out)


def iq2_kt(parts: Parts, out: Array) -> None:
    _fill(parts, _follow(parts["ql"], 8), _table()[split_nibbles(parts["scales"])], out)


def iq3_kt(parts: Parts, out: Array) -> None:
    """Fill in the values: absolute ones, whose signs are bits of `qh`: bit b of byte j is of element 32 b + j."""
    _fill(parts, np.abs(_follow(parts["ql"], 8)), split_nibbles(parts["scales"]), out)
    negative = planes(parts["qh"], 1).reshape(out.shape)
    out *= 1 - 2 * negative.view(np.int8)


def iq4_kt(parts: Parts, out: Array) -> None:
    """Fill in the values: a word of `sh` holds a flag, the scale, and three bits for each of eight codes."""
    sh = parts["sh"]
    seeds = _twelve_bits(parts) | (bits(sh >> 8, 3, 3, 8).reshape(parts["ql"].shape) << 12).astype(np.uint16)
    seeds = seeds | spread((sh & 1).astype(np.uint16) << 15, 64)
    _fill(parts, _follow(seeds, 4), (sh >> 1 & 127).astype(np.int16) - np.int16(64), out)


UNPACK: dict[str, Unpack] = {"IQ1_KT": iq1_kt, "IQ2_KT": iq2_kt, "IQ3_KT": iq3_kt, "IQ4_KT": iq4_kt}

CODECS = tuple(Codec(kind, decoder(kind, UNPACK[name]), runtime=IK_LLAMA_CPP) for name, kind in TYPES.items())
