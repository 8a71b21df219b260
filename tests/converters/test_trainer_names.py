"""Names and layouts of litgpt and torchtune against the tensors that their own converters made them of."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import ggferry
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.trainer_names.recognize import with_known_names
from ggferry.converters.understand import understand
from ggferry.formats import errors as e
from ggferry.formats.tensor_read import read_rows
from helpers.checkpoints import weights, write_checkpoint
from helpers.third_party_fixtures import FIXTURES

TRAINING = FIXTURES / "training"
MODELS = sorted(path for trainer in ("litgpt", "torchtune") for path in (TRAINING / trainer).iterdir())


@pytest.mark.parametrize("folder", MODELS, ids=["/".join(folder.parts[-2:]) for folder in MODELS])
def test_tensors_are_those_that_were_converted(folder: Path) -> None:
    expected = json.loads((folder / "tensors.json").read_text())
    held = with_known_names(open_checkpoint(os.fspath(folder)))
    tied = {"lm_head.weight"} - set(expected)
    assert set(held.tensors) - tied == set(expected)
    for name, (shape, digest) in expected.items():
        ref = held.tensors[name]
        middle = ref.rows // 2
        data = read_rows(held, ref, 0, middle).tobytes() + read_rows(held, ref, middle, ref.rows).tobytes()
        assert (list(ref.shape), hashlib.sha256(data).hexdigest()) == (shape, digest), name
    graph = understand(open_checkpoint(os.fspath(folder)))
    assert len(graph.nodes) > 10


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "name",
    [
        "litgpt/llama",
        "litgpt/old-llama",
        "litgpt/gemma2",
        "litgpt/old-gptneox",
        "litgpt/falcon",
        "torchtune/llama",
        "torchtune/qwen2",
        "torchtune/gemma",
        "torchtune/phi3",
    ],
)
def test_it_becomes_a_proved_gguf(tmp_path: Path, name: str) -> None:
    made = ggferry.convert(TRAINING / name, tmp_path / "x.gguf", no_vocab=True)
    assert made.receipt["verified"] == "full"
    assert made.receipt["source"]["header"]["names"] == name.partition("/")[0]
    assert any(f"{name.partition('/')[0]}'s names" in note for note in made.notes)


def changed(
    folder: Path, edit: Callable[[dict[str, Any]], Any], config: dict[str, Any], model: str = "litgpt/llama"
) -> Path:
    """A model with other tensors, and other keys in its configuration."""
    shutil.copytree(TRAINING / model, folder)
    path = next(folder.glob("*.pt*"))
    state = torch.load(path, weights_only=True)
    edit(state)
    torch.save(state, path)
    found = json.loads((folder / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps({key: value for key, value in found.items() if value is not None}))
    return folder


QKV = "transformer.h.0.attn.qkv.weight"
BAD: dict[str, tuple[Callable[[dict[str, Any]], Any], dict[str, Any], type[e.GgferryError], str]] = {
    "another class": (
        lambda s: None,
        {"architectures": ["GPTJForCausalLM"]},
        e.UnsupportedError,
        "names of this class",
    ),
    "no class": (lambda s: None, {"architectures": None}, e.MissingError, "config.json"),
    "an unknown tensor": (
        lambda s: s.update({"transformer.h.0.attn.x.weight": torch.ones(2)}),
        {},
        e.UnexpectedTensorError,
        "litgpt",
    ),
    "unmerged LoRA": (lambda s: s.update({"lm_head.lora_A": torch.ones(2)}), {}, e.UnexpectedTensorError, "litgpt"),
    "no heads": (lambda s: None, {"num_attention_heads": None}, e.MissingError, "heads"),
    "heads that do not divide": (lambda s: None, {"num_key_value_heads": 5}, e.MissingError, "heads"),
    "rows of other heads": (lambda s: s.update({QKV: torch.ones(7, 48)}), {}, e.ShapeError, "rows of"),
    "a scalar": (lambda s: s.update({QKV: torch.tensor(1.0)}), {}, e.ShapeError, "rows of"),
    "two of one name": (
        lambda s: s.update({QKV.replace("qkv", "attn"): s[QKV]}),
        {},
        e.UnexpectedTensorError,
        "duplicate tensor name",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_model_of_litgpt_is_refused(tmp_path: Path, name: str) -> None:
    edit, config, error, words = BAD[name]
    with pytest.raises(error, match=words):
        understand(open_checkpoint(os.fspath(changed(tmp_path / "x", edit, config))))


def test_a_matrix_that_is_stored_by_columns_is_the_same_model(tmp_path: Path) -> None:
    def converted(name: str, edit: Callable[[dict[str, Any]], Any]) -> bytes:
        ggferry.convert(changed(tmp_path / name, edit, {}), tmp_path / f"{name}.gguf", model_name="x", no_vocab=True)
        return (tmp_path / f"{name}.gguf").read_bytes()

    by_columns = converted("columns", lambda s: s.update({QKV: s[QKV].t().contiguous().t()}))
    assert by_columns == converted("rows", lambda s: None)


BAD_TUNE: dict[str, tuple[Callable[[dict[str, Any]], Any], dict[str, Any], type[e.GgferryError], str]] = {
    "another class": (
        lambda s: None,
        {"architectures": ["Qwen3ForCausalLM"]},
        e.UnsupportedError,
        "names of this class",
    ),
    "no class": (lambda s: None, {"architectures": None}, e.MissingError, "config.json"),
    "no heads": (lambda s: None, {"num_attention_heads": None}, e.MissingError, "heads"),
    "no pairs": (lambda s: None, {"num_attention_heads": 5}, e.ShapeError, "pairs of 5 heads"),
    "an unknown tensor": (lambda s: s.update(x=torch.ones(2)), {}, e.UnexpectedTensorError, "torchtune"),
    "LoRA": (
        lambda s: s.update({"layers.0.attn.q_proj.lora_a.weight": torch.ones(2)}),
        {},
        e.UnexpectedTensorError,
        "torchtune",
    ),
}


def test_a_part_that_is_not_there_is_named(tmp_path: Path) -> None:
    folder = changed(tmp_path / "x", lambda s: s.pop("layers.1.attn.q_proj.weight"), {}, "torchtune/phi3")
    with pytest.raises(e.MissingError, match=r"layers\.1\.self_attn\.q_proj\.weight"):
        understand(open_checkpoint(os.fspath(folder)))


def test_gemma_2_whose_norms_it_names_otherwise_than_it_applies_them_is_refused(tmp_path: Path) -> None:
    folder = changed(tmp_path / "x", lambda s: None, {"architectures": ["Gemma2ForCausalLM"]}, "torchtune/gemma")
    with pytest.raises(e.UnsupportedError, match="exchanges the norms"):
        understand(open_checkpoint(os.fspath(folder)))


@pytest.mark.parametrize("name", BAD_TUNE)
def test_what_is_no_model_of_torchtune_is_refused(tmp_path: Path, name: str) -> None:
    edit, config, error, words = BAD_TUNE[name]
    with pytest.raises(error, match=words):
        understand(open_checkpoint(os.fspath(changed(tmp_path / "x", edit, config, "torchtune/llama"))))


def numbered(folder: Path, epochs: int = 1) -> Path:
    """The model of `helpers.checkpoints` in two files an epoch, as torchtune numbered them, and a state beside."""
    write_checkpoint(folder, FIXTURES)
    os.remove(folder / "model.safetensors")
    tensors = {name: torch.from_numpy(value) for name, value in weights().items()}
    for epoch in range(epochs):
        for number in (1, 2):
            part = dict(list(tensors.items())[number - 1 :: 2])
            torch.save(part, folder / f"hf_model_{number:04}_{epoch}.pt")
    torch.save({"epoch": 0}, folder / "recipe_state.pt")
    return folder


def test_numbered_files_of_torchtune_are_one_model(tmp_path: Path) -> None:
    folder = numbered(tmp_path)
    for path in (folder, folder / "hf_model_0002_0.pt"):
        held = open_checkpoint(os.fspath(path))
        assert set(held.tensors) == set(weights())
        assert len(held.files) == 2


def test_of_several_epochs_one_is_named(tmp_path: Path) -> None:
    folder = numbered(tmp_path, 2)
    with pytest.raises(e.AmbiguousError):
        open_checkpoint(os.fspath(folder))
    assert {Path(file.path).name for file in open_checkpoint(os.fspath(folder / "hf_model_0001_1.pt")).files} == {
        "hf_model_0001_1.pt",
        "hf_model_0002_1.pt",
    }
    os.remove(folder / "hf_model_0001_1.pt")
    with pytest.raises(e.NotFoundError):
        open_checkpoint(os.fspath(folder / "hf_model_0002_1.pt"))
