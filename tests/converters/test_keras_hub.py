"""Names, layouts and configurations of KerasHub against what its own classes compute and export."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggferry
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.trainer_names.keras_hub.configuration import configuration, context_note
from ggferry.converters.trainer_names.recognize import with_known_names
from ggferry.converters.understand import graph_of
from ggferry.formats import errors as e
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.tensor_read import read_rows
from helpers.third_party_fixtures import FIXTURES
from helpers.tiny_models import relative

KERAS = FIXTURES / "keras"
FOLDERS = sorted(path.parent for path in KERAS.glob("*/config.json"))
IDS = [5, 17, 42, 9, 3, 12, 71, 20, 9, 55, 64, 31]
LIMIT = 1e-6
CONFIGS = {folder.name: json.loads((folder / "config.json").read_text()) for folder in FOLDERS}


def data(held: Checkpoint, name: str) -> bytes:
    """The values as float32, read in two pieces."""
    ref = held.tensors[name]
    middle = ref.rows // 2 + 1
    found = b"".join(
        read_rows(held, ref, *each).tobytes() for each in ((0, middle), (middle, ref.rows)) if each[0] <= each[1]
    )
    wide = np.frombuffer(found, np.uint16).astype(np.uint32) << 16 if ref.type.name == "BF16" else None
    return found if wide is None else wide.tobytes()


@pytest.mark.parametrize("folder", FOLDERS, ids=[folder.name for folder in FOLDERS])
def test_logits_are_those_of_keras_hub(folder: Path) -> None:
    assert relative(np.load(folder / "logits.npy"), forward(graph_of(os.fspath(folder)), IDS)) <= LIMIT


@pytest.mark.parametrize("name", [path.parent.name for path in sorted(KERAS.glob("*/tensors.json"))])
def test_tensors_are_those_that_keras_hub_exports(name: str) -> None:
    expected = json.loads((KERAS / name / "tensors.json").read_text())
    held = with_known_names(open_checkpoint(os.fspath(KERAS / name)))
    assert held.tensors.keys() == expected.keys()
    for key, (shape, digest) in expected.items():
        assert list(held.tensors[key].shape) == shape, key
        assert hashlib.sha256(data(held, key)).hexdigest() == digest, key


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["gemma", "gemma3", "llama-tied", "mistral", "gpt2"])
def test_it_becomes_a_gguf_of_the_same_logits(tmp_path: Path, name: str) -> None:
    target = tmp_path / "x.gguf"
    made = ggferry.convert(KERAS / name, target, no_vocab=name != "gemma")
    assert made.receipt["verified"] in ("full", "self-consistent")
    assert relative(np.load(KERAS / name / "logits.npy"), forward(graph_of(os.fspath(target)), IDS)) <= LIMIT
    assert ggferry.verify(KERAS / name, target, no_vocab=name != "gemma")
    if name == "gemma":
        import sentencepiece

        theirs = sentencepiece.SentencePieceProcessor(str(KERAS / name / "assets" / "tokenizer" / "vocabulary.spm"))
        keys = {key: value.data for key, value in open_checkpoint(os.fspath(target)).metadata.items()}
        assert keys["gemma.context_length"] == 8192
        tokens = [theirs.id_to_piece(number) for number in range(theirs.get_piece_size())]
        assert list(keys["tokenizer.ggml.tokens"][: len(tokens)]) == tokens
        assert (keys["tokenizer.ggml.bos_token_id"], keys["tokenizer.ggml.eos_token_id"]) == (2, 1)


def test_weights_alone_are_refused_in_a_line_and_taken_with_the_original_s_configuration(tmp_path: Path) -> None:
    path = tmp_path / "raw.weights.h5"
    shutil.copy(KERAS / "llama3" / "model.weights.h5", path)
    with pytest.raises(e.MissingError, match="KerasHub without its config") as caught:
        ggferry.convert(path, tmp_path / "x.gguf", no_vocab=True)
    assert "config.json of its preset" in str(caught.value) and "\n" not in str(caught.value)
    (tmp_path / "original").mkdir()
    config = {**configuration(CONFIGS["llama3"], ""), "tie_word_embeddings": False}
    (tmp_path / "original" / "config.json").write_text(json.dumps(config))
    ggferry.convert(path, tmp_path / "x.gguf", no_vocab=True, config=os.fspath(tmp_path / "original"))
    logits = forward(graph_of(os.fspath(tmp_path / "x.gguf")), IDS)
    assert relative(np.load(KERAS / "llama3" / "logits.npy"), logits) <= LIMIT


def changed(name: str, **changes: Any) -> dict[str, Any]:
    declared = CONFIGS[name]
    return {**declared, "config": {**declared["config"], **changes}}


BAD: dict[str, tuple[dict[str, Any], type[e.GgferryError], str]] = {
    "another class": ({**CONFIGS["gemma"], "class_name": "BloomBackbone"}, e.UnsupportedError, "Bloom"),
    "a class of no name": ({**CONFIGS["gemma"], "class_name": [1]}, e.UnsupportedError, "this class"),
    "another package": ({**CONFIGS["gemma"], "registered_name": "mine>GemmaBackbone"}, e.MissingError, "no.*preset"),
    "no members": ({**CONFIGS["gemma"], "config": None}, e.MissingError, "no.*preset"),
    "half of Gemma 2": (changed("gemma", use_post_attention_norm=True), e.UnsupportedError, "use_post_attention"),
    "Gemma with caps": (changed("gemma", final_logit_soft_cap=30.0), e.UnsupportedError, "final_logit_soft_cap"),
    "Gemma scaled by width": (changed("gemma", query_head_dim_normalize=False), e.UnsupportedError, "query_head_dim"),
    "Gemma 2 without windows": (changed("gemma2", use_sliding_window_attention=False), e.UnsupportedError, "sliding"),
    "pictures": (changed("gemma3", vision_encoder={"a": 1}), e.UnsupportedError, "vision_encoder"),
    "an embedding model": (changed("gemma3", is_embedding_model=True), e.UnsupportedError, "is_embedding_model"),
    "windows of Qwen": (changed("qwen", use_sliding_window_attention=True), e.UnsupportedError, "sliding_window"),
    "two scalings": (
        changed("llama3", rope_position_scaling_factor=2.0),
        e.UnsupportedError,
        "rope_position_scaling_factor",
    ),
    "no number": (changed("gemma", intermediate_dim="80"), e.InconsistentError, "intermediate_dim"),
    "a number that is none": (changed("gemma", head_dim=0), e.InconsistentError, "head_dim"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_its_class_does_not_compute_is_refused(name: str) -> None:
    declared, error, words = BAD[name]
    with pytest.raises(error, match=words):
        configuration(declared, "config.json")


def test_what_no_fixture_says_is_carried() -> None:
    """Gemma 2 27B scores by the width, as transformers' configuration of it has it; windows, stretched positions."""
    large = changed("gemma2", query_head_dim_normalize=False, hidden_dim=4608, num_query_heads=32, head_dim=128)
    assert configuration(large, "")["query_pre_attn_scalar"] == 144
    assert configuration(changed("qwen3", sliding_window_size=64), "")["max_window_layers"] == 0
    stretched = configuration(changed("mistral", rope_scaling_factor=2.0), "")
    assert stretched["rope_scaling"] == {"rope_type": "linear", "factor": 2.0}
    assert "transformers' default" in context_note(configuration(CONFIGS["qwen"], ""))


