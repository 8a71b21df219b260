"""litgpt's names and layouts against the tensors that its own script made them of."""

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
from helpers.third_party_fixtures import FIXTURES

MODELS = sorted((FIXTURES / "training" / "litgpt").iterdir())


@pytest.mark.parametrize("folder", MODELS, ids=[folder.name for folder in MODELS])
def test_tensors_are_those_that_litgpt_converted(folder: Path) -> None:
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


@pytest.mark.parametrize("name", ["llama", "old-llama", "gemma2", "old-gptneox", "falcon"])
def test_it_becomes_a_proved_gguf(tmp_path: Path, name: str) -> None:
    folder = FIXTURES / "training" / "litgpt" / name
    made = ggferry.convert(folder, tmp_path / "x.gguf", no_vocab=True)
    assert made.receipt["verified"] == "full"
    assert any("litgpt's names" in note for note in made.notes)


def changed(folder: Path, edit: Callable[[dict[str, Any]], Any], config: dict[str, Any] | None = None) -> Path:
    """The model llama with other tensors, and other keys in its configuration."""
    shutil.copytree(FIXTURES / "training" / "litgpt" / "llama", folder)
    state = torch.load(folder / "lit_model.pth", weights_only=True)
    edit(state)
    torch.save(state, folder / "lit_model.pth")
    found = json.loads((folder / "config.json").read_text()) | (config or {})
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
    "strides": (lambda s: s.update({QKV: torch.ones(48, 96).t()}), {}, e.UnsupportedError, "pieces"),
    "a scalar": (lambda s: s.update({QKV: torch.tensor(1.0)}), {}, e.ShapeError, "rows of"),
    "two of one name": (
        lambda s: s.update({QKV.replace("qkv", "attn"): s[QKV]}),
        {},
        e.UnexpectedTensorError,
        "one name",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_model_of_litgpt_is_refused(tmp_path: Path, name: str) -> None:
    edit, config, error, words = BAD[name]
    with pytest.raises(error, match=words):
        understand(open_checkpoint(os.fspath(changed(tmp_path / "x", edit, config))))
