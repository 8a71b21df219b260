"""Qwen3-TTS's talker: what its publisher's classes and llama.cpp compute (`helpers/make_qwen3_tts_fixtures.py`)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import ggferry
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.model_graph.rows import laid_out_values
from ggferry.converters.understand import graph_of
from ggferry.formats.errors import GgferryError
from ggferry.formats.readers.gguf import open_gguf
from helpers.llama_cpp import continuations
from helpers.third_party_fixtures import FIXTURES
from helpers.tiny_models import check_streaming, relative, write

PLACE = FIXTURES / "qwen3-tts"
TOKENS = [5, 17, 399, 90, 401, 441, 8, 262, 447, 12, 0, 333]
TEXTS, CODES = 400, 48
AXES = {"mrope_section": [2, 2, 2], "interleaved": True}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"use_sliding_window": True, "sliding_window": 5},
    "linear": {"rope_scaling": {"rope_type": "linear", "factor": 4.0, **AXES}},
    "yarn": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, **AXES}},
    "base": {"rope_theta": 70.0},
    "apart": {"rope_scaling": {"rope_type": "default", "mrope_section": [2, 2, 2], "interleaved": False}},
    "epsilon": {"rms_norm_eps": 0.1},
}
"""Changes of the configuration, whose logits the fixture has."""


def model(folder: Path, edit: Callable[[dict[str, np.ndarray]], Any] | None = None, **changes: Any) -> Path:
    """The fixture, its tensors as `edit` leaves them, with changes of the talker's configuration (None: without)."""
    shutil.copytree(PLACE, folder, ignore=shutil.ignore_patterns("*.np?"))
    config = json.loads((folder / "config.json").read_text())
    talker = {**config["talker_config"], **changes}
    config["talker_config"] = {
        key: value for key, value in talker.items() if value is not None or key not in changes
    }
    (folder / "config.json").write_text(json.dumps(config))
    if edit is not None:
        tensors = load_file(folder / "model.safetensors")
        edit(tensors)
        save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", VARIANTS)
def test_both_sides_compute_what_the_publishers_classes_do(name: str, tmp_path: Path) -> None:
    source = graph_of(str(model(tmp_path / "hf", **VARIANTS[name])))
    assert not [note for note in source.notes if "does not use" in note]
    expected = np.load(PLACE / "logits.npz")[name]
    assert expected.shape == (len(TOKENS), CODES)
    assert relative(expected, forward(source, TOKENS)) <= 2e-6
    written = graph_of(str(write(source, tmp_path / "x.gguf")))
    assert relative(expected, forward(written, TOKENS)) <= 2e-6


def test_rows_are_those_that_the_publishers_network_makes(tmp_path: Path) -> None:
    """torch computes them in float32, which rounds every step; ours are rounded once."""
    source = graph_of(str(PLACE))
    check_streaming(source)
    expected, node = np.load(PLACE / "table.npy"), source.by_name["token_embd.weight"]
    found = laid_out_values(source.checkpoint, node, 0, TEXTS + CODES)
    assert relative(expected, found) <= 2e-7
    assert np.array_equal(expected[TEXTS:], found[TEXTS:])
    tensors = {name: value.astype(np.float64) for name, value in load_file(PLACE / "model.safetensors").items()}
    up, up_bias, down, down_bias = (
        tensors[f"talker.text_projection.linear_fc{n}.{part}"] for n in (1, 2) for part in ("weight", "bias")
    )
    inner = tensors["talker.model.text_embedding.weight"] @ up.T + up_bias
    exact = (inner / (1 + np.exp(-inner))) @ down.T + down_bias
    assert np.array_equal(found[:TEXTS], exact.astype(np.float32))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("start", "stop"), [(0, 1), (3, 200), (127, 129), (399, 401), (400, 448), (130, 448)])
def test_a_row_has_the_same_bits_whichever_are_read_beside_it(start: int, stop: int) -> None:
    source = graph_of(str(PLACE))
    node = source.by_name["token_embd.weight"]
    whole = laid_out_values(source.checkpoint, node, 0, TEXTS + CODES)
    assert np.array_equal(laid_out_values(source.checkpoint, node, start, stop), whole[start:stop])


