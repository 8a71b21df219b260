"""general.file_type: the table against the `gguf` package, the choice against files and mixtures of llama-quantize."""

from __future__ import annotations

from math import prod

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggferry.quant.recipes.file_types import (
    GUESSED,
    file_type_name,
    file_type_of,
    file_types,
    parse_file_type,
)
from helpers.peers import metadata_of
from helpers.third_party_fixtures import cases, listed, read_json, record

MATRICES = ("token_embd", "output", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")

MAIN = [entry.main[0] for entry in file_types().values()]


def uniform(block_type: str, **others: str) -> dict[str, tuple[str, int]]:
    """A four-block model of one type; `others` names the type of a role in all blocks."""
    types = {}
    for block in range(4):
        for role in MATRICES:
            name = f"{role}.weight" if role in {"token_embd", "output"} else f"blk.{block}.{role}.weight"
            types[name] = (others.get(role, block_type), 3 << 10 if role.startswith("ffn") else 1 << 10)
    return types


def test_the_table_is_the_gguf_packages() -> None:
    for member in gguf.LlamaFileType:
        assert file_type_name(member.value) == member.name.removeprefix("MOSTLY_").removeprefix("ALL_")
        assert parse_file_type(member.name) == member.value
    assert set(file_types()) == {*range(42), 1024}
    assert {id for id, entry in file_types().items() if entry.removed} == {5, 6, 33, 34, 35}
    known = {member.name for member in gguf.GGMLQuantizationType} | {"Q2_0"}
    for entry in file_types().values():
        if not entry.removed and entry.id != GUESSED:
            assert {*entry.main, *entry.mixture} <= known


def test_names_in_every_spelling() -> None:
    assert parse_file_type(" q4_k_m ") == parse_file_type("MOSTLY_Q4_K_M") == parse_file_type("Q4_K") == 15
    assert parse_file_type("ALL_F32") == parse_file_type("f32") == 0
    assert parse_file_type("LLAMA_FTYPE_MOSTLY_IQ2_XXS") == 19
    assert parse_file_type("q9_9") is None and parse_file_type("") is None
    assert file_type_name(7) == "Q8_0" and file_type_name(99) == "TYPE_99"


@pytest.mark.parametrize(
    ("types", "stated", "expected"),
    [
        (uniform("F32"), None, 0),
        (uniform("F16"), None, 1),
        (uniform("BF16"), 1, 32),
        (uniform("Q4_0", output="Q6_K"), 2, 2),
        (uniform("Q4_1", output="F16", token_embd="F16"), 4, 4),
        (uniform("Q4_1"), 4, 3),
        (uniform("F16"), 4, 1),
        (uniform("F16"), 5, 1),  # Q4_2, which no GGUF holds, expanded
        (uniform("Q8_0"), 6, 7),
        (uniform("F16"), 37, 1),  # ternary asked for, every row fell back (today's tool says 37)
        (uniform("Q5_0", output="Q8_0"), 15, 8),  # Q4_K_M asked for, rows of 96
        (uniform("F32", output="Q6_K"), 0, 0),  # a "f32" of August 2023
        (uniform("Q8_0"), 38, 7),  # MXFP4_MOE of a model without experts
        (uniform("Q4_K", attn_v="Q6_K", ffn_down="Q6_K"), None, 15),
        (uniform("Q4_K", output="Q6_K"), None, 14),
        (uniform("Q4_K", output="Q6_K"), 15, 15),
        (uniform("Q5_K", ffn_down="Q6_K"), None, 17),
        (uniform("Q5_K"), None, 16),
        (uniform("Q3_K", ffn_down="Q5_K", attn_v="Q5_K"), None, 13),
        (uniform("Q3_K", ffn_down="Q4_K", attn_v="Q5_K"), None, 12),
        (uniform("Q3_K", attn_output="Q5_K"), None, 11),
        (uniform("Q3_K"), 10, 11),
        (uniform("Q4_K"), 12, 14),  # ggml's own numbering: 12 is Q4_K there, Q3_K_M here
        (uniform("Q6_K"), 14, 18),
        (uniform("IQ2_S"), None, 28),
        (uniform("I32"), None, GUESSED),
        (uniform("Q4_0"), GUESSED, 2),
        (uniform("Q4_0"), 12345, 2),
        (uniform("Q4_0"), -1, 2),
        ({}, 1, 1),
        ({}, 5, 0),
        ({}, None, 0),
    ],
)
def test_what_is_in_the_file_decides(types: dict[str, tuple[str, int]], stated: int | None, expected: int) -> None:
    assert file_type_of(types, stated) == expected


def test_elements_count_not_tensors() -> None:
    types = {f"small.{i}.weight": ("F16", 10) for i in range(50)} | {"big.weight": ("Q8_0", 501)}
    assert file_type_of(types) == file_type_of(types, 1) == 7


@settings(deadline=None)
@given(
    types=st.dictionaries(
        st.sampled_from([f"blk.{i}.{role}.weight" for i in range(3) for role in MATRICES]),
        st.tuples(st.sampled_from(["I8", *MAIN]), st.integers(0, 1 << 40)),
    ),
    stated=st.none() | st.integers(-2, 1030),
)
def test_the_answer_names_a_type_that_is_there(types: dict[str, tuple[str, int]], stated: int | None) -> None:
    entry = file_types()[file_type_of(types, stated)]
    assert not entry.removed
    present = {block_type for block_type, _ in types.values()}
    if types and entry.id != GUESSED:
        assert present & set(entry.main)
    if stated is None:
        shuffled = dict(sorted(types.items(), reverse=True))
        assert file_type_of(shuffled) == entry.id


@pytest.mark.parametrize("name", cases(listed("quantize/*k256.[!i]*.gguf")))
def test_llama_quantizes_files_keep_their_number(name: str) -> None:
    """Of 19 recipes applied by llama-quantize each is borne out but MXFP4_MOE, which made a dense model plain Q8_0."""
    told = record(name)
    stated = metadata_of(told)["general.file_type"].data
    tensors = {tensor["name"]: (tensor["type"], tensor["shape"]) for tensor in told["tensors"]}
    types = {key: (kind, prod(shape)) for key, (kind, shape) in tensors.items() if len(shape) > 1}
    assert file_type_of(types, stated) == (7 if stated == 38 else stated)
    if stated != 38:  # what is derived without being told is the stated number too
        assert file_type_of(types) == stated


def _elements(name: str, config: dict[str, object]) -> int:
    width, experts = int(config.get("H", 256)), int(config.get("experts", 1))
    heads = int(config.get("heads", 4))
    kv = width * int(config.get("kv", heads)) // heads
    ff = int(config.get("ff", 3 * width))
    role = name.split(".")[-2]
    if "norm" in role:
        return 0
    if role in {"output", "token_embd"}:
        return 400 * width
    sizes = {"attn_q": width, "attn_output": width, "attn_k": kv, "attn_v": kv, "attn_qkv": width + 2 * kv}
    return width * sizes.get(role, experts if role == "ffn_gate_inp" else ff * (experts if "exps" in role else 1))


def test_every_mixture_of_llama_quantize_is_recognized() -> None:
    """34 recipes × 11 models as llama-quantize mixes them. The recipe's number stays wherever its own block type
    leads or its own mixture outgrew it; after a shape fallback, and for MXFP4 without experts, it must not."""
    mixtures = read_json("quantize/QUANT_MIX.json")
    kept = replaced = 0
    for model, entry in mixtures.items():
        for recipe, mix in entry["types"].items():
            if "error" in mix:
                continue
            stated = parse_file_type(recipe)
            assert stated is not None
            types = {
                name: (kind.upper(), size) for name, kind in mix.items() if (size := _elements(name, entry["config"]))
            }
            answer = file_type_of(types, stated)
            own = {file_types()[stated].main[0]}
            if own & {kind for kind, _ in types.values()}:
                kept += 1
                assert answer == stated, (model, recipe)
            else:
                replaced += 1
                assert answer != stated, (model, recipe)
                leading = max(types.values(), key=lambda item: sum(n for k, n in types.values() if k == item[0]))[0]
                assert leading in file_types()[answer].main, (model, recipe)
    assert kept > 250 and replaced > 40
