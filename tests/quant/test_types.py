"""Block sizes come from field tables: here they are held against three other sources."""

from __future__ import annotations

import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from ggferry.quant.codec import LLAMA_CPP, block_type, codec, codecs, types_by_id
from ggferry.quant.types import BlockError, BlockType, Field, table

IDS = [*range(4), *range(6, 31), 34, 35, *range(39, 43)]
"""Of `enum ggml_type`; 4, 5, 31–33 and 36–38 were removed."""

ERAS = """
Q4_0_PLANAR 32 20  Q4_1_PLANAR 32 24  Q4_0_V1 32 20  Q4_1_V1 32 24  Q4_2 16 10  Q4_3 16 12  Q5_0_V1 32 22
Q5_1_V1 32 24  Q8_0_V1 32 36  Q4_0_V2 32 20  Q4_1_V2 32 24  Q4_1_O 32 24
Q2_K_64 64 24  Q3_K_64 64 28  Q4_K_64 64 38  Q5_K_64 64 46  Q6_K_64 64 54
"""
"""Name, elements and bytes of a block as llama.cpp's files of 2023 have them."""


def eras() -> list[tuple[str, int, int]]:
    words = ERAS.split()
    return [(words[i], int(words[i + 1]), int(words[i + 2])) for i in range(0, len(words), 3)]


def test_every_gguf_id_has_a_type_and_no_other() -> None:
    assert sorted(number for number, kind in types_by_id().items() if codec(kind.name).runtime == LLAMA_CPP) == IDS


@pytest.mark.parametrize("ggml_id", IDS)
def test_sizes_are_those_of_todays_ggml(ggml_id: int, ggml) -> None:
    kind, traits = types_by_id()[ggml_id], ggml.traits(ggml_id)
    assert (kind.elements, kind.block_bytes) == (traits.blck_size, traits.type_size)
    assert kind.name == traits.type_name.decode().upper()
    plain = {"F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64"}
    assert kind.quantized == traits.is_quantized == (kind.name not in plain)


@pytest.mark.parametrize("known", GGML_QUANT_SIZES, ids=lambda known: known.name)
def test_sizes_are_those_of_the_gguf_package(known: GGMLQuantizationType) -> None:
    kind = types_by_id()[known.value]
    elements, size = GGML_QUANT_SIZES[known]
    if kind.name == "Q8_1":
        # The package still has the two float32 of May 2023; ggml has had two float16 since (see the test above).
        assert size == 40
        size = 36
    assert (kind.name, kind.elements, kind.block_bytes) == (known.name, elements, size)


@pytest.mark.parametrize(("name", "elements", "size"), eras())
def test_sizes_of_the_eras(name: str, elements: int, size: int) -> None:
    kind = block_type(name)
    assert (kind.elements, kind.block_bytes, kind.ggml_id) == (elements, size, None)
    assert kind.planar == name.endswith("_PLANAR")
    assert kind.quantized


def test_rows_and_tensors() -> None:
    kind = block_type("q4_k")
    assert kind is codecs()["Q4_K"].type
    assert kind.row_bytes(512) == 288
    assert kind.nbytes((3, 7, 512)) == 21 * 288
    assert kind.nbytes((0, 256)) == 0
    assert block_type("F32").nbytes(()) == 4
    with pytest.raises(BlockError, match=r"row of 300 elements .* Q4_K's block of 256"):
        kind.row_bytes(300)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(BlockError, match=r"unknown tensor type 'Q9_X'; known: .*Q4_0_PLANAR"):
        codec("Q9_X")


def test_a_table_line_is_a_block_type() -> None:
    assert table("  X - 8 a:f2 b:bf16*3 ", planar=True) == {
        "X": BlockType("X", 8, (Field("a", "f2"), Field("b", "bf16", 3)), None, planar=True)
    }
    assert table("Y 7 1 a:i8")["Y"].block_bytes == 8
