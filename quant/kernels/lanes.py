"""Explicit SIMD for numba: eight, sixteen … float32, float64 or int32 in one value.

LLVM's loop vectorizer gives up on short inner loops, several accumulators and reductions, which is all a quantizer
consists of. Here `load(a, i)` yields eight lanes, operators work on them (scalars are spread; `+ - * /` are IEEE and
never fused), comparisons yield a mask for `where` and `bits`. The eight lanes are one AVX register, or two of SSE or
NEON: LLVM splits them, so one source serves every machine and no flag decides whether a kernel is fast. Kernels that
want more lanes, so that several registers are in flight at once, make their own `loader` and `spreader`.

Memory is a C-contiguous array, indexed as if flat, or a pointer: `pointer(array)`, or `float_room(n)` and its kin on
the stack. Functions that call each other a million times hand on pointers: an array's reference count and shape cost
more than the arithmetic. Nothing checks an index.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model

WIDTH = 8

_I1, _I8, _I32, _I64, _F32 = ir.IntType(1), ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()


class Lanes(types.Type):  # type: ignore[misc]
    """The numba type of `width` lanes of `scalar`: float32, float64, int32 or boolean. No float64 are compared."""

    def __init__(self, scalar: Any, width: int = WIDTH) -> None:
        self.scalar, self.width = scalar, width
        super().__init__(name=f"Lanes({scalar}, {width})")

    def of(self, scalar: Any) -> Lanes:
        """As many lanes of another scalar."""
        return Lanes(scalar, self.width)


floats, ints, mask = Lanes(types.float32), Lanes(types.int32), Lanes(types.boolean)
_ELEMENT = {types.float32: _F32, types.float64: ir.DoubleType(), types.int32: _I32, types.boolean: _I1}


def _vector(lanes: Lanes) -> Any:
    return ir.VectorType(_ELEMENT[lanes.scalar], lanes.width)


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, fe_type: Lanes) -> None:
        super().__init__(manager, fe_type, _vector(fe_type))


def _spread(builder: Any, value: Any, width: int) -> Any:
    """`width` copies of a scalar."""
    none = ir.Constant(ir.VectorType(value.type, width), ir.Undefined)
    one = builder.insert_element(none, value, ir.Constant(_I32, 0))
    return builder.shuffle_vector(one, none, ir.Constant(ir.VectorType(_I32, width), [0] * width))


def _operands(context: Any, builder: Any, sig: Any, args: Any) -> tuple[Lanes, list[Any]]:
    """The lanes type of an operation on lanes and scalars, and its operands, all as lanes."""
    lanes = next(t for t in sig.args if isinstance(t, Lanes))
    spread = []
    for given, value in zip(sig.args, args, strict=True):
        if not isinstance(given, Lanes):
            value = _spread(builder, context.cast(builder, value, given, lanes.scalar), lanes.width)
        spread.append(value)
    return lanes, spread


def _define(
    operators: tuple[Any, ...], result: Callable[[Lanes], Lanes], build: Callable[[Any, Lanes, Any, Any], Any]
) -> None:
    """Teach numba the binary `operators` on lanes, or on lanes and a scalar."""

    class Template(AbstractTemplate):  # type: ignore[misc]
        def generic(self, args: Any, kws: Any) -> Any:
            found = [t for t in args if isinstance(t, Lanes)]
            if len(args) != 2 or not found or any(t not in (found[0],) and isinstance(t, Lanes) for t in args):
                return None
            return signature(result(found[0]), *args)

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        lanes, (a, b) = _operands(context, builder, sig, args)
        return build(builder, lanes, a, b)

    for op in operators:
        infer_global(op)(type(f"Lanes_{op.__name__}", (Template,), {}))
        for pair in ((Lanes, Lanes), (Lanes, types.Number), (types.Number, Lanes)):
            lower_builtin(op, *pair)(lower)


def _same(lanes: Lanes) -> Lanes:
    return lanes


def _by_kind(on_floats: str, on_ints: str) -> Callable[[Any, Lanes, Any, Any], Any]:
    def build(builder: Any, lanes: Lanes, a: Any, b: Any) -> Any:
        return getattr(builder, on_floats if isinstance(lanes.scalar, types.Float) else on_ints)(a, b)

    return build


def _compare(sign: str) -> Callable[[Any, Lanes, Any, Any], Any]:
    def build(builder: Any, lanes: Lanes, a: Any, b: Any) -> Any:
        if lanes.scalar != types.float32:
            return builder.icmp_signed(sign, a, b)
        return (builder.fcmp_unordered if sign == "!=" else builder.fcmp_ordered)(sign, a, b)

    return build


_define((operator.add, operator.iadd), _same, _by_kind("fadd", "add"))
_define((operator.sub, operator.isub), _same, _by_kind("fsub", "sub"))
_define((operator.mul, operator.imul), _same, _by_kind("fmul", "mul"))
_define((operator.truediv, operator.itruediv), _same, _by_kind("fdiv", "sdiv"))
_define((operator.and_, operator.iand), _same, _by_kind("and_", "and_"))
_define((operator.or_, operator.ior), _same, _by_kind("or_", "or_"))
_define((operator.xor, operator.ixor), _same, _by_kind("xor", "xor"))
_define((operator.lshift, operator.ilshift), _same, _by_kind("shl", "shl"))
_define((operator.rshift, operator.irshift), _same, _by_kind("ashr", "ashr"))
for _op, _sign in {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}.items():
    _define((getattr(operator, _op),), lambda lanes: lanes.of(types.boolean), _compare(_sign))


def _data(context: Any, builder: Any, memory: Any, value: Any) -> Any:
    """The LLVM pointer of an array or pointer."""
    if isinstance(memory, types.CPointer):
        return value
    return context.make_array(memory)(context, builder, value).data


def _pointer(context: Any, builder: Any, memory: Any, value: Any, index: Any, width: int) -> Any:
    """Where lane 0 of a load or store at `index` stands."""
    place = builder.gep(_data(context, builder, memory, value), [index])
    return builder.bitcast(place, ir.VectorType(place.type.pointee, width).as_pointer())


def _holds(memory: Any, dtype: Any) -> bool:
    """Return whether `memory` is a C-contiguous array of, or a pointer to, `dtype`."""
    if isinstance(memory, types.CPointer):
        return bool(memory.dtype == dtype)
    return isinstance(memory, types.Array) and memory.dtype == dtype and memory.layout == "C"


def loader(dtype: Any, result: Lanes) -> Any:
    """`load(array of dtype, index)`: neighbors as lanes."""

    @intrinsic  # type: ignore[misc]
    def load(typing_context: Any, array: Any, index: Any) -> Any:
        if not _holds(array, dtype):
            return None

        def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            at = context.cast(builder, args[1], sig.args[1], types.intp)
            return builder.load(_pointer(context, builder, array, args[0], at, result.width), align=1)

        return result(array, index), lower

    return load


def _places(context: Any, builder: Any, memory: Any, value: Any, start: Any, steps: Any, given: Any) -> list[Any]:
    """Places of sixteen rows of sixteen float32: at `start` + k · `steps`, or at `start` + steps[k]."""
    places = []
    for k in range(16):
        number = ir.Constant(_I64, k)
        if isinstance(given, types.CPointer):
            step = builder.load(builder.gep(steps, [number]))
        else:
            step = builder.mul(context.cast(builder, steps, given, types.intp), number)
        places.append(_pointer(context, builder, memory, value, builder.add(start, step), 16))
    return places


@intrinsic  # type: ignore[misc]
def transpose(typing_context: Any, source: Any, start: Any, steps: Any, target: Any, at: Any, widths: Any) -> Any:
    """Write sixteen rows of sixteen float32 of `source` as sixteen columns to `target`.

    Row k begins `k · steps` after `start`, or at `start + steps[k]` where steps is a pointer to int64; the same holds
    for the columns from `at` on.
    """
    if not (_holds(source, types.float32) and _holds(target, types.float32)):
        return None

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        begin, end = (context.cast(builder, args[i], sig.args[i], types.intp) for i in (1, 4))
        places = _places(context, builder, source, args[0], begin, args[2], steps)
        rows = [builder.load(place, align=1) for place in places]
        low, high = (
            ir.Constant(ir.VectorType(_I32, 16), [half + i // 2 + i % 2 * 16 for i in range(16)]) for half in (0, 8)
        )
        for _ in range(4):  # four perfect shuffles of the rows
            pairs = list(zip(rows[:8], rows[8:], strict=True))
            rows = [builder.shuffle_vector(a, b, half) for a, b in pairs for half in (low, high)]
        for place, row in zip(_places(context, builder, target, args[3], end, args[5], widths), rows, strict=True):
            builder.store(row, place, align=1)
        return context.get_dummy_value()

    return types.void(source, start, steps, target, at, widths), lower


load = loader(types.float32, floats)
load_ints = loader(types.int32, ints)


@intrinsic  # type: ignore[misc]
def load_numbers(typing_context: Any, memory: Any, index: Any) -> Any:
    """Eight neighbors, int8 or float32, as float32 lanes."""
    dtype = types.int8 if _holds(memory, types.int8) else types.float32
    if not _holds(memory, dtype):
        return None

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        at = context.cast(builder, args[1], sig.args[1], types.intp)
        found = builder.load(_pointer(context, builder, memory, args[0], at, WIDTH), align=1)
        return builder.sitofp(found, _vector(floats)) if dtype == types.int8 else found

    return floats(memory, index), lower


@intrinsic  # type: ignore[misc]
def store(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """Write lanes to an array of their scalar, or the low bytes of int32 lanes to one of uint8."""
    narrow = value.scalar == types.int32 and _holds(array, types.uint8)
    if not (narrow or _holds(array, value.scalar)):
        return None

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        at = context.cast(builder, args[1], sig.args[1], types.intp)
        lanes = builder.trunc(args[2], ir.VectorType(_I8, value.width)) if narrow else args[2]
        builder.store(lanes, _pointer(context, builder, array, args[0], at, value.width), align=1)
        return context.get_dummy_value()

    return types.void(array, index, value), lower


@intrinsic  # type: ignore[misc]
def pointer(typing_context: Any, memory: Any) -> Any:
    """Where the data of a C-contiguous array begin (the caller keeps the array alive), or the pointer it is already."""
    if isinstance(memory, types.CPointer):
        return memory(memory), lambda context, builder, sig, args: args[0]
    if not isinstance(memory, types.Array) or memory.layout != "C":
        return None
    return types.CPointer(memory.dtype)(memory), lambda context, builder, sig, args: _data(
        context, builder, sig.args[0], args[0]
    )


@intrinsic  # type: ignore[misc]
def skip(typing_context: Any, pointer: Any, items: Any) -> Any:
    """A pointer `items` further on."""
    if not isinstance(pointer, types.CPointer):
        return None

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.gep(args[0], [context.cast(builder, args[1], sig.args[1], types.intp)])

    return pointer(pointer, items), lower


def rooms(item: Any, times: int = 1) -> Any:
    """Return `room(n)`: a pointer to uninitialized memory on the stack for n · `times` items, where n is a constant.

    The memory is aligned for the widest registers.
    """

    @intrinsic(prefer_literal=True)  # type: ignore[misc]
    def room(typing_context: Any, items: Any) -> Any:
        if not isinstance(items, types.IntegerLiteral):
            return None

        def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            kind = context.get_data_type(item)
            with builder.goto_entry_block():  # not numba's alloca_once: it clears, and LLVM makes a store of each item
                area = builder.alloca(ir.ArrayType(kind, items.literal_value * times))
            area.align = 64
            return builder.bitcast(area, kind.as_pointer())

        return types.CPointer(item)(items), lower

    return room


float_room, int_room, byte_room = rooms(types.float32), rooms(types.int32), rooms(types.uint8)


def _unary(given: Any, result: Callable[[Lanes], Any], build: Callable[[Any, Lanes, Any], Any]) -> Any:
    @intrinsic  # type: ignore[misc]
    def function(typing_context: Any, value: Any) -> Any:
        if not isinstance(value, Lanes) or value.scalar != given:
            return None
        return result(value)(value), lambda context, builder, sig, args: build(builder, value, args[0])

    return function


def _call(builder: Any, name: str, result: Any, *args: Any) -> Any:
    """A call of LLVM's intrinsic `name` for the vector type of the arguments."""
    kind = "f32" if args[0].type.element == _F32 else "i32"
    function = ir.FunctionType(result, [a.type for a in args])
    full = f"llvm.{name}.v{args[0].type.count}{kind}"
    return builder.call(cgutils.get_or_insert_function(builder.module, function, full), args)


