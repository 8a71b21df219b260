"""Types of ik_llama.cpp whose rows are stored four, eight or sixteen in one another: …_R4, …_R8, …_R16.

Most hold the bits of another type's blocks in another order, so they are taken apart to that type: where it is one of
llama.cpp's, that is a `Repack`. Layouts: `block_*_r4` and `_r8` of its ggml-common.h; order of the bits: `repack_*` and
`dequantize_row_*_r4` of its iqk/iqk_quantize.cpp (8337e4cd).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ggferry.quant.blocks import Array, Parts, as_blocks, check_rows
from ggferry.quant.codec import IK_LLAMA_CPP, Codec, Repack, codec
from ggferry.quant.codecs.grids import grid
from ggferry.quant.codecs.iquants import bits, pick
from ggferry.quant.types import BlockType, table
from ggferry.support.heavy import np

if TYPE_CHECKING:
    from ggferry.quant.types import Bytes, Floats

FOUR = """
    Q5_0_R4    206 32  d:f2*4 qh:u1*16 qs:u1*64
    Q2_K_R4    210 256 d:f2*4 dmin:f2*4 scales:u1*64 qs:u1*256
    Q3_K_R4    211 256 d:f2*4 scales_h:u1*16 scales_l:u1*32 qh:u1*128 qs:u1*256
    Q4_K_R4    212 256 d:f2*4 dmin:f2*4 scales_h:u1*16 scales_l:u1*32 qs:u1*512
    Q5_K_R4    213 256 d:f2*4 dmin:f2*4 scales_h:u1*16 scales_l:u1*32 qh:u1*128 qs:u1*512
    Q6_K_R4    214 256 d:f2*4 scales:i1*64 qh:u1*256 ql:u1*512
    IQ2_XXS_R4 216 256 d:f2*4 signs:u1*128 qs:u1*128
    IQ2_XS_R4  217 256 d:f2*4 qs:u2*128 scales:u1*32
    IQ3_XXS_R4 218 256 d:f2*4 signs:u1*128 qs:u1*256
    IQ1_S_R4   219 32  d:f2*4 / qs:u1*16 qh:u2*4
    IQ4_NL_R4  220 32  d:f2*4 qs:u1*64
    IQ3_S_R4   221 256 d:f2*4 qs:u1*256 qh:u1*32 signs:u1*128 scales:u1*16
    IQ2_S_R4   222 256 d:f2*4 qs:u1*128 qh:u1*32 signs:u1*128 scales:u1*32
    IQ1_M_R4   229 32  d:f2*4 / qs:u1*16 qh:u1*8 scales:u1*4
    Q6_0_R4    233 32  d:f2*4 qh:u1*32 qs:u1*64
    IQ2_K_R4   337 256 d:f2*4 extra:u1*8 scales:u1*32 qs:u1*256
    IQ3_K_R4   338 256 d:f2*4 extra:u1*8 scales_h:u1*8 scales_l:u1*32 qs:u1*256 qh:u1*128
    IQ4_K_R4   339 256 d:f2*4 extra:u1*8 scales_h:u1*16 scales_l:u1*32 qs:u1*512
    IQ5_K_R4   340 256 d:f2*4 extra:u1*8 scales_h:u1*16 scales_l:u1*32 qs:u1*512 qh:u1*128
    IQ4_KS_R4  344 256 d:f4*4 / scales:u1*32 qs:u1*512
    IQ5_KS_R4  352 256 d:f4*4 / scales:u1*32 qs:u1*512 qh:u1*128
"""
EIGHT = """
    Q4_0_R8    202 32  d:f2*8 qs:u1*128
    Q8_0_R8    208 32  d:f2*8 qs:i1*256
    IQ4_XS_R8  223 256 d:f2*8 scales_h:u1*16 scales_l:u1*32 qs:u1*1024
    MXFP4_R8   353 32  e:u1*8 qs:u1*128
    Q8_KV_R8   398 32  d:f4*8 / qs:i1*256
    Q8_K_R8    399 256 d:f2*8 qs:i1*2048
"""
TYPES = {
    **table(FOUR, interleaved=4),
    **table(EIGHT, interleaved=8),
    **table("BF16_R16 230 2 v:bf16*32", interleaved=16, quantized=False),
}
TILE = 1 << 18
"""Bytes that are taken apart at once: eight times as many are held, one for every bit."""


def taken_apart(kind: BlockType, target: BlockType, rows: Bytes) -> Bytes:
    """Return rows of `target`, uint8 `(R, row bytes)`, with the values of rows of `kind`."""
    from ggferry.quant.bit_orders import orders  # not needed to know the types

    order = orders(kind, target)
    count, per = kind.interleaved, kind.elements // target.elements
    groups = rows.reshape(-1, count * rows.shape[1])
    head = count * kind.header_bytes
    blocks = (groups.shape[1] - head) // (count * kind.block_bytes)
    out = np.empty((len(groups), count, target.header_bytes + blocks * per * target.block_bytes), np.uint8)
    out[..., : target.header_bytes] = groups[:, :head].reshape(len(groups), count, target.header_bytes)
    packed = groups[:, head:].reshape(len(groups), blocks, count * kind.block_bytes)
    step = max(1, TILE // max(1, packed[:1].size))
    for start in range(0, len(groups), step):
        flat = np.unpackbits(packed[start : start + step], axis=-1, bitorder="little")
        apart = np.packbits(flat[..., order], axis=-1, bitorder="little").swapaxes(1, 2)
        _undo_codes(target.name, apart)
        out[start : start + step, :, target.header_bytes :] = apart.reshape(*apart.shape[:2], -1)
    return out.reshape(len(rows), out.shape[2])


SEVEN_BITS = 0x7E * (1 + (1 << 7) + (1 << 14) + (1 << 21))
"""In each of four codes of seven bits, all but the lowest bit."""


def _undo_codes(name: str, blocks: Bytes) -> None:
    """Change the codes of signs back, in place: bit i of llama.cpp's is the sum of bits i and i − 1 here."""
    if name == "IQ2_XS":
        words = np.ascontiguousarray(blocks[..., 2:66]).view("<u2")
        words ^= words << np.uint16(1) & np.uint16(0x7E << 9)
        blocks[..., 2:66] = words.view(np.uint8)
    elif name in ("IQ2_XXS", "IQ3_XXS"):
        first = 2 if name == "IQ2_XXS" else 66
        words = np.ascontiguousarray(blocks[..., first:]).view("<u4")
        signs = words[..., 1::2] if name == "IQ2_XXS" else words
        signs ^= signs << np.uint32(1) & np.uint32(SEVEN_BITS)
        blocks[..., first:] = words.view(np.uint8)


