"""What all kernels share: how they are compiled, ggml's roundings, and the way from a tensor's rows to a kernel.

Lanes are *blocks* wherever a search runs: lane k works on block k of a batch, and within a lane every operation is the
reference's, in its order. That is why the bytes are equal. numba neither reorders nor contracts floating point here
(`fastmath` is off, and LLVM fuses a multiplication with an addition only when told to).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import llvmlite.binding as llvm
import numba as nb
import numpy as np
from numba.core import types

from ggferry.quant.blocks import ValueRefused, check_values, refuse_nonfinite
from ggferry.quant.kernels.kernel_cache import kernel as kernel
from ggferry.quant.kernels.lanes import (
    Lanes,
    as_ints,
    highest,
    loader,
    maximum,
    minimum,
    pointer,
    rooms,
    scalar_bits,
    scalar_float,
    skip,
    spreader,
    stand_alone,
    to_floats,
    transpose,
)
from ggferry.quant.types import BlockError, BlockType

if TYPE_CHECKING:
    from ggferry.quant.types import Bytes, Floats

F = np.float32
I = np.int32  # noqa: E741

_features = nb.config.CPU_FEATURES
LANES = 64 if "+avx512f" in (llvm.get_host_cpu_features().flatten() if _features is None else _features) else 16
"""Blocks searched at once: four of AVX-512's 32 registers, two of AVX2's 16, four of NEON's 32. The additions of one
hide the latency of another's. The bytes do not depend on it."""

_batch, _half = Lanes(types.float32, LANES), Lanes(types.float32, 16)
load, spread = loader(types.float32, _batch), spreader(LANES)
load16, spread16 = loader(types.float32, _half), spreader(16)

scratch, numbers = rooms(types.float32, LANES), rooms(types.int64, LANES)
"""`scratch(n)`, `numbers(n)`: room on the stack for n float32 or int64 a lane, as `[n][lane]`."""

