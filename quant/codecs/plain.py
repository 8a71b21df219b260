"""One number for each element: F32, F16, BF16, F64 and the integers of GGUF.

Rounding is to nearest, ties to even, as in ggml's `ggml_compute_fp32_to_fp16` and `ggml_compute_fp32_to_bf16`. Encoders
raise ValueRefused for NaN, infinity, and a finite value that would become infinite.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ggferry.quant.blocks import Array, Parts, ValueRefused, check_rows, check_values, decoder, refuse_nonfinite
from ggferry.quant.codec import Accuracy, Bound, Codec
from ggferry.quant.compiled_decoders import compiled
from ggferry.quant.kernels import Compiled
from ggferry.quant.types import BlockType, table
from ggferry.support.heavy import np

if TYPE_CHECKING:
    from ggferry.quant.types import Bytes, Floats

TYPES = table(
    """
    F32  0  1 x:f4
    F16  1  1 x:f2
    I8   24 1 x:i1
    I16  25 1 x:i2
    I32  26 1 x:i4
    I64  27 1 x:i8
    F64  28 1 x:f8
    BF16 30 1 x:bf16
    """,
    quantized=False,
)

Encode = Callable[["Floats", "Floats | None"], "Bytes"]

_STEP = 1 << 15
"""Values encoded at a time: five scratch arrays of that size fit into the second-level cache."""


def _convert(parts: Parts, out: Array) -> None:
    np.copyto(out, parts["x"], casting="unsafe")


def _widen_f16(parts: Parts, out: Array) -> None:
    """Convert float16 to float32 by a shift and an exact product.

    The 15 lower bits move to their place in a float32, and the product corrects the difference of the exponents'
    biases, 127 − 15; subnormals come out right as well. Infinity and NaN do not, so tiles with them are converted in
    the usual way.
    """
    bits = parts["x"].view("<i2")
    words = np.left_shift(bits, 13, out=out.view(np.int32), dtype=np.int32)
    words &= np.int32(-0x70000001)
    out *= np.float32(2.0**112)
    if ((bits & 0x7C00) == 0x7C00).any():
        _convert(parts, out)


def _widen_bf16(parts: Parts, out: Array) -> None:
    np.left_shift(parts["x"], 16, out=out.view(np.uint32), dtype=np.uint32)


def _round_f16(values: Array, limit: float = 65520.0) -> Array:
    """Return the float16 bits, as uint16, of float32 `(n,)` whose magnitudes are below `limit`.

    From the default limit on, float16 rounds to infinity. Adding 2^(e+13), where e is the exponent or −14 below
    float16's normal range, rounds to a multiple of 2^(e−10) in the adder: exactly float16's step there.
    """
    size = np.abs(values)
    magic = np.maximum(size.view(np.uint32) & 0x7F800000, 113 << 23, dtype=np.uint32)
    magic += 13 << 23
    size += magic.view(np.float32)
    steps = size.view(np.uint32)
    steps -= magic
    magic >>= 13
    magic -= 126 << 10
    steps += magic
    steps |= values.view(np.uint32) >> 16 & 0x8000
    return steps


def _round_bf16(values: Array) -> Array:
    words = values.view(np.uint32)
    odd = words >> 16
    odd &= 1
    odd += 0x7FFF
    odd += words
    odd >>= 16
    return odd


def _encode_rounded(
    values: Floats, weights: Floats | None = None, *, kind: BlockType, limit: float, rounded: Callable[[Array], Array]
) -> Bytes:
    """Encode by `rounded`; `limit` is the least magnitude that rounds to infinity."""
    check_values(kind, values)
    out = np.empty(values.shape, "<u2")
    flat, target = np.ascontiguousarray(values).reshape(-1), out.reshape(-1)
    run = NARROW[kind.name].after(flat.size)
    if run is not None and run(flat, target.view(np.uint8), 0):
        return out.view(np.uint8)
    for start in range(0, flat.size, _STEP):
        step = flat[start : start + _STEP]
        if not (step.max() < limit and step.min() > -limit):
            refuse_nonfinite(kind, values)
            _refuse_large(kind, values, limit)
        np.copyto(target[start : start + _STEP], rounded(step), casting="unsafe")
    return out.view(np.uint8)


def _refuse_large(kind: BlockType, values: Floats, limit: float) -> None:
    row, column = np.argwhere(np.abs(values) >= limit)[0].tolist()
    raise ValueRefused(row, column, f"{values[row, column]!s} is beyond the range of {kind.name}")


def _decode_f32(rows: Bytes, columns: int) -> Floats:
    check_rows(TYPES["F32"], rows, columns)
    values: Floats = np.ascontiguousarray(rows).view("<f4").astype(np.float32)
    return values


def _encode_f32(values: Floats, weights: Floats | None = None) -> Bytes:
    check_values(TYPES["F32"], values)
    refuse_nonfinite(TYPES["F32"], values)
    copy: Any = values.astype("<f4", order="C")
    rows: Bytes = copy.view(np.uint8)
    return rows


def _narrows(name: str) -> Compiled:
    """Return the compiled rounding to a type, for values that do not round to infinity."""

    def agrees(run: Callable[[Floats, Bytes, int], bool]) -> bool:
        values: Any = np.random.default_rng(0).integers(0, 1 << 32, 4099, np.uint32).view(np.float32)
        values = values[np.abs(values) < 65504]
        found = np.empty((values.size, 2), np.uint8)
        expected = (_round_f16 if name == "F16" else _round_bf16)(values).astype("<u2")
        return run(values, found.reshape(-1), 0) and found.tobytes() == expected.tobytes()

    return Compiled("ggferry.quant.kernels.decode_plain", f"narrow_{name.lower()}", "NARROW", agrees)


NARROW = {name: _narrows(name) for name in ("F16", "BF16")}

UNPACK = {"F16": _widen_f16, "BF16": _widen_bf16}

DECODE = {name: decoder(kind, UNPACK.get(name, _convert)) for name, kind in TYPES.items()} | {"F32": _decode_f32}

ENCODE: dict[str, Encode] = {
    "F32": _encode_f32,
    "F16": partial(_encode_rounded, kind=TYPES["F16"], limit=65520.0, rounded=_round_f16),
    # midway between the largest bfloat16, 0x7F7F, and infinity
    "BF16": partial(_encode_rounded, kind=TYPES["BF16"], limit=float.fromhex("0x1.ffp127"), rounded=_round_bf16),
}

FILE_TYPE = {"F32": 0, "F16": 1, "BF16": 32}
ACCURACY = {
    "F32": Accuracy(bound=Bound()),
    # Half a unit in the last place of 11 and of 8 bits, and half the smallest subnormal.
    "F16": Accuracy((0.000207, 0.000209), bound=Bound(of_value=2.0**-11, least=2.0**-25)),
    "BF16": Accuracy((0.00165, 0.00167), bound=Bound(of_value=2.0**-8, least=2.0**-134)),
}

COMPILED = {name: compiled(TYPES[name], DECODE[name], "decode_plain") for name in ("F16", "BF16")}
"""The others are one conversion of numpy's, which is compiled already."""

CODECS = tuple(
    Codec(
        kind, DECODE[name], ENCODE.get(name), accuracy=ACCURACY.get(name, Accuracy()), file_type=FILE_TYPE.get(name),
        compiled=COMPILED.get(name), rounding=NARROW.get(name),
    )
    for name, kind in TYPES.items()
)
