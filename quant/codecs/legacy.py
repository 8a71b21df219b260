"""Block layouts of the eras before GGUF, and how those with a successor become it without leaving their levels.

Source: llama.cpp's history of 2023: planar until 007a8f6f4 (Q4_0) and 904d2a8d6 (Q4_1); V1 = GGML, GGMF, GGJT v1,
nibbles interleaved (byte j: elements 2j, 2j + 1); V2 = GGJT v2 (b9fd7eee5), nibbles split as today; float16 scales
since GGJT v3 (2d5db4837). *_64 = builds with LLAMA_QKK_64 (6769e944c), k_quants.h. Q8_0_V1 is also GGJT v2's Q8_0; GGJT
v2's Q5_0 and Q5_1 are today's. Other ggml programs call V1, V2 and today's blocks quantization version 0, 1 and 2.
Q4_1_O is rwkv.cpp's own (April and May 2023): Q4_1 with one value of each block set apart.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ggferry.quant.blocks import (
    Array,
    Parts,
    affine,
    as_blocks,
    as_items,
    check_rows,
    cut,
    decoder,
    every_byte,
    floats,
    planes,
    tiles,
    words_of,
)
from ggferry.quant.codec import Codec, Repack
from ggferry.quant.codecs import simple
from ggferry.quant.compiled_decoders import compiled
from ggferry.quant.types import BlockError, BlockType, table
from ggferry.support.heavy import np

if TYPE_CHECKING:
    from ggferry.quant.types import Bytes

PLANAR = table(
    """
    Q4_0_PLANAR - 32      d:f4 qs:u1*16
    Q4_1_PLANAR - 32 m:f4 d:f4 qs:u1*16
    """,
    planar=True,
)
TYPES = PLANAR | table(
    """
    Q4_0_V1 - 32 d:f4           qs:u1*16
    Q4_1_V1 - 32 d:f4 m:f4      qs:u1*16
    Q4_2    - 16 d:f2           qs:u1*8
    Q4_3    - 16 d:f2 m:f2      qs:u1*8
    Q4_1_O  - 32 d:f2 m:f2 outlier:u2 value:f2 qs:u1*16
    Q5_0_V1 - 32 d:f2      qh:u4 qs:u1*16
    Q5_1_V1 - 32 d:f2 m:f2 qh:u4 qs:u1*16
    Q8_0_V1 - 32 d:f4           qs:i1*32
    Q4_0_V2 - 32 d:f4           qs:u1*16
    Q4_1_V2 - 32 d:f4 m:f4      qs:u1*16
    Q2_K_64 - 64 scales:u1*4 qs:u1*16 d:f2 dmin:f2
    Q3_K_64 - 64 hmask:u1*8 qs:u1*16 scales:u1*2 d:f2
    Q4_K_64 - 64 d:f2 dmin:f2 scales:u1*2 qs:u1*32
    Q5_K_64 - 64 d:f2 scales:i1*4 qh:u1*8 qs:u1*32
    Q6_K_64 - 64 ql:u1*32 qh:u1*16 scales:i1*4 d:f2
    """
)

Levels = Callable[[Parts], Array]


def _deinterleaved(parts: Parts) -> Parts:
    """Return the same fields with split nibbles: byte j holds elements j and j + n, where n is the number of bytes."""
    qs = parts["qs"]
    half = qs.shape[-1] // 2
    low, high = every_byte(0x0F), every_byte(0xF0)
    first, second = words_of(qs[..., :half]), words_of(qs[..., half:])
    even = (first & low) | (second << np.uint64(4) & high)
    odd = (first >> np.uint64(4) & low) | (second & high)
    pairs = np.left_shift(odd.view(np.uint8), 8, dtype="<u2")
    pairs |= even.view(np.uint8)
    return parts | {"qs": pairs.view(np.uint8)[: qs.size].reshape(qs.shape)}


def _interleaved(levels: Levels) -> Levels:
    return lambda parts: levels(_deinterleaved(parts))


def _unpack_outlier(parts: Parts, out: Array) -> None:
    """Unpack Q4_1 levels, then put the one value of a block that did not fit them in its place."""
    affine(_interleaved(simple.nibbles), floats("d", "m"))(parts, out)
    np.copyto(out, parts["value"], where=np.arange(out.shape[-1]) == parts["outlier"])


def _q2_64_levels(parts: Parts) -> Array:
    return planes(parts["qs"], 2)


def _q3_64_levels(parts: Parts) -> Array:
    """Return the levels: bit 2 of element 8k + l is bit k of hmask's byte l; ggml subtracts 4 where it is clear."""
    out = planes(parts["qs"], 2)
    out |= planes(parts["hmask"], 1, at=2).reshape(out.shape)
    signed = out.view(np.int8)
    signed -= 4
    return signed


def _q5_64_levels(parts: Parts) -> Array:
    """Return the levels: bit 4 of element 8k + l is bit k of qh's byte l."""
    out = planes(parts["qs"], 4)
    out |= planes(parts["qh"], 1, at=4).reshape(out.shape)
    signed = out.view(np.int8)
    signed -= 16
    return signed


def _q6_64_levels(parts: Parts) -> Array:
    out = planes(parts["ql"], 4)
    out |= planes(parts["qh"], 2, at=4).reshape(out.shape)
    signed = out.view(np.int8)
    signed -= 32
    return signed


def _scales_and_mins(parts: Parts) -> tuple[Array, Array]:
    """Return scales and minima.

    Each group has a byte: its low nibble times d is the scale, its high nibble times dmin the minimum, which is
    subtracted.
    """
    d, dmin = parts["d"].astype(np.float32), parts["dmin"].astype(np.float32)
    return d * (parts["scales"] & 15), -dmin * (parts["scales"] >> 4)


