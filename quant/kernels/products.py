"""Rows times a matrix, compiled: what forward passes spend their time on.

A pass of the proof multiplies a few dozen rows with every weight of a model, an importance matrix a few thousand. MKL,
which torch multiplies with, leaves half of a product's speed on a processor that is not Intel's, and its sums depend on
how many rows there are. Here a sum is always made in the same order: the columns in parts of one length, and in each as
many partial sums as a register has lanes, then these by halves. It has a tenth of the rounding error of one chain of
additions (5632 columns).
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from ggferry.quant.kernels.common import LANES, inline, kernel
from ggferry.quant.kernels.lanes import Lanes, loader, pointer, skip, store

WIDE = LANES > 16
WIDTH, TOKENS = (16, 6) if WIDE else (8, 3)
"""Lanes of a register, and rows of x in a tile: its sums, and what they are made of, fit into 32 or 16 registers."""
ROWS = 4
COLUMNS = 768
"""Columns that are multiplied at once, at most: those of ROWS rows of w stay in a core's first-level cache while tiles
of x pass by."""
CACHED = 96 << 10
"""Values of x that are multiplied with all rows of w before others are: 384 KiB of a core's second-level cache."""

_I32, _I64, _F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()
_VECTOR = ir.VectorType(_F32, WIDTH)
_load = loader(types.float32, Lanes(types.float32, WIDTH))


def _loaded(builder: Any, base: Any, stride: Any, number: int, at: Any) -> Any:
    """The lanes at `at` of row `number`."""
    place = builder.gep(base, [builder.add(builder.mul(stride, ir.Constant(_I64, number)), at)])
    return builder.load(builder.bitcast(place, _VECTOR.as_pointer()), align=4)


def _chosen(builder: Any, one: Any, other: Any, lanes: list[int]) -> Any:
    mask = ir.Constant(ir.VectorType(_I32, len(lanes)), lanes)
    return builder.shuffle_vector(one, other, mask)


def _totals(builder: Any, vectors: list[Any]) -> list[Any]:
    """Sum the lanes of each of these vectors, always the lower half and the upper half of what is left.

    Vectors share the additions: one holds the sums of WIDTH of them in the end, in their order.
    """
    group = WIDTH
    while group > 1:
        half, pairs = group // 2, []
        starts = range(0, WIDTH * 2, group)
        low, high = ([at + each for at in starts for each in range(begin, begin + half)] for begin in (0, half))
        for one, other in zip_longest(vectors[::2], vectors[1::2], fillvalue=ir.Constant(_VECTOR, ir.Undefined)):
            pairs.append(builder.fadd(_chosen(builder, one, other, low), _chosen(builder, one, other, high)))
        vectors, group = pairs, half
    return vectors


