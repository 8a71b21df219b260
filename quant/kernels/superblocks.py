"""What the kernels of Q2_K … Q6_K share: blocks of 256 in sub-blocks of 16 or 32.

Each type has two kernels, as ggml-quants.c has two functions: `quantize_row_*_ref`, and `quantize_row_*_impl` where an
importance matrix is given. A kernel takes a batch of `LANES` blocks in three steps: every sub-block is fitted, `LANES`
at once (`fits`); the blocks' scales are made of the sub-blocks'; each block is rounded with those scales and packed,
16 elements at once. Where a sub-block's scale has become 0 the levels of its own fit stand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ggferry.quant.codecs.kquants import TYPES
from ggferry.quant.kernels.common import LANES, F, encode_rows, inline, levels, load, load16, scratch, spread, take
from ggferry.quant.kernels.lanes import minimum, sqrt, store

if TYPE_CHECKING:
    from ggferry.quant.types import Bytes, Floats

BLOCK = 256
"""`QK_K` of ggml-common.h."""


@inline
def tile_weights(weights, block, tile):
    """The importance of the elements of `LANES` blocks from number `block` on: blocks run on over the rows."""
    for k in range(LANES):
        column = (block + k) * BLOCK % weights.size
        for e in range(0, BLOCK, 16):
            store(tile, k * BLOCK + e, load16(weights, column + e))


@inline
def spread_squares(values, at, factor, sub_blocks, sigma2):
    """`factor` · mean square of each of `LANES` blocks, for every one of its sub-blocks."""
    total, x, mean = spread(F(0)), scratch(16), scratch(1)
    for run in range(0, BLOCK, 16):
        take(values, at + run, x, 16, BLOCK)
        for e in range(0, 16 * LANES, LANES):
            total += load(x, e) * load(x, e)
    store(mean, 0, F(factor) * total / F(BLOCK))
    for j in range(sub_blocks * LANES):
        sigma2[j] = mean[j // sub_blocks]


@inline
def weigh(x, tile, at, sigma2, w, count):
    """`w` = importance · √(sigma2 + x²) of `LANES` sub-blocks; returns Σ w."""
    take(tile, at, w, count, count)
    total = spread(F(0))
    for e in range(0, count * LANES, LANES):
        v = load(x, e)
        weight = load(w, e) * sqrt(sigma2 + v * v)
        store(w, e, weight)
        total += weight
    return total


@inline
def capped(codes):
    """uint8 codes of sub-blocks, at most the six bits that Q4_K and Q5_K have for them."""
    return minimum(codes & 255, 63)


@inline
def rounded(values, at, d, add, ratio, origin, lowest, highest):
    """The levels of 16 elements, by the block's scale, or, if that is 0, by the sub-block's own fit."""
    x = load16(values, at)
    if d == F(0):
        return levels(ratio * (x - origin), lowest, highest)
    return levels((x + add) / d, lowest, highest)


def encoder(name: str, plain: Any, weighted: Any) -> Callable[[Floats, Floats | None], Bytes]:
    def encode(values: Floats, weights: Floats | None = None) -> Bytes:
        if weights is None:
            return encode_rows(TYPES[name], plain, values, batch=LANES)
        return encode_rows(TYPES[name], weighted, values, batch=LANES, weights=weights)

    encode.__doc__ = f"{name} rows of float32 `(R, columns)`, by importance `(columns,)` if given; see `Codec.encode`."
    return encode
