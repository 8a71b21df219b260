"""Rows times a matrix, compiled: what forward passes spend their time on.

A pass of the proof multiplies a few dozen rows with every weight of a model. MKL, which torch multiplies with, leaves
half of such a product's speed on a processor that is not Intel's, and its sums depend on how many rows there are. Here
a sum is always made in the same order: as many partial sums as a register has lanes, then these by halves. It has a
third of the rounding error of one chain of additions.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from ggferry.quant.kernels.common import LANES, inline, kernel
from ggferry.quant.kernels.lanes import pointer, skip

WIDE = LANES > 16
WIDTH, TOKENS = (16, 6) if WIDE else (8, 3)
"""Lanes of a register, and rows of x in a tile: its sums, and what they are made of, fit into 32 or 16 registers."""
ROWS = 4
CACHED = 96 << 10
"""Values of x that are multiplied with all rows of w before others are: 384 KiB of a core's second-level cache."""

_I32, _I64, _F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()
_VECTOR = ir.VectorType(_F32, WIDTH)


def _loaded(builder: Any, base: Any, stride: Any, number: int, at: Any) -> Any:
    """The lanes at `at` of row `number`."""
    place = builder.gep(base, [builder.add(builder.mul(stride, ir.Constant(_I64, number)), at)])
    return builder.load(builder.bitcast(place, _VECTOR.as_pointer()), align=4)


def _halves(builder: Any, vector: Any) -> Any:
    """The lower half of the lanes plus the upper half."""
    count = vector.type.count // 2
    low, high = (
        builder.shuffle_vector(vector, vector, ir.Constant(ir.VectorType(_I32, count), list(range(at, at + count))))
        for at in (0, count)
    )
    return builder.fadd(low, high)


@intrinsic(prefer_literal=True)  # type: ignore[misc]
def tile(typing_context: Any, x: Any, w: Any, columns: Any, out: Any, stride: Any, rows: Any, tokens: Any) -> Any:
    """Write the products of `tokens` rows of x and `rows` of w, constants both, to `out[token · stride + row]`.

    Rows are `columns` long, a multiple of WIDTH.
    """
    if not all(isinstance(each, types.IntegerLiteral) for each in (rows, tokens)):
        return None

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        first, second, length, target, step = args[:5]
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
        for _ in range(tokens.literal_value * rows.literal_value):
            sums.append(builder.phi(_VECTOR))
            sums[-1].add_incoming(ir.Constant(_VECTOR, [0.0] * WIDTH), before)
        weights = [_loaded(builder, second, length, number, at) for number in range(rows.literal_value)]
        for token in range(tokens.literal_value):
            values = _loaded(builder, first, length, token, at)
            for row, weight in enumerate(weights):
                each = sums[token * len(weights) + row]
                each.add_incoming(builder.call(added, [values, weight, each]), loop)
        following = builder.add(at, ir.Constant(_I64, WIDTH))
        at.add_incoming(following, loop)
        builder.cbranch(builder.icmp_signed("<", following, length), loop, after)
        builder.position_at_end(after)
        for number, each in enumerate(sums):
            total = each.incomings[1][0]
            while total.type.count > 1:
                total = _halves(builder, total)
            token, row = divmod(number, len(weights))
            place = builder.add(builder.mul(step, ir.Constant(_I64, token)), ir.Constant(_I64, row))
            builder.store(builder.extract_element(total, ir.Constant(_I32, 0)), builder.gep(target, [place]))
        return context.get_dummy_value()

    return types.void(x, w, columns, out, stride, rows, tokens), lower


@inline
def _row_of_tiles(x, w, columns, out, stride, tokens):
    """Multiply all rows of x with ROWS rows of w."""
    whole = tokens - tokens % TOKENS
    for token in range(0, whole, TOKENS):
        tile(skip(x, token * columns), w, columns, skip(out, token * stride), stride, ROWS, TOKENS)
    left, x, out = tokens - whole, skip(x, whole * columns), skip(out, whole * stride)
    if left == 1:
        tile(x, w, columns, out, stride, ROWS, 1)
    elif left == 2:
        tile(x, w, columns, out, stride, ROWS, 2)
    elif left == 3:
        tile(x, w, columns, out, stride, ROWS, 3)
    elif left == 4:
        tile(x, w, columns, out, stride, ROWS, 4)
    elif left == 5:
        tile(x, w, columns, out, stride, ROWS, 5)


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
    rows, stride = w.shape[0], out.shape[1]
    whole = rows - rows % ROWS
    block = max(TOKENS, CACHED // columns // TOKENS * TOKENS)
    for first in range(0, tokens, block):
        last = min(first + block, tokens)
        values, target = skip(pointer(x), first * columns), skip(pointer(out), first * stride + start)
        for row in range(0, whole, ROWS):
            _row_of_tiles(values, skip(pointer(w), row * columns), columns, skip(target, row), stride, last - first)
        for row in range(whole, rows):
            for token in range(last - first):
                to = skip(target, token * stride + row)
                tile(skip(values, token * columns), skip(pointer(w), row * columns), columns, to, stride, 1, 1)