def test_a_conversion_says_what_it_computed_and_names_every_code(tmp_path: Path) -> None:
    made = ggferry.convert(str(PLACE), str(tmp_path / "x.gguf"))
    receipt = json.loads((tmp_path / "x.gguf.receipt.json").read_text())
    (table,) = (one for one in receipt["tensors"] if one["name"] == "token_embd.weight")
    assert (table["grade"], table["type"]) == ("computed", "F32")
    assert "[4]·silu([2]·x + [3]) + [5]" in table["computed_as"]
    assert table["from"][2] == "talker.text_projection.linear_fc1.weight"
    dropped = {one["name"]: one["reason"] for one in receipt["dropped"]}
    assert "code predictor" in dropped["talker.code_predictor.lm_head.0.weight"]
    assert "speaker encoder" in dropped["speaker_encoder.fc.weight"]
    metadata = open_gguf(str(tmp_path / "x.gguf")).metadata
    assert made is not None and metadata["qwen3tts.vocab_size"].data == TEXTS + CODES
    assert list(metadata["qwen3tts.rope.dimension_sections"].data) == [2, 2, 2, 0]
    tokens = list(metadata["tokenizer.ggml.tokens"].data)
    assert tokens[TEXTS] == "<|codec_0|>" and tokens[TEXTS + 37] == "<|codec_37|>"
    assert tokens[TEXTS + 38 :] == [
        *("<|codec_eos_token|>", "<|codec_think|>", "<|codec_nothink|>", "<|codec_think_bos|>"),
        *("<|codec_think_eos|>", "<|codec_pad|>", "<|codec_bos|>", "<|spk_vivian|>"),
        *("<|codec_language_chinese|>", "<|codec_language_english|>"),
    ]
    assert set(metadata["tokenizer.ggml.token_type"].data[TEXTS:]) == {3}
    assert metadata["tokenizer.ggml.eos_token_id"].data == TEXTS + 38
    assert metadata["tokenizer.ggml.add_eos_token"].data is False
    suppressed = list(metadata["tokenizer.ggml.suppress_tokens"].data)
    assert suppressed == [code for code in range(TEXTS, TEXTS + CODES) if code != TEXTS + 38]
    assert receipt["tokenizer"]["held_against_source"]["tokens"] == TEXTS


def with_codes(count: int) -> Callable[[dict[str, np.ndarray]], None]:
    def edit(tensors: dict[str, np.ndarray]) -> None:
        chance = np.random.default_rng(9)
        for name, width in (("talker.model.codec_embedding.weight", 0.5), ("talker.codec_head.weight", 0.25)):
            tensors[name] = (chance.standard_normal((count, 32)) * width).astype(np.float32)

    return edit


@pytest.mark.slow
def test_llama_cpp_continues_alike(tmp_path: Path) -> None:
    """It has no other number of codes than 3072, gives texts no probability, and chooses no code that is suppressed."""
    ids = {"codec_eos_token_id": 2150, "codec_bos_id": 2149, "codec_pad_id": 2148}
    model(tmp_path / "hf", with_codes(3072), vocab_size=3072, **ids)
    ggferry.convert(str(tmp_path / "hf"), str(tmp_path / "x.gguf"))
    graph, tokens = graph_of(str(tmp_path / "x.gguf")), list(TOKENS)
    assert not [note for note in graph.notes if "does not load" in note]
    (found,) = continuations(TOKENS, 5, tmp_path / "x.gguf")
    assert len(found) == 5
    for token, probability in found:
        logits = forward(graph, tokens)[-1].astype(np.float64)
        scores = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
        allowed = [*range(2048), 2150]
        assert token == TEXTS + allowed[int(scores[allowed].argmax())]
        assert probability == pytest.approx(scores[token - TEXTS], abs=1e-4)
        tokens.append(token)


