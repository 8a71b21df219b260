"""How far two arrays lie apart, compiled: the numbers of `quant.accuracy.differences`, to the last bit.

The order in which a sum is made decides its last bits. That of numpy's einsum, which the reference uses, is: runs of
8192 elements; in a run two lanes, even and odd elements; of every eight elements the last pair first. Such a chain of
additions waits for itself, so eight runs are summed side by side.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from ggferry.quant.accuracy.bounds import GIVEN, NONE, OF_BLOCK, OF_VALUE
from ggferry.quant.kernels.common import F, I, inline, kernel, load16, spread16
from ggferry.quant.kernels.lanes import (
    Lanes,
    _holds,
    _pointer,
    absolute,
    as_ints,
    bits,
    highest,
    maximum,
    rooms,
    scalar_bits,
    scalar_float,
    store,
)

STEP, RUN = 1 << 15, 1 << 13
CHAINS = 8
_LANES = 2 * CHAINS

_I32, _F32, _F64 = ir.IntType(32), ir.FloatType(), ir.DoubleType()
singles, doubles = Lanes(types.float32, _LANES), Lanes(types.float64, _LANES)
starts_room, sums_room = rooms(types.int64), rooms(types.float64)


@intrinsic  # type: ignore[misc]
def side_by_side(typing_context: Any, array: Any, starts: Any, index: Any) -> Any:
    """Two neighbors, from `index` on, of each of eight runs that begin at `starts`."""
    if not _holds(array, types.float32):
        return None

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        at = context.cast(builder, args[2], sig.args[2], types.intp)
        runs = []
        for number in range(CHAINS):
            start = builder.load(builder.gep(args[1], [ir.Constant(_I32, number)]))
            place = _pointer(context, builder, array, args[0], builder.add(start, at), 2)
            runs.append(builder.load(place, align=4))
        while len(runs) > 1:
            both = ir.Constant(ir.VectorType(_I32, 2 * runs[0].type.count), list(range(2 * runs[0].type.count)))
            runs = [builder.shuffle_vector(a, b, both) for a, b in zip(runs[::2], runs[1::2], strict=True)]
        return runs[0]

    return singles(array, starts, index), lower


@intrinsic  # type: ignore[misc]
def zeros(typing_context: Any) -> Any:
    return doubles(), lambda context, builder, sig, args: ir.Constant(ir.VectorType(_F64, _LANES), [0.0] * _LANES)


@intrinsic  # type: ignore[misc]
def plus_square(typing_context: Any, total: Any, value: Any) -> Any:
    """`total` plus the square of float32 lanes, in float64; the square is exact."""
    if (total, value) != (doubles, singles):
        return None

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        wide = builder.fpext(args[1], ir.VectorType(_F64, _LANES))
        return builder.fadd(builder.fmul(wide, wide), args[0])

    return doubles(doubles, singles), lower


@intrinsic  # type: ignore[misc]
def keep(typing_context: Any, array: Any, value: Any) -> Any:
    """Write sixteen float64 to the beginning of an array."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        at = ir.Constant(ir.IntType(64), 0)
        builder.store(args[1], _pointer(context, builder, array, args[0], at, _LANES), align=8)
        return context.get_dummy_value()

    return types.void(array, value), lower


@intrinsic  # type: ignore[misc]
def kept(typing_context: Any, array: Any) -> Any:
    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        at = ir.Constant(ir.IntType(64), 0)
        return builder.load(_pointer(context, builder, array, args[0], at, _LANES), align=8)

    return doubles(array), lower


@inline
def largest_difference(a, b, limits, mode, factor, least, elements):
    """Return max |b − a|; −1 where one is not finite, or lies beyond its bound. The arguments are those of `apart`."""
    size, worst = a.size, as_ints(spread16(F(0)))
    whole, beyond = size - size % 16, np.int64(0)
    if mode == OF_BLOCK:
        whole = size
        for start in range(0, size, elements):
            most, apart = as_ints(spread16(F(0))), as_ints(spread16(F(0)))
            for i in range(start, start + elements, 16):
                x = load16(a, i)
                most = maximum(most, as_ints(absolute(x)))
                apart = maximum(apart, as_ints(absolute(load16(b, i) - x)))
            worst = maximum(worst, apart)
            if scalar_float(highest(apart)) > scalar_float(highest(most)) * factor + least:
                return F(-1)
    else:
        for i in range(0, whole, 16):
            x = load16(a, i)
            apart = absolute(load16(b, i) - x)
            worst = maximum(worst, as_ints(apart))
            if mode == OF_VALUE:
                beyond |= np.int64(bits(apart > absolute(x) * factor + least))
            elif mode == GIVEN:
                beyond |= np.int64(bits(apart > load16(limits, i)))
    most = highest(worst)
    for i in range(whole, size):
        apart = abs(b[i] - a[i])
        most = max(most, scalar_bits(apart))
        if mode != NONE and apart > (limits[i] if mode == GIVEN else abs(a[i]) * factor + least):
            beyond = np.int64(1)
    if beyond != 0 or most >= 0x7F800000:
        return F(-1)
    return scalar_float(I(most))


