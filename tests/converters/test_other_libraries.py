"""Names and layouts of Flax and TensorFlow against what transformers' torch classes load of the same files."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import ggferry
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.trainer_names.recognize import with_known_names
from ggferry.converters.understand import graph_of
from ggferry.formats import errors as e
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.tensor_read import read_rows
from helpers.third_party_fixtures import FIXTURES
from helpers.tiny_models import relative

MODELS = sorted(path.parent for of in ("flax", "tensorflow") for path in FIXTURES.glob(f"{of}/*/tensors.json"))
BASES = ("bert.", "roberta.", "distilbert.")
"""What stands before the names of an encoder, which TensorFlow keeps without a head, too; tables know both."""
IDS = [5, 17, 42, 99, 3, 120, 77, 200, 9, 250, 64, 31]
HALVES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
LIMIT = 3e-6


def data(held: Checkpoint, name: str) -> bytes:
    ref = held.tensors[name]
    middle = ref.rows // 2 + 1
    return b"".join(
        read_rows(held, ref, *each).tobytes() for each in ((0, middle), (middle, ref.rows)) if each[0] <= each[1]
    )


@pytest.mark.parametrize("folder", MODELS, ids=["/".join(folder.parts[-2:]) for folder in MODELS])
def test_tensors_are_those_that_the_torch_class_loads(folder: Path) -> None:
    """Values, bit by bit, and what the Flax class itself computes."""
    expected = json.loads((folder / "tensors.json").read_text())
    held = with_known_names(open_checkpoint(os.fspath(folder)))
    base = next((base for base in BASES if all(name.startswith(base) for name in held.tensors)), "")
    expected = {name if name.startswith(base) else base + name: value for name, value in expected.items()}
    assert set(held.tensors) == set(expected)
    for name, (shape, kind, digest) in expected.items():
        ref = held.tensors[name]
        assert (list(ref.shape), ref.type.name) == (shape, HALVES[kind]), name
        assert hashlib.sha256(data(held, name)).hexdigest() == digest, name
    graph, theirs = graph_of(os.fspath(folder)), np.load(folder / "logits.npy")
    if graph.architecture.name != "whisper":  # which is given sound
        assert relative(theirs, forward(graph, IDS)[: len(theirs)]) <= LIMIT


def test_pieces_of_matrices_and_shards_are_among_them() -> None:
    pieces = {"/".join(folder.parts[-2:]): with_known_names(open_checkpoint(os.fspath(folder))) for folder in MODELS}
    for name in ("flax/gptneo", "flax/t5"):
        cut = [ref for ref in pieces[name].tensors.values() if len(ref.spans) > 1]
        assert any(ref.spans[0].strides and len(ref.shape) == 2 for ref in cut), name
        assert any(ref.spans[0].strides is None for ref in cut), name
    assert (len(pieces["flax/llama"].files), len(pieces["tensorflow/mistral"].files)) == (3, 4)


def as_torch(folder: Path, into: Path) -> Path:
    """The same model as a checkpoint of torch: its tensors have been shown to be those that transformers loads."""
    import ml_dtypes

    held = with_known_names(open_checkpoint(os.fspath(folder)))
    kinds = {"BF16": ml_dtypes.bfloat16, "F16": np.float16, "F32": np.float32}
    into.mkdir()
    tensors = {
        name: np.frombuffer(data(held, name), kinds[ref.type.name]).reshape(ref.shape)
        for name, ref in held.tensors.items()
    }
    save_file(tensors, into / "model.safetensors", {"format": "pt"})
    shutil.copy(folder / "config.json", into)
    return into


def tensors_of(path: Path) -> dict[str, bytes]:
    with ggferry.open_model(path) as model:
        return {name: model.tensor(name).tobytes() for name in model.tensors}


def keys_of(path: Path) -> dict[str, object]:
    """All keys but those that a name of a folder becomes."""
    found = open_checkpoint(os.fspath(path)).metadata
    return {key: value for key, value in found.items() if key not in ("general.name", "general.basename")}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name",
    [
        "flax/bert",
        "flax/llama",
        "flax/t5",
        "flax/gpt2",
        "flax/whisper",
        "tensorflow/bert-mlm",
        "tensorflow/t5-tied",
        "tensorflow/mistral",
        "tensorflow/distilbert",
    ],
)
def test_it_becomes_the_gguf_of_the_torch_checkpoint(tmp_path: Path, name: str) -> None:
    plain = as_torch(FIXTURES / name, tmp_path / "model")
    ggferry.convert(plain, tmp_path / "plain.gguf", no_vocab=True)
    made = ggferry.convert(FIXTURES / name, tmp_path / "made.gguf", no_vocab=True)
    assert tensors_of(tmp_path / "made.gguf") == tensors_of(tmp_path / "plain.gguf")
    assert made.receipt["verified"] == "full"
    assert keys_of(tmp_path / "made.gguf") == keys_of(tmp_path / "plain.gguf")
    assert ggferry.verify(FIXTURES / name, tmp_path / "made.gguf", no_vocab=True)


def test_the_states_of_a_training_are_named_as_dropped(tmp_path: Path) -> None:
    """A TrainState of flax.training with Adam's moments holds the model of the folder beside it."""
    held = open_checkpoint(os.fspath(FIXTURES / "flax" / "train-state" / "checkpoint_0"))
    other = open_checkpoint(os.fspath(FIXTURES / "flax" / "bert"))
    assert {name: data(held, name) for name in held.tensors} == {name: data(other, name) for name in other.tensors}
    assert len(held.dropped) == 1 + 2 * len(held.tensors)
    assert {drop.ref.name for drop in held.dropped} >= {"opt_state/0/count", "opt_state/0/mu/pooler/dense/kernel"}
    assert all("of the training" in drop.reason for drop in held.dropped)
    assert "not tensors, left out: step" in held.notes
    source = FIXTURES / "flax" / "train-state" / "checkpoint_0"
    made = ggferry.convert(source, tmp_path / "x.gguf", no_vocab=True, config=os.fspath(FIXTURES / "flax" / "bert"))
    assert made.receipt["verified"] == "full"