def _decoder_by(kind: BlockType, name: str) -> Callable[[Bytes, int], Floats]:
    def decode(rows: Bytes, columns: int) -> Floats:
        check_rows(kind, rows, columns)
        target = codec(name)
        return target.values(taken_apart(kind, target.type, np.ascontiguousarray(rows)), columns)

    return decode


def _repack(kind: BlockType, name: str) -> Repack:
    def apply(rows: Bytes, columns: int) -> tuple[Bytes, int]:
        check_rows(kind, rows, columns)
        return taken_apart(kind, codec(name).type, np.ascontiguousarray(rows)), 0

    return Repack(name, apply)


def _scaled_sums(codes: Array, scales: Array, deltas: Array) -> Array:
    """Return scale × (level + delta): `codes` `(…, 4)`, `scales` and `deltas` `(…, n)`, as float32 `(…, 32)`."""
    levels = pick(grid("IQ1_S"), codes).reshape(*codes.shape[:-1], 32).astype(np.float32)
    return (levels + deltas.repeat(32 // deltas.shape[-1], -1)) * scales.repeat(32 // scales.shape[-1], -1)


def iq1_s_r4(parts: Parts) -> Array:
    """Return `(groups, blocks, 4, 32)`: as IQ1_S, with the scale of a row in the place of a block's."""
    qs, qh = parts["qs"], parts["qh"]
    codes = qs.reshape(*qs.shape[:2], 4, 4).swapaxes(2, 3) | bits(qh, 3, 3, 4) << 8
    scales = parts["d"].astype(np.float32) * (2 * (qh >> 12 & 7) + 1)
    deltas = np.where(qh & 0x8000, np.float32(-0.125), np.float32(0.125))
    return _scaled_sums(codes, scales[..., None], deltas[..., None])


def iq1_m_r4(parts: Parts) -> Array:
    """Return `(groups, blocks, 4, 32)`: nibbles of `qh` as in IQ1_M, two scales of four bits for a block."""
    qs, qh = parts["qs"], parts["qh"]
    nibbles = bits(qh, 4, 4, 2).reshape(*qs.shape[:2], 2, 4, 2).swapaxes(2, 3).reshape(*qs.shape[:2], 4, 4)
    codes = qs.reshape(*qs.shape[:2], 4, 4).swapaxes(2, 3) | (nibbles & 7).astype(np.uint16) << 8
    scales = parts["d"].astype(np.float32)[..., None] * bits(parts["scales"], 4, 4, 2)
    return _scaled_sums(codes, scales, np.where(nibbles & 8, np.float32(-0.125), np.float32(0.125)))


def whole_bytes(parts: Parts) -> Array:
    """Return `(groups, blocks, rows, elements)`: of each row four bytes in turn, times its scale."""
    d, qs = parts["d"].astype(np.float32), parts["qs"]
    each = qs.shape[-1] // d.shape[-1]
    items = qs.reshape(*qs.shape[:2], each // 4, d.shape[-1], 4).swapaxes(2, 3)
    found: Array = items.reshape(*items.shape[:3], each) * d[..., None]
    return found


def _decoder(kind: BlockType, unpack: Callable[[Parts], Array]) -> Callable[[Bytes, int], Floats]:
    def decode(rows: Bytes, columns: int) -> Floats:
        check_rows(kind, rows, columns)
        with np.errstate(all="ignore"):
            values = unpack(as_blocks(kind, np.ascontiguousarray(rows)))
        found: Floats = np.ascontiguousarray(values.swapaxes(1, 2)).reshape(len(rows), columns)
        return found

    return decode


OWN = {
    "IQ1_S_R4": iq1_s_r4,
    "IQ1_M_R4": iq1_m_r4,
    "Q8_KV_R8": whole_bytes,
    "Q8_K_R8": whole_bytes,
}
FORK_ONLY = frozenset({"Q6_0_R4", "IQ2_K_R4", "IQ3_K_R4", "IQ4_K_R4", "IQ5_K_R4", "IQ4_KS_R4", "IQ5_KS_R4"})
"""Types whose rows, taken apart, are of types that llama.cpp has not either."""


def _codec(name: str, kind: BlockType) -> Codec:
    if name in OWN:
        return Codec(kind, _decoder(kind, OWN[name]), runtime=IK_LLAMA_CPP)
    target = name.rpartition("_")[0]
    repack = None if name in FORK_ONLY else _repack(kind, target)
    return Codec(kind, _decoder_by(kind, target), repack=repack, runtime=IK_LLAMA_CPP)


CODECS = tuple(_codec(name, kind) for name, kind in TYPES.items())
