"""A block type of another distribution: 32 signed bytes and their scale, a float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ggferry.quant.blocks import Array, Parts, affine, by_block, check_values, decoder, floats, refuse_nonfinite
from ggferry.quant.codec import Accuracy, Bound, Codec
from ggferry.quant.types import table
from ggferry.support.heavy import np

if TYPE_CHECKING:
    from ggferry.quant.types import Bytes, Floats

TOY8 = table("TOY8 900 32 d:f4 qs:i1*32")["TOY8"]


def _levels(parts: Parts) -> Array:
    return parts["qs"]


def encode(values: Floats, weights: Floats | None = None) -> Bytes:
    """Round to the nearest multiple of a 127th of the largest value. Raises ValueRefused."""
    check_values(TOY8, values)
    refuse_nonfinite(TOY8, values)
    blocks = by_block(TOY8, np.ascontiguousarray(values))[0]
    scale = (np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)).astype("<f4")
    levels = np.rint(blocks / np.where(scale > 0, scale, 1)).astype(np.int8)
    rows: Bytes = np.concatenate([scale.view(np.uint8), levels.view(np.uint8)], axis=1)
    return rows.reshape(len(values), TOY8.row_bytes(values.shape[1]))


CODECS = (
    Codec(
        TOY8,
        decoder(TOY8, affine(_levels, floats("d"))),
        encode,
        accuracy=Accuracy((0.00534, 0.00841), 0.25, 0.05, bound=Bound(of_block=0.5 / 127 + 2.0**-23)),
        file_type=900,
    ),
)