def test_safetensors_in_the_folder_are_taken_first(tmp_path: Path) -> None:
    folder = as_torch(FIXTURES / "flax" / "bert", tmp_path / "both")
    shutil.copy(FIXTURES / "flax" / "bert" / "flax_model.msgpack", folder)
    held = open_checkpoint(os.fspath(folder))
    assert held.container == "safetensors"
    assert any("flax_model.msgpack is in the folder too" in note for note in held.notes)


def test_a_variable_of_several_layers_is_taken_once(tmp_path: Path) -> None:
    """T5's embedding stands under its own layer, the encoder and the decoder: its copies are compared, then dropped."""
    source = FIXTURES / "tensorflow" / "t5-tied"
    made = ggferry.convert(source, tmp_path / "x.gguf", no_vocab=True)
    copies = [line for line in made.receipt["dropped"] if line["reason"] == "the same variable under another layer"]
    assert {line["name"] for line in copies} == {f"{part}/shared/shared/embeddings:0" for part in ("encoder", "shared")}
    shutil.copytree(source, tmp_path / "other")
    held = open_checkpoint(os.fspath(source))
    at = held.tensors["shared/shared/shared/embeddings:0"].spans[0].offset
    with (tmp_path / "other" / "tf_model.h5").open("r+b") as file:
        file.seek(at)
        file.write(bytes(4))
    with pytest.raises(e.GgferryError, match="embeddings"):
        ggferry.convert(tmp_path / "other", tmp_path / "y.gguf", no_vocab=True)


def test_two_names_that_become_one_are_refused(tmp_path: Path) -> None:
    import msgpack

    body = msgpack.packb([[2], "float32", bytes(8)])
    leaf = msgpack.ExtType(1, body)
    path = tmp_path / "flax_model.msgpack"
    path.write_bytes(msgpack.packb({"a": {"kernel": leaf, "scale": leaf}}))
    with pytest.raises(e.UnexpectedTensorError, match="duplicate tensor name"):
        with_known_names(open_checkpoint(os.fspath(path)))
