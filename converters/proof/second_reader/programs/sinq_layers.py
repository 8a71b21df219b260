"""SINQ: levels of groups, a scale for each group and one for each column, 8 bits or plain.

Source: sinq 0.2.0 `quantizer.py`, `Quantizer.dequantize` and `dq8`.
"""

from __future__ import annotations

import numpy as np
from stored_parts import Array, Named, Settings, cover

_BITS = {"8bit_u8": 8, "4bit_u8": 4, "2bit_u8": 2, "1bit_u8": 1, "3bit_32": 3, "5bit_32": 5, "6bit_32": 6}
_NF4 = """
-1.0 -0.6961928009986877 -0.5250730514526367 -0.39491748809814453 -0.28444138169288635 -0.18477343022823334
-0.09105003625154495 0.0 0.07958029955625534 0.16093020141124725 0.24611230194568634 0.33791524171829224
0.44070982933044434 0.5626170039176941 0.7229568362236023 1.0
"""
_NF3 = "-1.0 -0.5350227355957031 -0.2469314038753510 0.0 0.1833375245332718 0.3819939494132996 0.6229856610298157 1.0"


def sinq(read: Named, settings: Settings, name: str, r: Array, c: Array) -> Array:
    base = name.removesuffix(".weight")
    own, columns = settings["layers"][base], settings["shapes"][name][-1]
    bits, (stored, width) = _BITS[own["packing"]], read.shape(f"{base}.W_q")
    tile = r[:, None] * (columns // width) + c[None, :] // width
    packed = np.ascontiguousarray(read(f"{base}.W_q", cover(tile % stored)))
    packed = packed.view(np.uint8 if packed.dtype.itemsize == 1 else np.uint32)
    codes = packed[tile % stored - (tile % stored).min(), np.broadcast_to(c % width, tile.shape)]
    top = 8 if packed.dtype.itemsize == 1 else 32 // bits * bits
    codes = codes >> (top - bits * (tile // stored + 1)).astype(codes.dtype) & ((1 << bits) - 1)
    meta = f"{base}.meta." if f"{base}.meta.scale2" in read else f"{base}."  # as modules of a pickle are named
    second = np.asarray(read(f"{meta}scale2"))
    square = r[:, None] // width * (columns // width) + c[None, :] // width
    group = square * width + r[:, None] % width if second.ndim == 3 else tile
    by_column = second[square, 0, c % width] if second.ndim == 3 else second[0, c][None, :]
    scales, zeros = (_numbers(read, f"{meta}{end}") for end in ("scale", "zero"))
    scale, zero = scales[group], zeros[group] if len(zeros) > 1 else zeros
    method = own["method"].lower()
    if "nf4" in method or "nf3" in method:
        table = np.array((_NF4 if "nf4" in method else _NF3).split(), np.float32).astype(scales.dtype)
        return ((table[codes] - zero) * scale * by_column).astype(np.float32)
    values = codes.astype(np.float32) - zero.astype(np.float32)
    return values * scale.astype(np.float32) * by_column.astype(np.float32)


def _numbers(read: Named, name: str) -> Array:
    if name in read:
        return np.asarray(read(name)).reshape(-1)
    codes, step, least = (np.asarray(read(f"{name}.{end}")) for end in "xsm")
    return (codes.astype(step.dtype) * step + least).reshape(-1)