_PART = {"nogil": True, "error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
inline = nb.njit(forceinline=True, **_PART)
"""Part of a kernel, one with its caller: constants among the arguments become constants of the code."""
shared = nb.njit(forceinline=False, **_PART)  # stated, because numba passes the flag from caller to callee
"""Part of a kernel that is compiled once however often it is called; begins with `stand_alone()`."""


MAGIC = F(12582912.0)
"""1.5 · 2²³: adding it leaves the integer nearest to the summand, half to even, in the low mantissa bits."""


@inline
def nearest(v):
    """`nearest_int` of ggml-quants.c, of lanes: also its bits for anything out of range or NaN."""
    return (as_ints(v + MAGIC) & 0x7FFFFF) - 0x400000


@inline
def nearest_int(v):
    """`nearest` of one float32."""
    return (scalar_bits(v + MAGIC) & I(0x7FFFFF)) - I(0x400000)


@inline
def levels(v, lowest, highest):
    """`nearest` brought into [lowest, highest], as int32 lanes."""
    return maximum(minimum(nearest(v), highest), lowest)


@inline
def level_floats(v, lowest, highest):
    return to_floats(levels(v, lowest, highest))


@inline
def half_bits(v):
    """The bits of the float16 nearest to a float32, half to even (`GGML_FP32_TO_FP16`)."""
    b = np.int64(scalar_bits(v))
    sign, b = b >> 16 & 0x8000, b & 0x7FFFFFFF
    if b < 0x38800000:  # below 2⁻¹⁴ the step is 2⁻²⁴, the last bit of 0.5
        return sign | np.int64(scalar_bits(scalar_float(I(b)) + F(0.5))) - 0x3F000000
    if b > 0x7F800000:
        return sign | 0x7E00
    return sign | min(b - 0x38000000 + 0xFFF + (b >> 13 & 1) >> 13, 0x7C00)


@inline
def half_value(h):
    """The float32 of the bits of a float16 (`GGML_FP16_TO_FP32`)."""
    magnitude = h & 0x7FFF
    if magnitude < 0x400:
        v = F(magnitude) * F(2.0**-24)
    elif magnitude < 0x7C00:
        v = scalar_float(I((magnitude << 13) + 0x38000000))
    else:
        v = scalar_float(I((magnitude << 13) + 0x70000000))
    return -v if h & 0x8000 else v


@inline
def put_half(out, at, h):
    out[at] = h & 255
    out[at + 1] = h >> 8 & 255


@shared
def _transpose(source, start, steps, target, at, widths):
    stand_alone()
    transpose(source, start, steps, target, at, widths)


# In what follows every number is an np.int64: numba compiles a function anew for each set of literal arguments.


@inline
def take(source, at, x, count, stride):
    """Transpose: `LANES` runs of `count` elements, a multiple of 16, `stride` apart, into `x[element][lane]`."""
    for k in range(0, LANES, 16):
        for e in range(0, count, 16):
            start, target = np.int64(at + k * stride + e), np.int64(e * LANES + k)
            _transpose(pointer(source), start, np.int64(stride), x, target, np.int64(LANES))


@inline
def give(x, target, at):
    """The way back of `take` for runs of 16 that follow one another."""
    for k in range(0, LANES, 16):
        _transpose(x, np.int64(k), np.int64(LANES), target, np.int64(at + 16 * k), np.int64(16))


@inline
def take_at(source, offsets, x):
    """Transpose: the 16 elements from each of `LANES` offsets on, into `x[element][lane]`."""
    for k in range(0, LANES, 16):
        _transpose(pointer(source), np.int64(0), skip(offsets, k), x, np.int64(k), np.int64(LANES))


@inline
def give_at(x, target, offsets):
    """The way back of `take_at`."""
    for k in range(0, LANES, 16):
        _transpose(x, np.int64(k), np.int64(LANES), target, np.int64(0), skip(offsets, k))


@kernel
def all_finite(values, start, stop):
    """Whether float32 `values[start:stop]`, a multiple of 16 of them, holds neither NaN nor infinity."""
    worst = as_ints(spread16(F(0)))
    for i in range(start, stop, 16):
        worst = maximum(worst, as_ints(load16(values, i)) & 0x7FFFFFFF)
    return highest(worst) < 0x7F800000


def encode_rows(kind: BlockType, run: Callable[..., bool], values: Floats, *, batch: int = 1, **given: Any) -> Bytes:
    """Encode float32 `(R, columns)` to uint8 `(R, row bytes)`.

    `run(values, out, first, **given)` encodes flat runs of blocks, a multiple of `batch` of them, the first of which is
    number `first` of the tensor; it returns False when it meets a NaN or an infinity. The rest of the last batch is
    filled with zeros here. Raises ValueRefused for such values, and when a block needs a scale beyond float16;
    llama-quantize refuses both.
    """
    check_values(kind, values)
    rows, columns = values.shape
    if "weights" in given:
        given["weights"] = importance(kind, given["weights"], columns)
    flat = np.require(values, requirements="CAW").reshape(-1)  # numba compiles for each kind of array anew
    out = np.empty((rows, kind.row_bytes(columns)), np.uint8)
    packed = out.reshape(-1)
    blocks = flat.size // kind.elements
    whole = blocks - blocks % batch
    done = run(flat[: whole * kind.elements], packed[: whole * kind.block_bytes], 0, **given)
    if done and blocks > whole:
        tail, tail_out = np.zeros(batch * kind.elements, F), np.empty(batch * kind.block_bytes, np.uint8)
        tail[: (blocks - whole) * kind.elements] = flat[whole * kind.elements :]
        done = run(tail, tail_out, whole, **given)
        packed[whole * kind.block_bytes :] = tail_out[: (blocks - whole) * kind.block_bytes]
    if not done:
        refuse_nonfinite(kind, values)
    _refuse_endless_scales(kind, values, packed.reshape(blocks, kind.block_bytes))
    return out


def importance(kind: BlockType, weights: Floats, columns: int) -> Floats:
    """Return the importance of a tensor's columns as kernels take it. Raises BlockError for what no model can yield."""
    if weights.shape != (columns,) or weights.dtype != np.float32:
        raise BlockError(
            f"importance of {columns} columns is float32 ({columns},), not {weights.dtype} {weights.shape}"
        )
    if not (np.isfinite(weights) & (weights >= 0)).all():
        column = int(np.argmin(np.isfinite(weights) & (weights >= 0)))
        raise BlockError(f"importance of column {column} is {weights[column]}: {kind.name} needs a mean of squares")
    return np.require(weights, requirements="CAW")


def _refuse_endless_scales(kind: BlockType, values: Floats, packed: Bytes) -> None:
    at = 0
    for field in kind.fields:
        if field.dtype == "f2":
            endless = packed[:, at + 1] & 0x7C == 0x7C
            if endless.any():
                first = int(endless.argmax()) * kind.elements
                column = first + int(np.abs(values.reshape(-1)[first : first + kind.elements]).argmax())
                row, column = divmod(column, values.shape[1])
                why = f"{values[row, column]!s} needs a {kind.name} scale beyond float16"
                raise ValueRefused(row, column, why)
        at += field.nbytes


def in_threads(
    encode: Callable[[Floats, Floats | None], Bytes], values: Floats, weights: Floats | None, threads: int
) -> Bytes:
    """Return `encode(values, weights)`, computed in `threads` threads, each with a run of whole rows.

    The bytes are the same for any number of threads.
    """
    bounds = [len(values) * i // threads for i in range(threads + 1)]
    runs = [values[a:b] for a, b in pairwise(bounds) if a < b]
    with ThreadPoolExecutor(threads) as pool:
        return np.concatenate(list(pool.map(lambda run: encode(run, weights), runs)))