@inline
def sum_on(a, b, starts, begin, end, power, error, differ):
    """Add elements begin:end, whole eights, of eight runs to their sums."""
    powers, errors = kept(power), kept(error)
    for i in range(begin, end, 8):
        for pair in range(6, -2, -2):
            x = side_by_side(a, starts, i + pair)
            powers = plus_square(powers, x)
            if differ:
                errors = plus_square(errors, side_by_side(b, starts, i + pair) - x)
    keep(power, powers)
    keep(error, errors)


@kernel
def apart(a, b, limits, mode, factor, least, elements, sums):
    """Compare float32 arrays of one length.

    Args:
        a: The expected values.
        b: What was found.
        limits: The bound of every element, where `mode` is GIVEN.
        mode: NONE for no bound, OF_VALUE for one of every value, OF_BLOCK for one of every block.
        factor: Of the bound: times the value's, or the block's largest, magnitude.
        least: Of the bound: added.
        elements: Elements of a block, a multiple of 16.
        sums: Where Σ a² and Σ (b − a)² of every step of STEP elements are put, float64 `(2, steps)`.

    Returns:
        max |b − a|; −1, and no sums, where one is not finite, or lies beyond its bound.
    """
    largest = largest_difference(a, b, limits, mode, factor, least, elements)
    if largest < 0:
        return largest
    starts, power, error = starts_room(8), sums_room(16), sums_room(16)
    runs, differ = (a.size + RUN - 1) // RUN, largest != 0
    sums[:] = 0
    for first in range(0, runs, CHAINS):
        count = min(CHAINS, runs - first)
        last = RUN * (first + count - 1)
        length = min(RUN, a.size - last)
        for k in range(CHAINS):  # runs that are not there repeat the first one
            starts[k] = RUN * (first + k if k < count else first)
        keep(power, zeros())
        keep(error, zeros())
        whole = length - length % 8
        sum_on(a, b, starts, 0, whole, power, error, differ)
        for i in range(last + whole, last + length):
            lane, x, y = 2 * (count - 1) + (i & 1), np.float64(a[i]), np.float64(b[i] - a[i])
            power[lane] += x * x
            error[lane] += y * y
        powers, errors = power[2 * count - 2] + power[2 * count - 1], error[2 * count - 2] + error[2 * count - 1]
        if whole < RUN and count > 1:
            starts[count - 1] = RUN * first
            sum_on(a, b, starts, whole, RUN, power, error, differ)
        for k in range(count - 1):
            sums[0, (first + k) // (STEP // RUN)] += power[2 * k] + power[2 * k + 1]
            sums[1, (first + k) // (STEP // RUN)] += error[2 * k] + error[2 * k + 1]
        sums[0, (first + count - 1) // (STEP // RUN)] += powers
        sums[1, (first + count - 1) // (STEP // RUN)] += errors
    return largest


lanes_room = rooms(types.float32)
_SURE = 0.98
"""Of a limit: what float32 sums of squares within it cannot be beyond it."""


@kernel
def alike(a, b, columns, elements, floor, block_limit, row_limit):
    """Return whether all blocks and rows are surely alike, as `quant.accuracy.likeness.first_unlike` judges them.

    Args:
        a: The expected values.
        b: What was found.
        columns: Elements of a row.
        elements: Elements of a block, a multiple of 16.
        floor: The least value that the type's scale can represent.
        block_limit: The largest relative RMS error of a block.
        row_limit: The same of a row.
    """
    room, none = lanes_room(16), elements * floor * floor
    for row in range(0, a.size, columns):
        row_error, row_power = 0.0, 0.0
        for start in range(row, row + columns, elements):
            most, there = as_ints(spread16(F(0))), as_ints(spread16(F(0)))
            errors, powers = spread16(F(0)), spread16(F(0))
            for i in range(start, start + elements, 16):
                x, y = load16(a, i), load16(b, i)
                most, there = maximum(most, as_ints(absolute(x))), maximum(there, as_ints(absolute(y)))
                powers += x * x
                errors += (y - x) * (y - x)
            error, power = 0.0, 0.0
            store(room, 0, errors)
            for k in range(16):
                error += np.float64(room[k])
            store(room, 0, powers)
            for k in range(16):
                power += np.float64(room[k])
            if not error + power < 1e37:
                return False
            if scalar_float(highest(most)) > floor:
                if scalar_float(highest(there)) == 0 or error > power * block_limit * block_limit * _SURE:
                    return False
                row_error += error
                row_power += power
            elif error > none * _SURE:
                return False
        if row_error > row_power * row_limit * row_limit * _SURE:
            return False
    return True