def _scalar(lanes: Lanes) -> Any:
    return lanes.scalar


_float_lanes, _int_lanes = (lambda lanes: lanes.of(types.float32)), (lambda lanes: lanes.of(types.int32))
_double_lanes = lambda lanes: lanes.of(types.float64)  # noqa: E731

as_ints = _unary(types.float32, _int_lanes, lambda b, t, v: b.bitcast(v, _vector(_int_lanes(t))))
as_floats = _unary(types.int32, _float_lanes, lambda b, t, v: b.bitcast(v, _vector(_float_lanes(t))))
to_floats = _unary(types.int32, _float_lanes, lambda b, t, v: b.sitofp(v, _vector(_float_lanes(t))))
to_ints = _unary(types.float32, _int_lanes, lambda b, t, v: b.fptosi(v, _vector(_int_lanes(t))))
to_doubles = _unary(types.float32, _double_lanes, lambda b, t, v: b.fpext(v, _vector(_double_lanes(t))))
to_singles = _unary(types.float64, _float_lanes, lambda b, t, v: b.fptrunc(v, _vector(_float_lanes(t))))
sqrt = _unary(types.float32, _same, lambda b, t, v: _call(b, "sqrt", v.type, v))
absolute = _unary(types.float32, _same, lambda b, t, v: _call(b, "fabs", v.type, v))
lowest = _unary(types.int32, _scalar, lambda b, t, v: _call(b, "vector.reduce.smin", _I32, v))
highest = _unary(types.int32, _scalar, lambda b, t, v: _call(b, "vector.reduce.smax", _I32, v))
bits = _unary(
    types.boolean,
    lambda lanes: types.Integer.from_bitwidth(lanes.width, signed=False),
    lambda b, t, v: b.bitcast(v, ir.IntType(t.width)),
)


