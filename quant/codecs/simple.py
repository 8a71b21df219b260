"""Blocks of 32 with one scale: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 and the activation format Q8_1.

Layouts: `block_q4_0` … `block_q8_1` of ggml-common.h; values: `dequantize_row_*` of ggml-quants.c. Nibbles are split:
byte j holds element j in its low nibble and element j + 16 in its high one. qh is read as one u32 (bit e belongs to
element e), hence its dtype.
"""

from __future__ import annotations

from ggferry.quant.blocks import Array, Parts, affine, decoder, floats, planes
from ggferry.quant.codec import SUBNORMAL_SCALE, Accuracy, Bound, Codec
from ggferry.quant.compiled_decoders import compiled
from ggferry.quant.kernels import Encoder
from ggferry.quant.types import table
from ggferry.support.heavy import np

TYPES = table(
    """
    Q4_0 2 32 d:f2           qs:u1*16
    Q4_1 3 32 d:f2 m:f2      qs:u1*16
    Q5_0 6 32 d:f2      qh:u4 qs:u1*16
    Q5_1 7 32 d:f2 m:f2 qh:u4 qs:u1*16
    Q8_0 8 32 d:f2           qs:i1*32
    Q8_1 9 32 d:f2 s:f2      qs:i1*32
    """
)


def nibbles(parts: Parts) -> Array:
    """Return uint8 `(…, 2, n)` of split nibbles `qs` `(…, n)`: the low ones, then the high ones."""
    return planes(parts["qs"], 4)


def nibbles_less_8(parts: Parts) -> Array:
    signed = nibbles(parts).view(np.int8)
    signed -= 8
    return signed


def five_bits(parts: Parts) -> Array:
    """Return uint8: nibbles, with bit e of qh as the fifth bit of element e."""
    out = nibbles(parts)
    bits = np.unpackbits(np.frombuffer(parts["qh"].tobytes(), np.uint8), bitorder="little")
    bits.view(np.uint64)[...] <<= 4
    out |= bits.reshape(out.shape)
    return out


def five_bits_less_16(parts: Parts) -> Array:
    signed = five_bits(parts).view(np.int8)
    signed -= 16
    return signed


def bytes_as_they_are(parts: Parts) -> Array:
    return parts["qs"]


UNPACK = {
    "Q4_0": affine(nibbles_less_8, floats("d")),
    "Q4_1": affine(nibbles, floats("d", "m")),
    "Q5_0": affine(five_bits_less_16, floats("d")),
    "Q5_1": affine(five_bits, floats("d", "m")),
    "Q8_0": affine(bytes_as_they_are, floats("d")),
    "Q8_1": affine(bytes_as_they_are, floats("d")),
}


KERNELS = "ggferry.quant.kernels.simple"
ENCODE = {
    "Q4_0": Encoder(KERNELS, "encode_q4_0"),
    "Q4_1": Encoder(KERNELS, "encode_q4_1"),
    "Q5_0": Encoder(KERNELS, "encode_q5_0"),
    "Q5_1": Encoder(KERNELS, "encode_q5_1"),
    "Q8_0": Encoder(KERNELS, "encode_q8_0"),
}

FILE_TYPE = {"Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9}
ACCURACY = {
    "Q4_0": Accuracy((0.0857, 0.1300), 0.50, 0.35),
    "Q4_1": Accuracy((0.0781, 0.1010), 0.50, 0.35),
    "Q5_0": Accuracy((0.0426, 0.0670), 0.30, 0.20),
    "Q5_1": Accuracy((0.0379, 0.0483), 0.30, 0.20),
    # Half a step, and the scale's own rounding to float16 times the largest level.
    "Q8_0": Accuracy((0.00534, 0.00841), 0.25, 0.05, bound=Bound(of_block=0.5 / 127 + 2.0**-11, least=SUBNORMAL_SCALE)),
    "Q8_1": Accuracy(),
}

SEARCHED = {"Q4_0": Encoder("ggferry.quant.kernels.searched_simple", "encode_q4_0")}
DECODE = {name: decoder(kind, UNPACK[name]) for name, kind in TYPES.items()}

CODECS = tuple(
    Codec(
        kind, DECODE[name], ENCODE.get(name), accuracy=ACCURACY[name], file_type=FILE_TYPE.get(name),
        compiled=compiled(kind, DECODE[name], "decode_simple"), searched=SEARCHED.get(name),
    )
    for name, kind in TYPES.items()
)
