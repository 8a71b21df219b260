"""Levels of blocks whose scales are fixed: held against the codecs and against gguf-py."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import pytest

from ggferry.quant.codec import codec
from ggferry.quant.levels import LEVELS, coefficients, put_codes

COLUMNS = 512


@pytest.fixture(params=sorted(LEVELS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def random_blocks(kind: str, rows: int) -> Any:
    """Return valid blocks of normally distributed values."""
    values = np.random.default_rng(3).normal(size=(rows, COLUMNS)).astype(np.float32)
    encode = codec(kind).encode
    assert encode is not None
    return encode(values, None)


def test_codes_mean_what_gguf_py_decodes(kind: str) -> None:
    """Any codes that are stored are level × scale + shift, for gguf-py too."""
    blocks, levels = random_blocks(kind, 6), np.array(LEVELS[kind].values, np.float32)
    codes = np.random.default_rng(4).integers(0, len(levels), (6, COLUMNS)).astype(np.uint8)
    put_codes(kind, blocks, codes)
    scales, shifts = (np.repeat(each, COLUMNS // each.shape[1], 1) for each in coefficients(kind, blocks))
    found = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[kind])
    np.testing.assert_array_equal(codec(kind).values(blocks, COLUMNS), found)
    np.testing.assert_array_equal(levels[codes] * scales + shifts, found)


def test_storing_the_codes_that_are_there_changes_no_byte(kind: str) -> None:
    blocks, levels = random_blocks(kind, 6), np.array(LEVELS[kind].values, np.float32)
    scales, shifts = (np.repeat(each, COLUMNS // each.shape[1], 1) for each in coefficients(kind, blocks))
    steps = (codec(kind).values(blocks, COLUMNS) - shifts) / np.where(scales == 0, 1, scales)
    codes = np.abs(steps[..., None] - levels).argmin(-1).astype(np.uint8)
    again = blocks.copy()
    put_codes(kind, again, codes)
    different = again != blocks
    assert different.mean() < 0.01 and np.array_equal(
        codec(kind).values(again, COLUMNS), codec(kind).values(blocks, COLUMNS)
    )
