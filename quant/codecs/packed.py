"""Packed integers, as GPTQ, MLX and compressed-tensors store them: the first in the lowest bits.

Sources: GPTQModel `nn_modules/qlinear/__init__.py` (`dequantize_weight`), compressed-tensors
`compressors/pack_quantized` (`pack_to_int32`: signed values are stored with an offset of 2^(bits − 1)).
"""

from __future__ import annotations

import math
from typing import Any

from ggferry.quant.kernels import Compiled
from ggferry.quant.types import BlockError
from ggferry.support.heavy import np

Array = Any
WORD_BITS = 32
STREAM = Compiled("ggferry.quant.kernels.decode_small", "unpack_stream", "UNPACK")


def unpack(words: Array, bits: int) -> Array:
    """Unpack uint32 `(rows, n)` to uint8 `(rows, n × (32 // bits))`. Raises BlockError unless 1 ≤ bits ≤ 8.

    Where `bits` does not divide 32, the upper bits of each word are padding.
    """
    if not 1 <= bits <= 8:
        raise BlockError(f"{bits} bits packed into words; 1 to 8 are known")
    shifts = np.arange(WORD_BITS // bits, dtype=np.uint32) * np.uint32(bits)
    out = words[..., None] >> shifts & np.uint32((1 << bits) - 1)
    return out.astype(np.uint8).reshape(*words.shape[:-1], -1)


def unit(bits: int) -> tuple[int, int]:
    """Return (values, words) of the shortest run of values that fills whole words."""
    words = math.lcm(bits, WORD_BITS) // WORD_BITS
    return words * WORD_BITS // bits, words


def unpack_down(words: Array, bits: int) -> Array:
    """Unpack uint32 `(n, columns)` to uint8 `(n × (32 // bits), columns)`: packed along the first axis."""
    shifts = np.arange(WORD_BITS // bits, dtype=np.uint32)[:, None] * np.uint32(bits)
    out = words[:, None, :] >> shifts & np.uint32((1 << bits) - 1)
    return out.astype(np.uint8).reshape(-1, words.shape[1])


def unpack_stream(packed: Array, bits: int, count: int) -> Array:
    """Unpack uint8 `(rows, bytes)` to uint8 `(rows, count)`: values of `bits` ≤ 8 bits, the first in the lowest bits.

    The values follow each other across the borders of bytes and words (GPTQ's 3 bits, MLX).
    """
    run = STREAM.after(len(packed) * count)
    if run is not None and bits * count <= 8 * packed.shape[1]:
        out = np.empty((len(packed), count), np.uint8)
        run(np.ascontiguousarray(packed), out, bits)
        return out
    flat = np.unpackbits(packed, axis=1, count=count * bits, bitorder="little")
    found: Array = np.packbits(flat.reshape(len(packed), count, bits), axis=2, bitorder="little")[..., 0]
    return found


def gptq_zeros(stored: Array, bits: int, first_version: bool) -> Array:
    """Return the zero points that are meant, as int16.

    Version 1 of the format stores each of them less one. A zero of 0 is then stored as all ones, so the sum is taken
    modulo 2^bits.
    """
    zeros = stored.astype(np.int16)
    return (zeros + 1) & ((1 << bits) - 1) if first_version else zeros
