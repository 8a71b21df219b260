"""Byte order, against numpy's own big-endian types, the gguf package's converter and layouts written out by hand."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from ggferry.quant.codec import block_type, codecs
from ggferry.quant.endian import swap
from ggferry.quant.types import BlockError

LAYOUTS = {
    "Q4_0": "2 1*16",
    "Q4_1": "2 2 1*16",
    "Q5_0": "2 4 1*16",
    "Q5_1": "2 2 4 1*16",
    "Q8_0": "2 1*32",
    "Q2_K": "1*80 2 2",
    "Q3_K": "1*108 2",
    "Q4_K": "2 2 1*140",
    "Q5_K": "2 2 1*172",
    "Q6_K": "1*208 2",
    "Q8_K": "4 1*256 2*16",
    "IQ2_XXS": "2 2*32",
    "IQ2_XS": "2 2*32 1*8",
    "IQ3_XXS": "2 1*64 4*8",
    "IQ1_S": "2 1*32 2*8",
    "IQ1_M": "1*48 2*4",
    "IQ4_NL": "2 1*16",
    "IQ4_XS": "2 2 1*132",
    "TQ1_0": "1*52 2",
    "TQ2_0": "1*64 2",
    "MXFP4": "1*17",
    "NVFP4": "1*36",
    "Q1_0": "2 1*16",
    "Q4_1_V1": "4 4 1*16",
    "Q3_K_64": "1*26 2",
}
"""Widths in bytes of the items of a block, in order."""


def reversed_items(layout: str, block: bytes) -> bytes:
    out, at = b"", 0
    for word in layout.split():
        width, _, count = word.partition("*")
        for _ in range(int(count or 1)):
            out += block[at : at + int(width)][::-1]
            at += int(width)
    assert at == len(block)
    return out


def numbered(name: str, blocks: int) -> np.ndarray:
    size = block_type(name).row_bytes(blocks * block_type(name).elements)
    return (np.arange(2 * size) * 7 % 251).astype(np.uint8).reshape(2, size)


@pytest.mark.parametrize("name", LAYOUTS)
def test_items_are_reversed_as_the_structs_say(name: str) -> None:
    rows, size = numbered(name, 3), block_type(name).block_bytes
    swapped = swap(block_type(name), rows).reshape(-1, size)
    for found, block in zip(swapped, rows.reshape(-1, size), strict=True):
        assert found.tobytes() == reversed_items(LAYOUTS[name], block.tobytes())


@pytest.mark.parametrize(
    ("name", "dtype"), [("F32", "f4"), ("F16", "f2"), ("F64", "f8"), ("I32", "i4"), ("BF16", "u2")]
)
def test_numbers_are_numpys_big_endian_ones(name: str, dtype: str) -> None:
    rows = numbered(name, 9)
    expected = rows.view(f"<{dtype}").astype(f">{dtype}")
    assert swap(block_type(name), rows).tobytes() == expected.tobytes()
    assert swap(block_type("I8"), rows).tobytes() == rows.tobytes()


def test_as_the_gguf_packages_converter() -> None:
    functions = importlib.import_module("gguf.scripts.gguf_convert_endian").byteswap_tensors
    assert len(functions) >= 6
    for known, function in functions.items():
        kind = block_type(GGMLQuantizationType(known).name)
        rows = numbered(kind.name, 5)
        tensor = SimpleNamespace(data=rows.reshape(-1).copy())
        for at in range(0, rows.size, kind.block_bytes):
            function(tensor, at)
        assert swap(kind, rows).tobytes() == tensor.data.tobytes()


def test_planes_swap_in_place() -> None:
    """Three blocks a row: three f32 mins, three f32 scales, the nibbles."""
    rows = numbered("Q4_1_PLANAR", 3)
    expected = np.concatenate([rows[:, :24].reshape(2, 6, 4)[..., ::-1].reshape(2, 24), rows[:, 24:]], axis=1)
    assert np.array_equal(swap(block_type("Q4_1_PLANAR"), rows), expected)


@pytest.mark.parametrize("name", sorted(name for name, one in codecs().items() if one.type.interleaved == 1))
def test_swapping_twice_is_nothing_and_once_leaves_the_source(name: str) -> None:
    rows = numbered(name, 4)
    before = rows.copy()
    once = swap(block_type(name), rows)
    assert np.array_equal(swap(block_type(name), once), rows)
    assert np.array_equal(rows, before)
    kind = block_type(name)
    assert np.array_equal(once, rows) == all(field.item_bytes == 1 for field in (*kind.header, *kind.fields))
    read_only = np.frombuffer(rows.tobytes(), np.uint8).reshape(rows.shape)
    assert np.array_equal(swap(block_type(name), read_only), once)
    assert np.array_equal(swap(block_type(name), rows[::-1]), once[::-1])


@pytest.mark.parametrize("rows", [np.zeros((2, 19), np.uint8), np.zeros(18, np.uint8), np.zeros((1, 18), np.int8)])
def test_what_is_not_whole_blocks_is_refused(rows: np.ndarray) -> None:
    with pytest.raises(BlockError, match="Q4_0 rows are uint8"):
        swap(block_type("Q4_0"), rows)


def test_no_rows_are_no_rows() -> None:
    assert swap(block_type("Q4_K"), np.zeros((0, 144), np.uint8)).shape == (0, 144)
    assert swap(block_type("Q4_K"), np.zeros((3, 0), np.uint8)).shape == (3, 0)
