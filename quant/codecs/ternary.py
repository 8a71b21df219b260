"""Ternary types of 256: TQ1_0 and TQ2_0, values −d, 0, d (TQ2_0 can also express 2d).

Layouts: `block_tq1_0`, `block_tq2_0` of ggml-common.h; values: `dequantize_row_tq1_0`, `_tq2_0` of ggml-quants.c.
"""

from __future__ import annotations

from functools import cache

from ggferry.quant.blocks import Array, Parts, affine, decoder, floats, planes, translate
from ggferry.quant.codec import Accuracy, Codec
from ggferry.quant.compiled_decoders import compiled
from ggferry.quant.kernels import Encoder
from ggferry.quant.types import table
from ggferry.support.heavy import np

TYPES = table(
    """
    TQ1_0 34 256 qs:u1*48 qh:u1*4 d:f2
    TQ2_0 35 256 qs:u1*64 d:f2
    """
)


@cache
def _digit_levels() -> bytes:
    """Return the level by byte: the first base-3 digit of the fraction byte / 256, less one (−1, 0 or 1)."""
    return bytes(((byte * 3 >> 8) - 1) & 255 for byte in range(256))


def _tq1_levels(parts: Parts) -> Array:
    """Return the levels: a byte is a base-3 fraction of five digits in qs, four in qh.

    Multiplying by 3^n (mod 256) brings digit n to the front. 32 bytes of qs, 16 bytes of qs and the 4 of qh each give
    all their first digits, then all their second ones, and so on.
    """
    runs = ((parts["qs"][..., :32], 5), (parts["qs"][..., 32:], 5), (parts["qh"], 4))
    digits = [_powers(packed, count) for packed, count in runs]
    return translate(np.concatenate(digits, axis=-1), _digit_levels())


def _powers(packed: Array, count: int) -> Array:
    """Return uint8 `(…, count · n)` of `(…, n)`: times 1, 3, 9, …, modulo 256."""
    powers = (3 ** np.arange(count, dtype=np.uint8))[:, None]
    return (packed[..., None, :] * powers).reshape(*packed.shape[:-1], count * packed.shape[-1])


def _tq2_levels(parts: Parts) -> Array:
    qs = parts["qs"]
    levels = planes(qs.reshape(*qs.shape[:-1], 2, 32), 2).view(np.int8)
    levels -= 1
    return levels


UNPACK = {"TQ1_0": affine(_tq1_levels, floats("d")), "TQ2_0": affine(_tq2_levels, floats("d"))}

KERNELS = "ggferry.quant.kernels.ternary"

FILE_TYPE = {"TQ1_0": 36, "TQ2_0": 37}
ACCURACY = Accuracy((0.0, 0.0005))
"""For models trained to have these levels: only the rounding of the scale to float16."""

DECODE = {name: decoder(kind, UNPACK[name]) for name, kind in TYPES.items()}

CODECS = tuple(
    Codec(
        kind, DECODE[name], Encoder(KERNELS, f"encode_{name.lower()}"),
        accuracy=ACCURACY, file_type=FILE_TYPE[name], compiled=compiled(kind, DECODE[name], "decode_small"),
    )
    for name, kind in TYPES.items()
)