def with_variables(folder: Path, into: Path, **names: str | None) -> Path:
    """The model with variables renamed; None: left out."""
    import h5py

    shutil.copytree(folder, into)
    with h5py.File(into / "model.weights.h5", "r+") as file:
        for old, new in names.items():
            place = old.replace("__", "/")
            if new is not None:
                file[new] = np.asarray(file[place])
            del file[place]
    return into


@pytest.mark.parametrize(
    ("model", "names", "error", "words"),
    [
        ("gemma", {"layers__rms_normalization__vars__0": "layers/x/vars/0"}, e.UnexpectedTensorError, "layers/x"),
        (
            "gemma",
            {"layers__gemma_decoder_block__ffw_linear__vars__0": "layers/gemma_decoder_block/ffw_linear/vars/9"},
            e.UnexpectedTensorError,
            "vars/9",
        ),
        (
            "gpt2",
            {"layers__transformer_decoder___self_attention_layer__key_dense__vars__0": None},
            e.MissingError,
            "without the keys",
        ),
        (
            "gemma",
            {"layers__gemma_decoder_block__ffw_linear__vars__0": "layers/gemma_decoder_block_0/ffw_linear/vars/0"},
            e.UnexpectedTensorError,
            "block_0",
        ),
    ],
)
def test_other_variables_are_named(
    tmp_path: Path, model: str, names: dict[str, str | None], error: type[e.GgferryError], words: str
) -> None:
    folder = with_variables(KERAS / model, tmp_path / "x", **names)
    with pytest.raises(error, match=words):
        with_known_names(open_checkpoint(os.fspath(folder)))


def test_axes_of_another_number_are_an_error_of_ours(tmp_path: Path) -> None:
    import h5py

    for number, shape in enumerate(((), (3,), (2, 2), (1, 2, 2, 2))):
        folder = tmp_path / str(number)
        shutil.copytree(KERAS / "gemma", folder)
        with h5py.File(folder / "model.weights.h5", "r+") as file:
            for place in ("attention/query_dense", "gating_ffw"):
                name = f"layers/gemma_decoder_block/{place}/vars/0"
                del file[name]
                file[name] = np.ones(shape, np.float32)
        with pytest.raises(e.GgferryError):
            graph_of(os.fspath(folder))
