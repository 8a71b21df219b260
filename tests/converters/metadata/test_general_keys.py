"""general.*: which source wins, what is refused, and where we agree with the reigning tool.

Known differences from it, tested below: `general.name` splits words at `_` too ('Llama K256', not 'Llama_K256'), has
sizes in capitals (7B) and no storage words ('Llama Shards' of llama_shards_bf16: the output is not bf16);
`general.quantization_version` only where a tensor is quantized; `general.description` says what was converted;
`general.file_type` where it forgets it (gptneox, mpt); base-model data sets point to the hub's /datasets/.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggferry.converters.metadata.file_names import file_name, guess, parse_filename
from ggferry.converters.metadata.general_keys import (
    CARD,
    Entry,
    describe_origin,
    general_metadata,
    name_parts,
)
from ggferry.converters.metadata.model_card import front_matter
from ggferry.formats.errors import UsageError
from ggferry.formats.gguf.values import Value, ValueType, string, u32
from ggferry.formats.readers.gguf import SPEC
from ggferry.quant.recipes.file_types import file_type_of
from helpers.peers import Peers
from helpers.third_party_fixtures import cases, listed, witness

SENTENCE = "Converted from x (GGJT v3) by ggferry"


def entries(
    path: str = "/m/llama-7b.ggmlv3.q4_0.bin", parameters: int = 6738415616, **more: object
) -> dict[str, Entry]:
    guessed = guess(path, parameters=parameters, fallback="llama")
    arguments = {"architecture": "llama", "description": SENTENCE} | more
    return general_metadata(guessed=guessed, parameters=parameters, **arguments)[0]


def data(found: dict[str, Entry]) -> dict[str, object]:
    return {key.removeprefix("general."): entry.value.data for key, entry in found.items()}


def notes(path: str = "/m/llama-7b.bin", **more: object) -> tuple[str, ...]:
    return general_metadata(architecture="llama", description="", guessed=guess(path), **more)[1]


def test_a_legacy_file_with_nothing_beside_it() -> None:
    found = entries(file_type=2, quantized=True)
    assert {key: (entry.value, entry.origin) for key, entry in found.items()} == {
        "general.architecture": (string("llama"), "the architecture recognized"),
        "general.type": (string("model"), "ggferry"),
        "general.name": (string("Llama 7B"), "file name"),
        "general.basename": (string("llama"), "file name"),
        "general.description": (string(SENTENCE), "ggferry"),
        "general.size_label": (string("6.7B"), "counted"),
        "general.file_type": (u32(2), "tensor types"),
        "general.quantization_version": (u32(2), "tensor types"),
    }
    assert file_name(name_parts(found)) == "llama-6.7B-v1.0-Q4_0.gguf"


def test_quantization_version_only_where_something_is_quantized() -> None:
    assert "quantization_version" not in data(entries(file_type=1))
    assert "file_type" not in data(entries())


CARD_TEXT = """---
license: [apache-2.0, mit]
license_name: x
model_name: Card Name
model_creator: Meta
version: 1.10
model_type: llama
language: [en, no, en]
tags: [llama-2]
pipeline_tag: text-generation
description: A model.
base_model:
- meta-llama/Llama-2-7b-hf
- https://huggingface.co/org/some-model-7b-v0.2
- https://example.org/x
- /home/jane/merge/out
- A Sentence Name
datasets:
- org/data-set
- c4
repo_url: /workspace/out
---
"""


def test_the_model_card() -> None:
    card, unread = front_matter(CARD_TEXT)
    assert unread == ()
    found = entries(card=card)
    assert data(found) == {
        "architecture": "llama",
        "type": "model",
        "name": "Card Name",
        "author": "Meta",
        "version": "1.10",
        "basename": "llama",
        "description": f"A model.\n{SENTENCE}",
        "size_label": "6.7B",
        "license": "apache-2.0, mit",
        "license.name": "x",
        "base_model.count": 4,
        "base_model.0.name": "Llama 2 7b Hf",
        "base_model.0.organization": "Meta Llama",
        "base_model.0.repo_url": "https://huggingface.co/meta-llama/Llama-2-7b-hf",
        "base_model.1.name": "Some Model 7b v0.2",
        "base_model.1.organization": "Org",
        "base_model.1.version": "v0.2",
        "base_model.1.repo_url": "https://huggingface.co/org/some-model-7b-v0.2",
        "base_model.2.repo_url": "https://example.org/x",
        "base_model.3.name": "A Sentence Name",
        "datasets": ("org/data-set", "c4"),
        "dataset.count": 2,
        "dataset.0.name": "Data Set",
        "dataset.0.organization": "Org",
        "dataset.0.repo_url": "https://huggingface.co/datasets/org/data-set",
        "dataset.1.name": "C4",
        "tags": ("llama-2", "text-generation"),
        "languages": ("en", "no"),
    }
    assert found["general.name"].origin == CARD and found["general.description"].origin == f"{CARD}; ggferry"
    assert found["general.base_model.count"].value.type is ValueType.UINT32
    assert found["general.tags"].value.items is ValueType.STRING
    told = notes(card=card)
    assert any("/home/jane" in note and "base_model" in note for note in told)
    assert any("repo_url" in note and "local path" in note for note in told)


def test_metadata_file_wins_over_the_card_and_model_name_over_all() -> None:
    card, _ = front_matter(CARD_TEXT)
    overrides = {
        "general.name": "Mine",
        "general.author": None,
        "general.license": "MIT OR Apache-2.0",
        "general.basename": "base",
        "general.finetune": "Chat",
        "general.version": "v3.1",
        "general.size_label": "7B",
        "general.tags": ["a"],
        "general.description": "mine only",
        "general.sampling.top_k": 40,
        "general.sampling.temp": 1,
        "general.base_models": [{"name": "B", "url": "/local/is/mine"}],
        "general.datasets": [],
    }
    found = entries(card=card, overrides=overrides, generation_config={"top_k": 1, "top_p": 0.5}, file_type=15)
    assert data(found) == {
        "architecture": "llama",
        "type": "model",
        "sampling.top_k": 40,
        "sampling.temp": 1.0,
        "sampling.top_p": 0.5,
        "name": "Mine",
        "version": "v3.1",
        "finetune": "Chat",
        "basename": "base",
        "description": "mine only",
        "size_label": "7B",
        "license": "MIT OR Apache-2.0",
        "license.name": "x",
        "base_model.count": 1,
        "base_model.0.name": "B",
        "base_model.0.url": "/local/is/mine",
        "tags": ("a",),
        "languages": ("en", "no"),
        "file_type": 15,
    }
    assert found["general.sampling.temp"].value.type is ValueType.FLOAT32
    assert found["general.sampling.top_k"] == Entry(Value(ValueType.INT32, 40), "--metadata")
    assert file_name(name_parts(found)) == "base-7B-Chat-v3.1-Q4_K_M.gguf"
    assert data(entries(overrides=overrides, model_name="Named"))["name"] == "Named"


def test_null_leaves_a_key_out_and_only_that_key() -> None:
    card = {"license": "mit", "license_name": "MIT", "datasets": ["c4"], "base_model": "a/b"}
    overrides = {"general.license": None, "general.datasets": None, "general.base_models": None}
    found = data(entries(card=card, overrides=overrides))
    assert found["license.name"] == "MIT" and "license" not in found
    assert not any(key.startswith(("dataset", "base_model")) for key in found)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"author": "x"}, "general.author"),
        ({"general.autor": "x"}, "did you mean general.author?"),
        ({"llama.context_length": 4}, "only"),
        ({"general.file_type": 7}, "--outtype"),
        ({"general.architecture": "x"}, "--arch"),
        ({"general.alignment": 64}, "--alignment"),
        ({"general.quantization_version": 2}, "describes the file itself"),
        ({"general.author": 5}, "must be a text"),
        ({"general.version": 1.0}, "must be a text"),
        ({"general.tags": "x", "general.languages": [1]}, "array of texts"),
        ({"general.sampling.top_k": 1.5}, "not a number or text that this key can hold"),
        ({"general.sampling.top_k": True}, "not a number or text that this key can hold"),
        ({"general.sampling.top_k": 1 << 31}, "not a number or text that this key can hold"),
        ({"general.sampling.temp": float("nan")}, "not a number or text that this key can hold"),
        ({"general.sampling.temp": 1e39}, "not a number or text that this key can hold"),
        ({"general.sampling.sequence": 4}, "not a number or text that this key can hold"),
        ({"general.base_models": "a/b"}, "array of texts or objects"),
        ({"general.base_models": [4]}, "array of texts or objects"),
        ({"general.base_models": ["/home/jane"]}, "neither a name nor an address"),
        ({"general.datasets": [{"nom": "x"}]}, "'nom'"),
        ({"general.datasets": [{"name": 4}]}, "'name'"),
    ],
)
def test_a_metadata_file_that_is_none(overrides: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        entries(overrides=overrides)
    assert said in str(caught.value) and caught.value.exit_code == 2


def test_a_gguf_source_keeps_its_own_words_but_not_its_facts() -> None:
    inherited = {
        "general.architecture": string("wrong"),
        "general.name": string("Kept"),
        "general.file_type": u32(99),
        "general.quantization_version": u32(1),
        "general.alignment": u32(64),
        "general.size_label": string("13B"),
        "general.custom": string("kept too"),
        "general.base_model.count": u32(1),
        "general.base_model.0.name": string("B"),
        "llama.context_length": u32(4),
    }
    found = entries(inherited=inherited, card={"name": "card", "base_model": "a/b"}, file_type=7)
    assert data(found) == {
        "architecture": "llama",
        "type": "model",
        "name": "Kept",
        "basename": "llama",
        "description": SENTENCE,
        "size_label": "6.7B",
        "base_model.count": 1,
        "base_model.0.name": "B",
        "custom": "kept too",
        "file_type": 7,
    }
    assert [*found][-2:] == ["general.custom", "general.file_type"]
    changed = entries(inherited=inherited, overrides={"general.base_models": ["c/d"]})
    assert changed["general.base_model.0.name"] == Entry(string("D"), "--metadata")


HUB = "/c/models--meta-llama--Llama-2-7b-chat-hf/snapshots/0123456789abcdef0123456789abcdef01234567/model.safetensors"


def test_the_path_of_a_hub_download_is_provenance() -> None:
    found = data(entries(HUB))
    assert found["name"] == "Llama 2 7B Chat" and found["organization"] == "Meta Llama" and found["finetune"] == "chat"
    assert found["source.repo_url"] == "https://huggingface.co/meta-llama/Llama-2-7b-chat-hf"
    assert "0123456789" not in repr(found) and "/c/" not in repr(found)


def test_name_or_path_names_the_model_only_where_the_path_does_not() -> None:
    """In a fine tune's config it names the base; today's converter then gives the fine tune the base's name."""
    config = {"_name_or_path": "meta-llama/Llama-2-7b-chat-hf"}
    nameless = entries("/home/jane/model.safetensors", config=config)
    assert nameless["general.name"] == Entry(string("Llama 2 7B Chat"), "config.json _name_or_path")
    assert nameless["general.organization"].value == string("Meta Llama")
    tuned = entries("/m/my-tune-7b/model.safetensors", config=config)
    assert tuned["general.name"].value == string("My Tune 7B") and "general.organization" not in tuned
    assert any("Llama-2-7b-chat-hf" in note for note in notes("/m/my-tune-7b", config=config))
    same = entries("/m/Llama-2-7b-chat-hf", config=config)
    assert same["general.organization"] == Entry(string("Meta Llama"), "config.json")
    for path in ("/home/jane/out", "./out", "../x", "C:\\x\\y", "~/m", "a/b/c", "", 5, None, "x y"):
        found = entries("/home/jane/model.safetensors", config={"_name_or_path": path})
        assert found["general.name"] == Entry(string("Llama"), "architecture")