def _q3_64_scales(parts: Parts) -> tuple[Array]:
    packed = parts["scales"]
    scales = np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], 4)
    return (parts["d"].astype(np.float32) * (scales.view(np.int8) - np.int8(8)),)


def _byte_scales(parts: Parts) -> tuple[Array]:
    return (parts["d"].astype(np.float32) * parts["scales"],)


UNPACK = {
    "Q4_0_PLANAR": affine(_interleaved(simple.nibbles_less_8), floats("d")),
    "Q4_1_PLANAR": affine(_interleaved(simple.nibbles), floats("d", "m")),
    "Q4_0_V1": affine(_interleaved(simple.nibbles_less_8), floats("d")),
    "Q4_1_V1": affine(_interleaved(simple.nibbles), floats("d", "m")),
    "Q4_2": affine(_interleaved(simple.nibbles_less_8), floats("d")),
    "Q4_3": affine(_interleaved(simple.nibbles), floats("d", "m")),
    "Q4_1_O": _unpack_outlier,
    "Q5_0_V1": affine(_interleaved(simple.five_bits_less_16), floats("d")),
    "Q5_1_V1": affine(_interleaved(simple.five_bits), floats("d", "m")),
    "Q8_0_V1": affine(simple.bytes_as_they_are, floats("d")),
    "Q4_0_V2": affine(simple.nibbles_less_8, floats("d")),
    "Q4_1_V2": affine(simple.nibbles, floats("d", "m")),
    "Q2_K_64": affine(_q2_64_levels, _scales_and_mins),
    "Q3_K_64": affine(_q3_64_levels, _q3_64_scales),
    "Q4_K_64": affine(simple.nibbles, _scales_and_mins),
    "Q5_K_64": affine(_q5_64_levels, _byte_scales),
    "Q6_K_64": affine(_q6_64_levels, _byte_scales),
}


def _as_it_is(parts: Parts) -> Parts:
    return parts


def repack(
    rows: Bytes, columns: int, *, source: BlockType, target: BlockType, rearrange: Callable[[Parts], Parts]
) -> tuple[Bytes, int]:
    """Return blocks of `source` as blocks of `target`, which has the same fields: levels move, scales become float16.

    Args:
        rows: uint8 `(R, source row bytes)`.
        columns: Elements of a row.
        source: Type of the blocks.
        target: Type to make of them.
        rearrange: Moves the levels.

    Returns:
        uint8 `(R, target row bytes)`, and the number of blocks with a scale or minimum that is not exactly a float16
        (rounded to nearest even, or too small and flushed to zero).

    Raises:
        BlockError: A scale or minimum, in the row that is named, is NaN, infinite or beyond float16.
    """
    check_rows(source, rows, columns)
    out = np.empty((len(rows), target.row_bytes(columns)), np.uint8)
    old, new = as_blocks(source, np.ascontiguousarray(rows)), as_blocks(target, out)
    if source.planar:
        new = {name: array.reshape(*old["d"].shape[:2], array.shape[2]) for name, array in new.items()}
    inexact = 0
    with np.errstate(all="ignore"):
        for tile in tiles(source, len(rows), columns):
            inexact += _repack_tile(rearrange(cut(old, tile)), cut(new, tile))
    for name in _scales(target):
        bad = new[name].view("<u2") & 0x7C00 == 0x7C00
        if bad.any():
            block = int(np.argmax(bad))
            value = old[name].reshape(-1)[block]
            row = block * source.elements // columns
            raise BlockError(f"row {row}: {name} of a {source.name} block is {value}: not a finite float16")
    return out, inexact


def _scales(kind: BlockType) -> list[str]:
    return [field.name for field in kind.fields if field.dtype == "f2"]


def _repack_tile(old: Parts, new: Parts) -> int:
    changed = np.zeros((*new["d"].shape[:2], 1), bool)
    for name, array in new.items():
        if array.dtype == np.float16:
            exact = np.ascontiguousarray(old[name])
            halves = exact.astype(np.float16)
            changed |= halves.astype(np.float32) != exact
            array[...] = halves
        else:
            as_items(array)[...] = as_items(old[name])
    return int(np.count_nonzero(changed))


def _repack_to(name: str, target: str, rearrange: Callable[[Parts], Parts]) -> Repack:
    apply = partial(repack, source=TYPES[name], target=simple.TYPES[target], rearrange=rearrange)
    return Repack(target, apply)


REPACK = {
    name: _repack_to(name, target, rearrange)
    for name, target, rearrange in (
        ("Q4_0_PLANAR", "Q4_0", _deinterleaved),
        ("Q4_1_PLANAR", "Q4_1", _deinterleaved),
        ("Q4_0_V1", "Q4_0", _deinterleaved),
        ("Q4_1_V1", "Q4_1", _deinterleaved),
        ("Q5_0_V1", "Q5_0", _deinterleaved),
        ("Q5_1_V1", "Q5_1", _deinterleaved),
        ("Q8_0_V1", "Q8_0", _as_it_is),
        ("Q4_0_V2", "Q4_0", _as_it_is),
        ("Q4_1_V2", "Q4_1", _as_it_is),
    )
}

DECODE = {name: decoder(kind, UNPACK[name]) for name, kind in TYPES.items()}

CODECS = tuple(
    Codec(
        kind, DECODE[name], repack=REPACK.get(name),
        compiled=compiled(kind, DECODE[name], "decode_kquants" if "K" in name else "decode_simple"),
    )
    for name, kind in TYPES.items()
)
