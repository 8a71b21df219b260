"""One and two bits an element with one float16 scale: Q1_0 (−d, d) and Q2_0 (−d, 0, d, 2d).

Layouts: `block_q1_0`, `block_q2_0` of ggml-common.h; elements follow each other from the lowest bits of byte 0 up.
"""

from __future__ import annotations

from ggferry.quant.blocks import Array, Parts, affine, decoder, floats
from ggferry.quant.codec import Accuracy, Codec
from ggferry.quant.compiled_decoders import compiled
from ggferry.quant.kernels import Encoder
from ggferry.quant.types import table
from ggferry.support.heavy import np

TYPES = table(
    """
    Q1_0 41 128 d:f2 qs:u1*16
    Q2_0 42 64  d:f2 qs:u1*16
    """
)


def _one_bit(parts: Parts) -> Array:
    """Return int8: −1 for a clear bit, 1 for a set one."""
    bits = np.unpackbits(np.frombuffer(parts["qs"].tobytes(), np.uint8), bitorder="little").view(np.int8)
    bits += bits
    bits -= 1
    return bits


def _two_bits(parts: Parts) -> Array:
    """Return int8 in −1 … 2; element 4j + k has bits 2k and 2k + 1 of byte j."""
    qs = parts["qs"]
    levels = np.empty((*qs.shape, 4), np.uint8)
    for place in range(4):
        np.right_shift(qs, 2 * place, out=levels[..., place])
    levels &= 3
    signed = levels.view(np.int8)
    signed -= 1
    return signed


UNPACK = {"Q1_0": affine(_one_bit, floats("d")), "Q2_0": affine(_two_bits, floats("d"))}

KERNELS = "ggferry.quant.kernels.onebit"

FILE_TYPE = {"Q1_0": 40, "Q2_0": 41}
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