def test_generation_config() -> None:
    """transformers writes `temperature` and `repetition_penalty`; llama.cpp's keys are temp and penalty_repeat."""
    config = {
        "temperature": 0.6,
        "top_p": 0.9,
        "top_k": 20,
        "repetition_penalty": 1.05,
        "min_p": None,
        "do_sample": True,
        "penalty_last_n": 2.5,
        "mirostat": "x",
        "xtc_threshold": float("inf"),
        "transformers_version": "4.57.6",
    }
    found = entries(generation_config=config)
    assert {key: entry.value for key, entry in found.items() if "sampling" in key} == {
        "general.sampling.top_k": Value(ValueType.INT32, 20),
        "general.sampling.top_p": Value(ValueType.FLOAT32, 0.9),
        "general.sampling.temp": Value(ValueType.FLOAT32, 0.6),
        "general.sampling.penalty_repeat": Value(ValueType.FLOAT32, 1.05),
    }
    told = notes(generation_config=config)
    assert len(told) == 3 and all("generation_config.json" in note for note in told)


def test_an_adapter() -> None:
    found = entries(
        "/m/llama-7b-alpaca-lora", 4194304, kind="adapter", base_model="decapoda-research/llama-7b-hf", file_type=0
    )
    assert data(found)["type"] == "adapter" and found["general.base_model.0.name"].origin == "adapter_config.json"
    assert "/home" not in repr(entries("/m/x", 10, kind="adapter", base_model="/home/jane/llama"))
    assert file_name(name_parts(found)).endswith("-F32-LoRA.gguf")