def _scalar_cast(given: Any, result: Any) -> Any:
    @intrinsic  # type: ignore[misc]
    def function(typing_context: Any, value: Any) -> Any:
        if value != given:
            return None
        return result(value), lambda context, builder, sig, args: builder.bitcast(args[0], _ELEMENT[result])

    return function


scalar_bits = _scalar_cast(types.float32, types.int32)
scalar_float = _scalar_cast(types.int32, types.float32)


def spreader(width: int) -> Any:
    """`spread(value)`: a float32, float64 or int32 in each of `width` lanes."""

    @intrinsic  # type: ignore[misc]
    def spread(typing_context: Any, value: Any) -> Any:
        if value not in (types.float32, types.float64, types.int32):
            return None
        return Lanes(value, width)(value), lambda context, builder, sig, args: _spread(builder, args[0], width)

    return spread


spread = spreader(WIDTH)


@intrinsic  # type: ignore[misc]
def lane_numbers(typing_context: Any) -> Any:
    """0, 1, … 7."""
    return ints(), lambda context, builder, sig, args: ir.Constant(_vector(ints), list(range(WIDTH)))


@intrinsic  # type: ignore[misc]
def where(typing_context: Any, condition: Any, a: Any, b: Any) -> Any:
    """Lane by lane `a` where the mask is set, else `b`; one of the two may be a scalar."""
    if not any(isinstance(t, Lanes) and condition == t.of(types.boolean) for t in (a, b)):
        return None
    result = next(t for t in (a, b) if isinstance(t, Lanes))

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pair = signature(result, *sig.args[1:])
        _, (yes, no) = _operands(context, builder, pair, args[1:])
        return builder.select(args[0], yes, no)

    return result(condition, a, b), lower


@intrinsic  # type: ignore[misc]
def rolled(typing_context: Any) -> Any:
    """Keep the surrounding loop from being unrolled.

    Explicit lanes gain nothing by unrolling, and the compiler's time grows with it. LLVM may not copy convergent code
    behind a condition of its own; this is empty convergent code.
    """

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        nothing = ir.InlineAsm(ir.FunctionType(ir.VoidType(), []), "", "", side_effect=True)
        builder.call(nothing, [], attrs=("convergent", "nounwind", "readnone"))
        return context.get_dummy_value()

    return types.void(), lower


def _extreme(name: str) -> Any:
    @intrinsic  # type: ignore[misc]
    def function(typing_context: Any, a: Any, b: Any) -> Any:
        if not isinstance(a, Lanes) or a.scalar != types.int32 or not (b == a or isinstance(b, types.Integer)):
            return None

        def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            _, pair = _operands(context, builder, sig, args)
            return _call(builder, name, pair[0].type, *pair)

        return a(a, b), lower

    return function


minimum, maximum = _extreme("smin"), _extreme("smax")


@intrinsic  # type: ignore[misc]
def stand_alone(typing_context: Any) -> Any:
    """As a statement of a function: LLVM shall call it, not make copies of it."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), lower
