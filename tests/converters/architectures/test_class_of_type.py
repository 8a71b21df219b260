"""Configurations that name no class: the one that the model type and the tensors decide, or a refusal that says what is
missing, and never what another family would want."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from safetensors.torch import load_file, save_file

from ggferry.converters.model_graph.class_defaults.class_of_type import class_of_type
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.understand import understand
from ggferry.formats.errors import MissingError
from helpers.sampling import one_in
from helpers.tiny_models import TINY, make, shake

pytestmark = pytest.mark.filterwarnings("ignore")
SMALL: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 80,
    "max_position_embeddings": 40,
}
T5 = {"vocab_size": 96, "d_model": 48, "d_kv": 8, "d_ff": 40, "num_layers": 2, "num_heads": 4, "pad_token_id": 0}
CLASSES: dict[str, dict[str, Any]] = {
    "BertModel": SMALL, "BertForMaskedLM": SMALL, "BertForSequenceClassification": SMALL, "XLMRobertaModel": SMALL,
    "ModernBertModel": {**SMALL, "pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3}, "T5EncoderModel": T5,
    "UMT5ForConditionalGeneration": T5, "Qwen3ForSequenceClassification": {**SMALL, "num_key_value_heads": 3},
    "Qwen3Model": {**SMALL, "num_key_value_heads": 3},
}
UNDECIDED = "no \"architectures\", and model_type "
OTHER_TYPE = ("falcon 40b, old", "falcon 7b, old")
"""Of whose published configurations these are not: their model type is another."""


def without(folder: Path, *keys: str) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in config.items() if key not in keys}))


def described(folder: Path) -> tuple[Any, ...]:
    graph = understand(open_checkpoint(str(folder)))
    values = {name: param.value for name, param in graph.hparams.items()}
    return graph.architecture.name, values, [(node.name, node.shape) for node in graph.nodes]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", one_in(2, [name for name in TINY if name not in OTHER_TYPE]))
def test_a_model_type_alone_decides_or_is_said_not_to(name: str, tmp_path: Path) -> None:
    make(name, tmp_path)
    expected = described(tmp_path)
    without(tmp_path, "architectures")
    assert described(tmp_path) == expected
    assert any("names no class" in note for note in open_checkpoint(str(tmp_path)).notes)
    without(tmp_path, "model_type")
    with pytest.raises(MissingError, match="does not say which architecture"):
        understand(open_checkpoint(str(tmp_path)))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CLASSES)
def test_the_tensors_tell_the_classes_of_a_type_apart(name: str, tmp_path: Path) -> None:
    kind = getattr(transformers, name)
    made = kind(kind.config_class(**CLASSES[name]))
    shake(made)
    made.save_pretrained(tmp_path)
    expected = described(tmp_path)
    without(tmp_path, "architectures")
    assert described(tmp_path) == expected


def test_a_gpt2_named_as_openai_named_it_makes_words(tmp_path: Path) -> None:
    make("gpt2", tmp_path)
    tensors = {name.removeprefix("transformer."): x for name, x in load_file(tmp_path / "model.safetensors").items()}
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    expected = described(tmp_path)
    without(tmp_path, "architectures")
    assert described(tmp_path) == expected
    assert "without_output" not in understand(open_checkpoint(str(tmp_path))).hparams


def test_what_several_classes_have_is_not_decided(tmp_path: Path) -> None:
    """A classifier of tokens has a head that a classifier of texts has, too, and no class of ours."""
    assert class_of_type("bert", {}, ["bert.embeddings.word_embeddings.weight", "classifier.weight"]) == (
        "BertForSequenceClassification"
    )
    assert class_of_type("gemma3_text", {}, ["model.norm.weight", "score.weight"]) is None
    assert class_of_type("exaone", {}, ["transformer.h.0.ln_1.weight"]) is None
    assert class_of_type("no such type", {}, ["model.norm.weight"]) is None
    make("phi3", tmp_path)
    without(tmp_path, "architectures")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_type": "phi99"}))
    with pytest.raises(MissingError, match="model_type phi99") as error:
        understand(open_checkpoint(str(tmp_path)))
    assert UNDECIDED in str(error.value)