@intrinsic(prefer_literal=True)  # type: ignore[misc]
def tile(context: Any, x: Any, w: Any, stride: Any, columns: Any, out: Any, step: Any, rows: Any, tokens: Any) -> Any:
    """Add the products of `tokens` rows of x and `rows` of w, constants both, to `out[token · step + row]`.

    Of x, registers follow each other as they are wanted (`_pack`). Rows of w are `stride` apart. `columns` is a
    multiple of WIDTH.
    """
    if not all(isinstance(each, types.IntegerLiteral) for each in (rows, tokens)):
        return None
    high, wide = tokens.literal_value, rows.literal_value

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        first, second, stride, length, target, step = args[:6]
        added = cgutils.get_or_insert_function(  # fused where the processor can, else not: in software it takes 20 ns
            builder.module, ir.FunctionType(_VECTOR, [_VECTOR] * 3), f"llvm.fmuladd.v{WIDTH}f32"
        )
        before, loop = builder.block, builder.append_basic_block("columns")
        after = builder.append_basic_block("sums")
        builder.branch(loop)
        builder.position_at_end(loop)
        at = builder.phi(_I64)
        at.add_incoming(ir.Constant(_I64, 0), before)
        sums = []
        for _ in range(high * wide):
            sums.append(builder.phi(_VECTOR))
            sums[-1].add_incoming(ir.Constant(_VECTOR, [0.0] * WIDTH), before)
        weights = [_loaded(builder, second, stride, number, at) for number in range(wide)]
        ahead = builder.mul(at, ir.Constant(_I64, high))
        for token in range(high):
            values = _loaded(builder, first, ir.Constant(_I64, WIDTH), token, ahead)
            for row, weight in enumerate(weights):
                each = sums[token * wide + row]
                each.add_incoming(builder.call(added, [values, weight, each]), loop)
        following = builder.add(at, ir.Constant(_I64, WIDTH))
        at.add_incoming(following, loop)
        builder.cbranch(builder.icmp_signed("<", following, length), loop, after)
        builder.position_at_end(after)
        totals, part = _totals(builder, [each.incomings[1][0] for each in sums]), ir.VectorType(_F32, wide)
        for token in range(high):
            whole, lane = divmod(token * wide, WIDTH)
            own = _chosen(builder, totals[whole], totals[whole], list(range(lane, lane + wide)))
            place = builder.gep(target, [builder.mul(step, ir.Constant(_I64, token))])
            place = builder.bitcast(place, part.as_pointer())
            builder.store(builder.fadd(builder.load(place, align=4), own), place, align=4)
        return context.get_dummy_value()

    return types.void(x, w, stride, columns, out, step, rows, tokens), lower


@inline
def _pack(x, stride, tokens, columns, packed):
    """Copy columns of rows of x as tiles read them: of each WIDTH columns, the rows of a tile."""
    at = 0
    for token in range(0, tokens, TOKENS):
        last = min(token + TOKENS, tokens)
        for start in range(0, columns, WIDTH):
            for row in range(token, last):
                store(packed, at, _load(x, row * stride + start))
                at += WIDTH


@inline
def _row_of_tiles(x, w, stride, columns, out, step, tokens, rows):
    """Multiply all rows of x with `rows` rows of w."""
    whole = tokens - tokens % TOKENS
    for token in range(0, whole, TOKENS):
        tile(skip(x, token * columns), w, stride, columns, skip(out, token * step), step, rows, TOKENS)
    left, x, out = tokens - whole, skip(x, whole * columns), skip(out, whole * step)
    if left == 1:
        tile(x, w, stride, columns, out, step, rows, 1)
    elif left == 2:
        tile(x, w, stride, columns, out, step, rows, 2)
    elif left == 3:
        tile(x, w, stride, columns, out, step, rows, 3)
    elif left == 4:
        tile(x, w, stride, columns, out, step, rows, 4)
    elif left == 5:
        tile(x, w, stride, columns, out, step, rows, 5)


@kernel
def products(x, w, out, start):
    """Multiply x with the rows of w.

    Args:
        x: float32 `(tokens, columns)`.
        w: float32 `(rows, columns)`.
        out: float32 `(tokens, n)`; the products are put from column `start` on.
        start: That column.
    """
    tokens, columns = x.shape
    rows, step = w.shape[0], out.shape[1]
    out[:, start : start + rows] = 0
    whole = rows - rows % ROWS
    most = -(-columns // WIDTH // -(-columns // COLUMNS)) * WIDTH
    block = max(TOKENS, CACHED // most // TOKENS * TOKENS)
    room = np.empty(min(tokens, block) * most, np.float32)
    for column in range(0, columns, most):
        some, part = min(most, columns - column), skip(pointer(w), column)
        for first in range(0, tokens, block):
            packed = pointer(room)  # in the loop: numba frees an array after the last statement that names it
            count, target = min(block, tokens - first), skip(pointer(out), first * step + start)
            _pack(skip(pointer(x), first * columns + column), columns, count, some, packed)
            for row in range(0, whole, ROWS):
                _row_of_tiles(packed, skip(part, row * columns), columns, some, skip(target, row), step, count, ROWS)
            for row in range(whole, rows):
                _row_of_tiles(packed, skip(part, row * columns), columns, some, skip(target, row), step, count, 1)
