"""Levels and scales packed into blocks mean level × scale (+ minimum), by gguf-py's decoders where it has the type."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from ggferry.quant.codec import codec
from ggferry.quant.pack_levels import PACKINGS, pack
from ggferry.quant.types import BlockError

ROWS, BLOCKS = 7, 3


def decoded(kind: str, blocks: np.ndarray, columns: int) -> np.ndarray:
    if kind == "Q2_0":  # the package is older than the type
        return codec(kind).decode(blocks, columns)
    return gguf.dequantize(blocks, gguf.GGMLQuantizationType[kind])


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int64])
@pytest.mark.parametrize("kind", PACKINGS)
def test_blocks_mean_what_was_packed(kind: str, dtype: type) -> None:
    """Bit for bit, with scales that are negative, subnormal, zero and negative zero."""
    rng, packing, every = np.random.default_rng(4), PACKINGS[kind], codec(kind).type.elements
    levels = rng.integers(packing.low, packing.high + 1, (ROWS, every * BLOCKS)).astype(dtype)
    levels[0, :every], levels[1, :every] = packing.low, packing.high
    scales = rng.normal(0, 0.1, (ROWS, BLOCKS)).astype(np.float16)
    scales[2] = 2.0**-24, 0.0, -0.0
    minima = rng.normal(0, 0.1, (ROWS, BLOCKS)).astype(np.float16) if packing.minimum else None
    blocks = pack(kind, levels, scales, minima)
    wide = np.repeat(scales.astype(np.float32), every, 1)
    expected = levels.astype(np.float32) * wide
    if minima is not None:
        expected = expected + np.repeat(minima.astype(np.float32), every, 1)
    found = decoded(kind, blocks, every * BLOCKS)
    assert blocks.shape == (ROWS, codec(kind).type.row_bytes(every * BLOCKS))
    assert np.array_equal(found.view(np.uint32), expected.view(np.uint32))
    assert np.array_equal(codec(kind).decode(blocks, every * BLOCKS).view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("kind", PACKINGS)
def test_levels_that_a_block_does_not_hold_are_refused(kind: str) -> None:
    packing, every = PACKINGS[kind], codec(kind).type.elements
    ones = np.ones((2, 1), np.float16)
    for level in (packing.low - 1, packing.high + 1):
        levels = np.zeros((2, every), np.int16) + max(0, packing.low)
        levels[1, 5] = level
        with pytest.raises(BlockError, match=rf"row 1: level {level} "):
            pack(kind, levels, ones, ones)
