"""Super-blocks of 256: Q2_K … Q6_K and the activation format Q8_K.

Layouts: `block_q2_K` … `block_q8_K` of ggml-common.h; values: `dequantize_row_*` of ggml-quants.c, whose products are
computed left to right: (d · scale) · level. The d of Q8_K is float32.
"""

from __future__ import annotations

from ggferry.quant.blocks import Array, Parts, affine, decoder, floats, planes
from ggferry.quant.codec import Accuracy, Codec
from ggferry.quant.compiled_decoders import compiled
from ggferry.quant.kernels import Encoder
from ggferry.quant.types import table
from ggferry.support.heavy import np

TYPES = table(
    """
    Q2_K 10 256 scales:u1*16 qs:u1*64 d:f2 dmin:f2
    Q3_K 11 256 hmask:u1*32 qs:u1*64 scales:u1*12 d:f2
    Q4_K 12 256 d:f2 dmin:f2 scales:u1*12 qs:u1*128
    Q5_K 13 256 d:f2 dmin:f2 scales:u1*12 qh:u1*32 qs:u1*128
    Q6_K 14 256 ql:u1*128 qh:u1*64 scales:i1*16 d:f2
    Q8_K 15 256 d:f4 qs:i1*256 bsums:i2*16
    """
)


def _split(array: Array, groups: int) -> Array:
    """Reshape `(…, n)` to `(…, groups, n / groups)`."""
    return array.reshape(*array.shape[:-1], groups, array.shape[-1] // groups)


def two_bits(parts: Parts) -> Array:
    """Return uint8 `(…, 2, 4, 32)`: a 32-byte half holds 128 elements, 32 neighbors share a bit position."""
    return planes(_split(parts["qs"], 2), 2)


def nibbles_by_64(parts: Parts) -> Array:
    """Return uint8 `(…, 4, 2, 32)`: every 32 bytes hold 32 elements in low nibbles and the next 32 in high ones."""
    return planes(_split(parts["qs"], 4), 4)


def _with(low: Array, high: Array) -> Array:
    """Return `low` with the bits of `high` added."""
    low |= high.reshape(low.shape)
    return low


def _signed(levels: Array, zero: int) -> Array:
    signed = levels.view(np.int8)
    signed -= zero
    return signed


def q3_levels(parts: Parts) -> Array:
    """Return int8 in −4 … 3: hmask holds bit 2, plane by plane; ggml subtracts 4 where it is clear."""
    return _signed(_with(two_bits(parts), planes(parts["hmask"], 1, at=2)), 4)


def q5_levels(parts: Parts) -> Array:
    """Return uint8 in 0 … 31: plane k of qh is bit 4 of the k-th 32 elements."""
    return _with(nibbles_by_64(parts), planes(parts["qh"], 1, at=4))


def q6_levels(parts: Parts) -> Array:
    """Return int8 in −32 … 31: ql holds 128 elements in 64 bytes, qh their upper two bits in 32 bytes."""
    return _signed(_with(planes(_split(parts["ql"], 2), 4), planes(_split(parts["qh"], 2), 2, at=4)), 32)


def q2_coefficients(parts: Parts) -> tuple[Array, Array]:
    d, dmin = parts["d"].astype(np.float32), parts["dmin"].astype(np.float32)
    return d * (parts["scales"] & 15), -dmin * (parts["scales"] >> 4)


def q3_coefficients(parts: Parts) -> tuple[Array]:
    """Return the scales, which have six bits in twelve bytes.

    Bytes 0–7 hold the low nibbles of scales 0–7 and, above them, those of 8–15; bytes 8–11 hold bits 4 and 5, four
    scales in each bit pair.
    """
    low, high = _words(parts["scales"][..., :8]), _words(parts["scales"][..., 8:])
    scales = np.empty((*low.shape[:-1], 4), np.uint32)
    for four in range(4):
        np.bitwise_or(
            low[..., four % 2] >> four // 2 * 4 & 0x0F0F0F0F,
            (high[..., 0] >> 2 * four & 0x03030303) << 4,
            out=scales[..., four],
        )
    return (parts["d"].astype(np.float32) * _signed(scales.view(np.uint8), 32),)


def q4_coefficients(parts: Parts) -> tuple[Array, Array]:
    """Return scales and minima as `get_scale_min_k4` does.

    Bytes 0–3 and 4–7 hold the first four scales and minima in six bits and, above them, the upper two bits of the last
    four, whose lower nibbles share bytes 8–11.
    """
    words = _words(parts["scales"])
    six = np.empty((*words.shape[:-1], 2, 2), np.uint32)  # (scales, mins) × (first four, last four)
    for kind in range(2):
        np.bitwise_and(words[..., kind], 0x3F3F3F3F, out=six[..., kind, 0])
        lower = words[..., 2] >> 4 * kind & 0x0F0F0F0F
        np.bitwise_or(lower, (words[..., kind] >> 6 & 0x03030303) << 4, out=six[..., kind, 1])
    scales = six.view(np.uint8)
    d, dmin = parts["d"].astype(np.float32), parts["dmin"].astype(np.float32)
    return d * scales[..., 0, :], -dmin * scales[..., 1, :]


def _words(packed: Array) -> Array:
    """Return bytes four at a time as uint32, so that one operation serves four scales."""
    return np.ascontiguousarray(packed).view("<u4")


def q6_coefficients(parts: Parts) -> tuple[Array]:
    return (parts["d"].astype(np.float32) * parts["scales"],)


def _bytes(parts: Parts) -> Array:
    return parts["qs"]


UNPACK = {
    "Q2_K": affine(two_bits, q2_coefficients),
    "Q3_K": affine(q3_levels, q3_coefficients),
    "Q4_K": affine(nibbles_by_64, q4_coefficients),
    "Q5_K": affine(q5_levels, q4_coefficients),
    "Q6_K": affine(q6_levels, q6_coefficients),
    "Q8_K": affine(_bytes, floats("d")),
}

ENCODE = {
    "Q2_K": Encoder("ggferry.quant.kernels.kquants_affine", "encode_q2_k"),
    "Q3_K": Encoder("ggferry.quant.kernels.kquants_symmetric", "encode_q3_k"),
    "Q4_K": Encoder("ggferry.quant.kernels.kquants_affine", "encode_q4_k"),
    "Q5_K": Encoder("ggferry.quant.kernels.kquants_affine", "encode_q5_k"),
    "Q6_K": Encoder("ggferry.quant.kernels.kquants_symmetric", "encode_q6_k"),
}

SEARCHED = {
    name: Encoder("ggferry.quant.kernels.searched_kquants", f"encode_{name.lower()}")
    for name in ("Q2_K", "Q4_K")
}

FILE_TYPE = {"Q2_K": 10, "Q6_K": 18}  # the others have one for each of several recipes
ACCURACY = {
    "Q2_K": Accuracy((0.2950, 0.3520), 0.95, 0.75),
    "Q3_K": Accuracy((0.1510, 0.1960), 0.60, 0.45),
    "Q4_K": Accuracy((0.0712, 0.0989), 0.50, 0.35),
    "Q5_K": Accuracy((0.0361, 0.0487), 0.30, 0.20),
    "Q6_K": Accuracy((0.0177, 0.0276), 0.30, 0.20),
    "Q8_K": Accuracy(),
}

DECODE = {name: decoder(kind, UNPACK[name]) for name, kind in TYPES.items()}

CODECS = tuple(
    Codec(
        kind, DECODE[name], ENCODE.get(name), searches=name in ENCODE, accuracy=ACCURACY[name],
        file_type=FILE_TYPE.get(name), compiled=compiled(kind, DECODE[name], "decode_kquants"),
        searched=SEARCHED.get(name),
    )
    for name, kind in TYPES.items()
)