@pytest.mark.slow
def test_rows_that_another_machine_rounded_otherwise_are_the_sources(tmp_path: Path) -> None:
    """A last digit of a float64 sum depends on the order of its terms, and so may the last one of float32."""
    ggferry.convert(str(PLACE), str(tmp_path / "x.gguf"))
    span = open_gguf(str(tmp_path / "x.gguf")).tensors["token_embd.weight"].spans[0]
    data = bytearray((tmp_path / "x.gguf").read_bytes())
    values = np.frombuffer(data, np.float32, 10, span.offset)
    values[3] = np.nextafter(values[3], np.float32(9))
    (tmp_path / "y.gguf").write_bytes(data)
    ggferry.verify(str(PLACE), str(tmp_path / "y.gguf"))
    values[3] *= np.float32(1 + 2.0**-19)
    (tmp_path / "y.gguf").write_bytes(data)
    with pytest.raises(GgferryError, match=r"token_embd.weight', row 0: lies further"):
        ggferry.verify(str(PLACE), str(tmp_path / "y.gguf"))


def test_what_the_publishers_class_takes_by_default_is_taken(tmp_path: Path) -> None:
    left_out = ("use_sliding_window", "sliding_window", "hidden_act", "attention_bias", "tie_word_embeddings")
    source = graph_of(str(model(tmp_path / "hf", **dict.fromkeys(left_out))))
    assert relative(np.load(PLACE / "logits.npz")["plain"], forward(source, TOKENS)) <= 2e-6
    config = model(tmp_path / "other", num_key_value_heads=None)
    assert graph_of(str(config)).sizes["n_head_kv"] == 2


@pytest.mark.slow
def test_ids_that_every_configuration_has_name_no_code(tmp_path: Path) -> None:
    folder = model(tmp_path / "hf", pad_token_id=151643, bos_token_id=7)
    config = json.loads((folder / "config.json").read_text())
    config["architectures"].append("SomethingElse")
    (folder / "config.json").write_text(json.dumps(config))
    ggferry.convert(str(folder), str(tmp_path / "x.gguf"))
    tokens = open_gguf(str(tmp_path / "x.gguf")).metadata["tokenizer.ggml.tokens"].data
    assert tokens[TEXTS + 7] == "<|codec_7|>" and tokens[TEXTS + 38] == "<|codec_eos_token|>"


def narrower(tensors: dict[str, np.ndarray]) -> None:
    name = "talker.text_projection.linear_fc2.weight"
    tensors[name] = tensors[name][:, :-1].copy()


def without_network(tensors: dict[str, np.ndarray]) -> None:
    del tensors["talker.text_projection.linear_fc1.bias"]


@pytest.mark.parametrize(
    ("edit", "changes", "words"),
    [
        (None, {"hidden_act": "gelu"}, "gelu"),
        (None, {"codec_eos_token_id": 48}, "codec_eos_token_id"),
        (None, {"codec_language_id": {"chinese": -1}}, "codec_language_id"),
        (None, {"text_hidden_size": 25}, "network"),
        (None, {"text_vocab_size": 401}, "network"),
        (None, {"rope_scaling": {"rope_type": "default"}}, "rope.dimension_sections|rope_sections|mrope_section"),
        (narrower, {}, "network"),
        (without_network, {}, "text_projection.linear_fc1.bias"),
    ],
    ids=["gelu", "end", "language", "width", "texts", "sections", "narrow", "part"],
)
def test_what_cannot_be_right_is_refused(
    edit: Callable[[dict[str, np.ndarray]], None] | None, changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(GgferryError, match=words):
        ggferry.convert(str(model(tmp_path / "hf", edit, **changes)), str(tmp_path / "x.gguf"))


@pytest.mark.slow
def test_the_table_cannot_be_taken_apart_again(tmp_path: Path) -> None:
    ggferry.convert(str(PLACE), str(tmp_path / "x.gguf"))
    for source in (tmp_path / "x.gguf", PLACE):
        with pytest.raises(GgferryError, match="what a network made of the published weights"):
            ggferry.convert(str(source), str(tmp_path / "folder"), to="safetensors")


def test_a_text_has_no_perplexity(tmp_path: Path) -> None:
    with pytest.raises(GgferryError, match="codes"):
        ggferry.compare(str(PLACE), str(PLACE), str(FIXTURES / "README.md"), context=32, chunks=1)