def test_file_names_of_special_files() -> None:
    found = entries("/m/llama-7b/ggml-model-q4_0.bin", 0)
    assert file_name(name_parts(found, vocab_only=True)) == "llama-7B-v1.0-vocab.gguf"
    found = entries(file_type=7, overrides={"general.name": "Un/named Thing 2"}, path="/home/jane/model.bin")
    name = file_name(name_parts(found, shard="00001-of-00002"))
    assert name == "Un-named-Thing-2-6.7B-v1.0-Q8_0-00001-of-00002.gguf"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("/x/llama-7b.ggmlv3.q4_0.bin", "ggjt", 3, "19 May – 21 August 2023 (llama.cpp 2d5db4837..6381d4e11)"),
            "Converted from llama-7b.ggmlv3.q4_0.bin (GGJT v3, 19 May – 21 August 2023) by ggferry 0.1.0",
        ),
        (("a.bin", "ggml", None, "unknown era"), "Converted from a.bin (GGML) by ggferry 0.1.0"),
        (("/m/TinyLlama-1.1B/", "safetensors"), "Converted from TinyLlama-1.1B (safetensors) by ggferry 0.1.0"),
        (("/home/jane/", "pytorch"), "Converted from a directory (PyTorch) by ggferry 0.1.0"),
        (("/home/jane/m.pth", "pytorch"), "Converted from m.pth (PyTorch) by ggferry 0.1.0"),
        ((HUB, "safetensors"), "Converted from meta-llama/Llama-2-7b-chat-hf/model.safetensors (safetensors) by"),
        (
            ("https://user:secret@example.org/private/m.bin?X-Signature=abc", "ggjt", 1),
            "Converted from m.bin (GGJT v1) by ggferry 0.1.0",
        ),
    ],
)
def test_the_sentence_of_origin(arguments: tuple[object, ...], sentence: str) -> None:
    assert describe_origin(*arguments).startswith(sentence)  # type: ignore[arg-type]


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
fields = st.sampled_from(
    [
        "name",
        "license",
        "tags",
        "language",
        "base_model",
        "datasets",
        "description",
        "url",
        "temperature",
        "top_k",
        "_name_or_path",
        "version",
        "general.name",
        "general.tags",
        "general.base_models",
        "general.sampling.temp",
    ]
)


