"""Lanes that look at other lanes, or at a table; and sums for estimates, which need no order."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from ggferry.quant.kernels.lanes import (
    _F32,
    _I1,
    _I32,
    _I64,
    WIDTH,
    Lanes,
    _call,
    _data,
    _holds,
    _operands,
    _spread,
    floats,
    ints,
)


@intrinsic  # type: ignore[misc]
def loose_fma(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """a·b + c, rounded once or twice as the machine does it faster: for estimates, never for results."""
    if not isinstance(a, Lanes) or a.scalar != types.float32 or c != a:
        return None

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _, operands = _operands(context, builder, sig, args)
        return _call(builder, "fmuladd", operands[0].type, *operands)

    return a(a, b, c), lower


@intrinsic  # type: ignore[misc]
def loose_sum(typing_context: Any, lanes: Any) -> Any:
    """The sum of float32 lanes in any order: for estimates, never for results."""
    if not isinstance(lanes, Lanes) or lanes.scalar != types.float32:
        return None

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        function = ir.FunctionType(_F32, [_F32, args[0].type])
        name = f"llvm.vector.reduce.fadd.v{lanes.width}f32"
        add = cgutils.get_or_insert_function(builder.module, function, name)
        return builder.call(add, [ir.Constant(_F32, 0.0), args[0]], fastmath=("reassoc",))

    return types.float32(lanes), lower


@intrinsic  # type: ignore[misc]
def following(typing_context: Any, before: Any, lanes: Any) -> Any:
    """Lanes moved up by one, with the last lane of `before` as the first."""
    if not isinstance(lanes, Lanes) or before != lanes:
        return None

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        order = [lanes.width - 1 + i for i in range(lanes.width)]
        return builder.shuffle_vector(*args, ir.Constant(ir.VectorType(_I32, lanes.width), order))

    return lanes(before, lanes), lower


@intrinsic  # type: ignore[misc]
def gather(typing_context: Any, table: Any, index: Any) -> Any:
    """The int32 of a table that int32 lanes point at."""
    if not (isinstance(index, Lanes) and index.scalar == types.int32 and _holds(table, types.int32)):
        return None

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        wide = ir.VectorType(_I64, index.width)
        base = _spread(builder, builder.ptrtoint(_data(context, builder, table, args[0]), _I64), index.width)
        offset = builder.shl(builder.sext(args[1], wide), ir.Constant(wide, [2] * index.width))
        places = builder.inttoptr(builder.add(base, offset), ir.VectorType(_I32.as_pointer(), index.width))
        every = ir.VectorType(_I1, index.width)
        found = args[1].type
        function = ir.FunctionType(found, [places.type, _I32, every, found])
        name = f"llvm.masked.gather.v{index.width}i32.v{index.width}p0"
        read = cgutils.get_or_insert_function(builder.module, function, name)
        given = [places, ir.Constant(_I32, 4), ir.Constant(every, [1] * index.width), ir.Constant(found, ir.Undefined)]
        return builder.call(read, given)

    return index(table, index), lower


@intrinsic  # type: ignore[misc]
def look_up(typing_context: Any, table: Any, index: Any) -> Any:
    """Lane by lane the one of eight float32 that the low three bits of the index name: an instruction of AVX2."""
    if table != floats or index != ints:
        return None

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if "+avx2" in context.codegen()._tm_features.split(","):
            function = ir.FunctionType(args[0].type, [a.type for a in args])
            name = "llvm.x86.avx2.permps"
            return builder.call(cgutils.get_or_insert_function(builder.module, function, name), args)
        found = ir.Constant(args[0].type, ir.Undefined)
        low = builder.and_(args[1], ir.Constant(args[1].type, [WIDTH - 1] * WIDTH))
        for lane in (ir.Constant(_I32, k) for k in range(WIDTH)):
            item = builder.extract_element(args[0], builder.extract_element(low, lane))
            found = builder.insert_element(found, item, lane)
        return found

    return floats(table, index), lower


@intrinsic  # type: ignore[misc]
def joined(typing_context: Any, a: Any, b: Any) -> Any:
    """The lanes of `a` and, behind them, as many of `b`."""
    if not isinstance(a, Lanes) or b != a:
        return None

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.shuffle_vector(*args, ir.Constant(ir.VectorType(_I32, 2 * a.width), list(range(2 * a.width))))

    return Lanes(a.scalar, 2 * a.width)(a, b), lower


@intrinsic  # type: ignore[misc]
def lowest_of_eight(typing_context: Any, lanes: Any) -> Any:
    """In every lane the lowest of the eight int32 lanes that it is one of."""
    if not isinstance(lanes, Lanes) or lanes.scalar != types.int32:
        return None

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        low = args[0]
        for step in (4, 2, 1):
            others = ir.Constant(ir.VectorType(_I32, lanes.width), [i ^ step for i in range(lanes.width)])
            low = _call(builder, "smin", low.type, low, builder.shuffle_vector(low, low, others))
        return low

    return lanes(lanes), lower
