"""The lists of what is supported, held against the program whose names they are."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import pytest

from ggferry.converters.proof.runtime_keys import architectures as read_by_llama_cpp
from ggferry.converters.supported import block_types, class_names, coverage, families, lists_mmproj_classes, out_types
from ggferry.formats.errors import InconsistentError
from helpers.third_party_fixtures import ROOT

MAP = ROOT / "benchmarks" / "convert_hf_to_gguf_classes.json"
LLAMA_31_8B = {
    "iq1_s": 2.0042,
    "iq1_m": 2.1460,
    "iq2_xxs": 2.3824,
    "iq2_xs": 2.5882,
    "iq2_s": 2.7403,
    "iq2_m": 2.9294,
    "iq3_xxs": 3.2548,
    "iq3_xs": 3.4977,
    "iq3_s": 3.6606,
    "iq3_m": 3.7628,
    "q2_k_s": 2.9697,
    "q2_k": 3.1593,
    "q3_k_s": 3.6429,
    "q3_k_l": 4.2979,
    "q4_k_s": 4.6672,
    "q4_k_m": 4.8944,
    "q5_k_s": 5.5704,
    "q5_k_m": 5.7036,
    "q6_k": 6.5633,
    "q8_0": 8.5008,
    "f16": 16.0005,
}
"""tools/quantize/README.md of llama.cpp, its measured sizes; those of IQ4_NL and IQ4_XS there had no matrix."""


def test_bits_of_whole_models_are_what_llama_cpp_measured() -> None:
    found = {each.name: each.bits_per_weight for each in out_types()}
    for name, bits in LLAMA_31_8B.items():
        assert found[name] == pytest.approx(bits, abs=6e-5), name
    assert found["keep"] is None


def test_blocks_are_those_of_gguf_py() -> None:
    ours = {each.ggml_id: each for each in block_types() if each.ggml_id is not None}
    for kind, (elements, size) in gguf.GGML_QUANT_SIZES.items():
        if int(kind) in ours and kind.name != "Q8_1":  # two float32 there, two float16 in ggml-common.h: 36 bytes
            each = ours[int(kind)]
            assert (each.name, each.elements, each.bytes) == (kind.name, elements, size)
            assert each.bits_per_weight == 8 * size / elements and each.runtimes == ("llama.cpp",)
    assert len(set(ours) & {int(kind) for kind in gguf.GGML_QUANT_SIZES}) > 30


def their_names() -> set[str]:
    """Architectures of llama.cpp: gguf-py's, and those that its converter writes and its loader reads, newer here."""
    written = filter(None, json.loads(MAP.read_text())["classes"].values())
    return {*gguf.MODEL_ARCH_NAMES.values(), *written, *read_by_llama_cpp()}


def test_families_have_names_of_llama_cpp_where_it_reads_them() -> None:
    known = their_names()
    for each in families():
        assert each.display_name and (not each.runtimes or each.name in known), each.name
    assert len({name for each in families() for name in each.classes}) >= 51


def test_the_list_of_todays_converter() -> None:
    document = json.loads(MAP.read_text())
    names = class_names(document, str(MAP))
    assert len(names) == len(set(names)) == 269 and "0.3.36" in document["version"]
    assert len({value for value in document["classes"].values() if value}) == 145
    found = coverage(names)
    assert set(found.read) | set(found.missing) == set(names) and not set(found.read) & set(found.missing)
    assert len(found.read) >= 43 and {"GPTJForCausalLM", "WhisperModel"} <= set(found.unlisted)
    architectures = {name: each.name for each in families() for name in each.classes}
    for name in found.read:  # a class may have moved to a table of its own kin, never to another program's word
        assert architectures[name] in their_names()


@pytest.mark.parametrize("value", [[], {}, 5, "x", [1], {"classes": 5}, {"classes": []}, ["x"] * 100_001])
def test_what_is_no_list_of_names(value: object) -> None:
    with pytest.raises(InconsistentError):
        class_names(value, "x.json")


def test_a_list_may_be_plain(tmp_path: Path) -> None:
    assert coverage(["LlamaForCausalLM", "NoSuchModel", "LlamaForCausalLM"]).listed == (
        "LlamaForCausalLM",
        "NoSuchModel",
    )
    assert coverage(["LlamaForCausalLM", "NoSuchModel"]).missing == ("NoSuchModel",)


def test_the_list_of_second_files() -> None:
    path = ROOT / "benchmarks" / "convert_hf_to_gguf_mmproj_classes.json"
    document = json.loads(path.read_text())
    assert lists_mmproj_classes(document) and not lists_mmproj_classes(json.loads(MAP.read_text()))
    found = coverage(class_names(document, str(path)), mmproj=True)
    assert len(found.listed) == 72 and len(found.read) >= 40
    assert set(found.missing) == set(found.reasons), "a name that is neither read nor refused with a reason"
