"""Encoders of the IQ2 and IQ3 types: `quantize_row_iq2_*_impl`, `quantize_row_iq3_*_impl` of ggml-quants.c."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ggferry.quant.blocks import dtype_of
from ggferry.quant.codecs.iquants import TYPES
from ggferry.quant.kernels.grids import lattice
from ggferry.quant.kernels.iquants_run import encode, numerators
from ggferry.quant.kernels.iquants_search import BLOCK, REFIT_ALL_IF_ANY, REFIT_ALWAYS, REFIT_OFF_LATTICE, search
from ggferry.quant.kernels.iquants_weights import PLAIN_SQUARE, PLAIN_SQUARE_AND_SIGMA

if TYPE_CHECKING:
    from ggferry.quant.types import Bytes, Floats

Array = np.ndarray[Any, np.dtype[Any]]

F = np.float32

TILE = 4096
"""Blocks whose unpacked search results are in memory at once: 1.5 MB."""


class Form(NamedTuple):
    """How a type's search differs.

    A sub-block has `elements`, a group `width`; σ² is `factor` times the mean square; `even`: seven signs of eight are
    stored; sub-blocks with no magnitude of `least` are not searched.
    """

    elements: int
    width: int
    factor: F
    plain: int
    even: bool
    least: F
    refit: int
    trials: int


class Found(NamedTuple):
    """A tile's results, a row for each block.

    They are lattice points, bytes of signs, levels of scales, d, and the bits of sub-blocks that were not searched.
    """

    points: Array
    signs: Array
    levels: Array
    d: Array
    unsearched: Array


TINY = np.nextafter(F(0), F(1))
FORMS = {
    "IQ2_XXS": Form(32, 8, F(1), PLAIN_SQUARE, True, F(1e-15), REFIT_ALWAYS, 13),
    "IQ2_XS": Form(16, 8, F(1), PLAIN_SQUARE, True, F(1e-15), REFIT_OFF_LATTICE, 19),
    "IQ2_S": Form(16, 8, F(2), PLAIN_SQUARE_AND_SIGMA, False, F(1e-8), REFIT_OFF_LATTICE, 19),
    "IQ3_XXS": Form(32, 4, F(2), PLAIN_SQUARE, True, F(1e-8), REFIT_OFF_LATTICE, 31),
    "IQ3_S": Form(32, 4, F(2), PLAIN_SQUARE, False, TINY, REFIT_ALL_IF_ANY, 19),
}


def nibbles(levels: Array) -> Array:
    """uint8 `(…, 2n)` → `(…, n)`, the first of two low."""
    return levels[:, 0::2] | levels[:, 1::2] << 4


def high_bits(points: Array, width: int) -> Array:
    """Bits 8 … of points `(…, n)`, `width` each, packed into bytes from the lowest bit."""
    shifts = np.arange(0, 8, width)
    parts = (points >> 8).reshape(len(points), -1, len(shifts)) << shifts
    return np.bitwise_or.reduce(parts, axis=-1)


def seven_signs(signs: Array, levels: Array) -> Array:
    """u4 `(…, 8)`: four times seven signs, and the level of the scale above them."""
    shifts = np.arange(0, 28, 7, dtype=np.uint32)
    words = np.bitwise_or.reduce(signs.reshape(len(signs), 8, 4).astype(np.uint32) << shifts, axis=-1)
    return words | levels.astype(np.uint32) << 28


def pack_iq2_xxs(found: Found, out: Any) -> None:
    words = out["qs"].view("<u4")
    points = found.points.astype(np.uint8)
    words[:, 0::2] = points.view("<u4")
    words[:, 1::2] = seven_signs(found.signs, found.levels)


def pack_iq2_xs(found: Found, out: Any) -> None:
    out["qs"] = found.points | found.signs.astype(np.int32) << 9
    out["scales"] = nibbles(found.levels)


def pack_iq2_s(found: Found, out: Any) -> None:
    out["qs"] = found.points & 255
    out["signs"] = found.signs
    out["qh"] = high_bits(found.points, 2)
    out["scales"] = nibbles(found.levels)


def pack_iq3_xxs(found: Found, out: Any) -> None:
    out["qs"] = found.points
    out["scales_and_signs"] = seven_signs(found.signs, found.levels)


def pack_iq3_s(found: Found, out: Any) -> None:
    """Pack IQ3_S as the reference does, whose sub-blocks of zeros displace what follows.

    It leaves such a sub-block without moving on in qs and signs, so that those of the following sub-blocks take its
    place (but not their high bits): `quantize_row_iq3_s_impl`, `if (!max) continue`.
    """
    out["qs"] = found.points & 255
    out["signs"] = found.signs
    out["qh"] = high_bits(found.points, 1)
    out["scales"] = nibbles(found.levels)
    behind = np.flatnonzero(found.unsearched)
    order = np.argsort(found.unsearched[behind, None] >> np.arange(8) & 1, axis=1, kind="stable")
    for field in ("qs", "signs"):
        parts = out[field][behind].reshape(len(behind), 8, 8 if field == "qs" else 4)
        out[field][behind] = np.take_along_axis(parts, order[:, :, None], axis=1).reshape(out[field][behind].shape)


class Encoder(NamedTuple):
    tries: Floats
    fudge: F
    clears: bool
    pack: Callable[[Found, Any], None]


# d is stored times `fudge`. `clears`: a block without a scale above 0 is stored as zeros, though points were found.
ENCODERS = {
    "IQ2_XXS": Encoder(numerators(5, 6, 0.1), F(1), True, pack_iq2_xxs),
    "IQ2_XS": Encoder(numerators(5, 9, 0.1), F(1), True, pack_iq2_xs),
    "IQ2_S": Encoder(numerators(5, 9, 0.1), F(0.9875), False, pack_iq2_s),
    "IQ3_XXS": Encoder(numerators(15, 15, 0.2), F(1.0125), True, pack_iq3_xxs),
    "IQ3_S": Encoder(numerators(15, 9, 0.2), F(1.033), False, pack_iq3_s),
}


def encode_lattice(name: str, values: Floats, weights: Floats | None, needs_weights: bool = False) -> Bytes:
    form, (tries, fudge, clears, pack), grid = FORMS[name], ENCODERS[name], lattice(name)

    def run(flat: Floats, importance: Floats, weighted: bool, columns: int, out: Bytes) -> int:
        packed = out.view(dtype_of(TYPES[name]))
        room = _room(form, min(len(packed), TILE))
        for start in range(0, len(packed), TILE):
            tile = packed[start : start + TILE]
            found = Found(*(part[: len(tile)] for part in room))
            part = flat[start * BLOCK : (start + len(tile)) * BLOCK]
            bad = search(part, importance, weighted, columns, start, tuple(form), tries, grid, *found)
            if bad >= 0:
                return start + bad
            with np.errstate(over="ignore"):
                tile["d"] = (found.d * fudge)[:, None]
            pack(found, tile)
            if clears:
                tile[found.d == 0] = np.zeros((), tile.dtype)
        return -1

    return encode(TYPES[name], run, values, weights, needs_weights=needs_weights)


def _room(form: Form, blocks: int) -> Found:
    return Found(
        np.empty((blocks, BLOCK // form.width), np.int32),
        np.empty((blocks, BLOCK // 8), np.uint8),
        np.empty((blocks, BLOCK // form.elements), np.uint8),
        np.empty(blocks, np.float32),
        np.empty(blocks, np.int32),
    )


def encode_iq2_xxs(values: Floats, weights: Floats | None) -> Bytes:
    return encode_lattice("IQ2_XXS", values, weights, needs_weights=True)


def encode_iq2_xs(values: Floats, weights: Floats | None) -> Bytes:
    return encode_lattice("IQ2_XS", values, weights, needs_weights=True)


def encode_iq2_s(values: Floats, weights: Floats | None) -> Bytes:
    return encode_lattice("IQ2_S", values, weights)


def encode_iq3_xxs(values: Floats, weights: Floats | None) -> Bytes:
    return encode_lattice("IQ3_XXS", values, weights)


def encode_iq3_s(values: Floats, weights: Floats | None) -> Bytes:
    return encode_lattice("IQ3_S", values, weights)
