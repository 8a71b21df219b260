"""Small integers of packed blocks as sixteen int32 lanes, for decoders: bytes, points of lattices, bits of a word."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from ggferry.quant.kernels.lanes import Lanes, _holds, _pointer, _spread

LANES = 16

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_INTS = ir.VectorType(_I32, LANES)
ints = Lanes(types.int32, LANES)

_SIGNED = (types.int8, types.int16)


def _pieces(dtype: Any, count: int) -> Any:
    """Return `load(array, *indices)`: sixteen items in `count` runs, one from each index on, widened to int32."""
    width = LANES // count

    def code(given: Any) -> Callable[..., Any]:
        def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            runs = []
            for number in range(count):
                at = context.cast(builder, args[1 + number], sig.args[1 + number], types.intp)
                runs.append(builder.load(_pointer(context, builder, given, args[0], at, width), align=1))
            while len(runs) > 1:
                both = ir.Constant(ir.VectorType(_I32, 2 * runs[0].type.count), list(range(2 * runs[0].type.count)))
                runs = [builder.shuffle_vector(a, b, both) for a, b in zip(runs[::2], runs[1::2], strict=True)]
            return (builder.sext if dtype in _SIGNED else builder.zext)(runs[0], _INTS)

        return lower

    if count == 1:

        @intrinsic  # type: ignore[misc]
        def load(typing_context: Any, array: Any, index: Any) -> Any:
            return (ints(array, index), code(array)) if _holds(array, dtype) else None

    elif count == 2:

        @intrinsic  # type: ignore[misc]
        def load(typing_context: Any, array: Any, a: Any, b: Any) -> Any:
            return (ints(array, a, b), code(array)) if _holds(array, dtype) else None

    else:

        @intrinsic  # type: ignore[misc]
        def load(typing_context: Any, array: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
            return (ints(array, a, b, c, d), code(array)) if _holds(array, dtype) else None

    return load


octets, octets2, octets4 = (_pieces(types.uint8, count) for count in (1, 2, 4))
"""Unsigned bytes: sixteen neighbors, two runs of eight, four runs of four."""
points2, points4 = (_pieces(types.int8, count) for count in (2, 4))
"""Signed bytes in two runs of eight or four of four: points of lattices, and their signs."""


@intrinsic  # type: ignore[misc]
def pairs(typing_context: Any, array: Any, index: Any) -> Any:
    """Sixteen little-endian uint16 from byte `index` of an array of uint8 on."""
    if not _holds(array, types.uint8):
        return None

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        at = context.cast(builder, args[1], sig.args[1], types.intp)
        place = _pointer(context, builder, array, args[0], at, 2 * LANES)
        found = builder.load(builder.bitcast(place, ir.VectorType(ir.IntType(16), LANES).as_pointer()), align=1)
        return builder.zext(found, _INTS)

    return ints(array, index), lower


@intrinsic  # type: ignore[misc]
def signed(typing_context: Any, value: Any) -> Any:
    """The low byte of every lane as a signed number."""
    if value != ints:
        return None

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.sext(builder.trunc(args[0], ir.VectorType(ir.IntType(8), LANES)), _INTS)

    return ints(ints), lower


@intrinsic  # type: ignore[misc]
def numbers(typing_context: Any) -> Any:
    """0, 1, … 15."""
    return ints(), lambda context, builder, sig, args: ir.Constant(_INTS, list(range(LANES)))


@intrinsic  # type: ignore[misc]
def fields(typing_context: Any, word: Any, width: Any, mask: Any) -> Any:
    """`word >> width · lane & mask` of an unsigned 32-bit number, in every lane whose shift is below 32."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        value, step, bits = (
            _spread(builder, context.cast(builder, arg, given, types.int32), LANES)
            for arg, given in zip(args, sig.args, strict=True)
        )
        shifts = builder.mul(step, ir.Constant(_INTS, list(range(LANES))))
        return builder.and_(builder.lshr(value, shifts), bits)

    return ints(word, width, mask), lower


def _mixer(order: list[int]) -> Any:
    @intrinsic  # type: ignore[misc]
    def mix(typing_context: Any, a: Any, b: Any) -> Any:
        if not (isinstance(a, Lanes) and a == b and a.width == LANES):
            return None
        chosen = ir.Constant(_INTS, order)
        return a(a, b), lambda context, builder, sig, args: builder.shuffle_vector(args[0], args[1], chosen)

    return mix


mixed_low = _mixer([lane // 2 + LANES * (lane % 2) for lane in range(LANES)])
mixed_high = _mixer([LANES // 2 + lane // 2 + LANES * (lane % 2) for lane in range(LANES)])
"""The first, and the last, eight lanes of two in turn: a0 b0 a1 b1 …"""


@intrinsic  # type: ignore[misc]
def store_pairs(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """Write the low sixteen bits of int32 lanes, little-endian, from byte `index` of an array of uint8 on."""
    if value != ints or not _holds(array, types.uint8):
        return None

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        at = context.cast(builder, args[1], sig.args[1], types.intp)
        narrow = builder.trunc(args[2], ir.VectorType(ir.IntType(16), LANES))
        place = _pointer(context, builder, array, args[0], at, 2 * LANES)
        builder.store(narrow, builder.bitcast(place, narrow.type.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(array, index, value), lower