@settings(deadline=None)
@given(st.dictionaries(fields, anything), st.text(max_size=30))
def test_any_card_config_or_path_gives_metadata_that_can_be_written(table: dict[str, object], path: str) -> None:
    arguments = {"architecture": "llama", "description": SENTENCE, "guessed": guess(path), "parameters": 5}
    found, _ = general_metadata(card=table, config=table, generation_config=table, **arguments)
    again, _ = general_metadata(card=table, config=table, generation_config=table, **arguments)
    assert list(found.items()) == list(again.items())
    for key, entry in found.items():
        assert key.isascii() and entry.origin
        for text in [entry.value.data] if isinstance(entry.value.data, str) else []:
            text.encode()
    assert parse_filename(file_name(name_parts(found)))
    with suppress(UsageError):
        general_metadata(overrides=table, **arguments)


@pytest.mark.parametrize("path", ["/home/jane/x", "~/x", "./x", "../x", "C:\\x", "\\\\host\\x", "file:///x", "/"])
def test_no_local_path_of_a_card_gets_in(path: str) -> None:
    names = ["name", "author", "url", "repo_url", "license", "tags", "base_model", "datasets", "license_link"]
    found, told = general_metadata(
        architecture="llama", description="", guessed=guess("m-7b"), card=dict.fromkeys(names, path)
    )
    assert set(data(found)) == {"architecture", "type", "name", "basename", "size_label"}
    assert len(told) == len(names)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", cases(listed("hf/out/*/*.gguf")))
def test_agreement_with_the_reigning_tool(name: str, peer: Peers) -> None:
    """For every checkpoint that convert_hf_to_gguf converted: same keys and values, but for the known differences."""
    source, checkpoint = witness(f"hf/ckpt/{name.split('/')[2]}"), SPEC.open(str(peer(name)), ())
    theirs = {key: value for key, value in checkpoint.metadata.items() if key.startswith("general.")}
    refs = [ref for ref in checkpoint.tensors.values() if ref.name != "rope_freqs.weight"]
    routed = sum(ref.elements for ref in refs if "_exps." in ref.name)
    architecture = theirs["general.architecture"].data
    experts = checkpoint.metadata[f"{architecture}.expert_count"].data if routed else 0
    types = {ref.name: (ref.type.name, ref.elements) for ref in refs if len(ref.shape) > 1}
    stated = theirs.get("general.file_type")
    parameters = sum(ref.elements for ref in refs)
    found, _ = general_metadata(
        architecture=architecture,
        description=SENTENCE,
        guessed=guess(str(source), parameters=parameters, fallback=architecture),
        parameters=parameters,
        experts=experts,
        expert_parameters=routed,
        file_type=file_type_of(types, stated.data if stated else None),
        quantized=any(ref.type.quantized for ref in refs),
        config=json.loads((source / "config.json").read_text()),
        generation_config=json.loads((source / "generation_config.json").read_text())
        if (source / "generation_config.json").is_file()
        else None,
    )
    ours = {key: entry.value for key, entry in found.items()}
    title = ours.pop("general.name")
    expected = theirs.pop("general.name").data.replace("_", " ").removesuffix(" Bf16")
    assert title.data.casefold() == expected.casefold(), name
    assert ours.pop("general.description") == string(SENTENCE)
    if ".f32." in name:
        assert theirs.pop("general.quantization_version") == u32(2)
    if stated is None:
        assert ours.pop("general.file_type").data == (0 if ".f32." in name else 7)
    assert ours == theirs, name
    checkpoint.close()


@pytest.mark.parametrize("text", [CARD_TEXT, "---\nbase_model: a/b-7b\ndataset: c/d\nmodel_creator: x\n---\n"])
def test_cards_as_the_gguf_package_reads_them(tmp_path: Path, text: str) -> None:
    """gguf.Metadata on the same README and directory name: equal wherever it writes the key and we claim to agree."""
    source = tmp_path / "llama-7b-chat"
    source.mkdir()
    (source / "README.md").write_text(text.replace("version: 1.10", "version: v1").replace("- A Sentence Name\n", ""))
    theirs = gguf.Metadata.load(None, source, None, 6738415616)
    card, _ = front_matter((source / "README.md").read_text())
    ours = data(entries(str(source), card=card))
    for key in ("name", "author", "version", "finetune", "organization"):
        expected = getattr(theirs, key)
        assert ours.get(key) == (expected and expected.replace("7b", "7B")), key
    for number, model in enumerate(theirs.base_models[:2]):
        for key, value in model.items():
            expected = f"v{value}" if key == "version" and value[0] != "v" else value
            assert ours[f"base_model.{number}.{key}"] == expected, key
