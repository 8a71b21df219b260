"""A class that no table lists: the message says why, or what comes nearest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from ggferry.converters.model_graph.open_checkpoint import architectures, open_checkpoint
from ggferry.converters.supported import coverage
from ggferry.converters.understand import understand
from ggferry.converters.unsupported_classes import REASONS
from ggferry.formats.errors import UnsupportedError
from helpers.tiny_models import make

pytestmark = pytest.mark.filterwarnings("ignore")


def named(folder: Path, name: str, **more: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"architectures": [name]} | more))


def said(folder: Path) -> str:
    with pytest.raises(UnsupportedError) as caught:
        understand(open_checkpoint(str(folder)))
    assert caught.value.exit_code == 4 and "\n" not in str(caught.value)
    return str(caught.value)


def test_it_names_the_nearest_family_and_what_differs(tmp_path: Path) -> None:
    make("qwen3", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors |= {f"model.layers.{n}.strange.weight": tensors["model.norm.weight"] for n in range(3)}
    save_file({name: x.clone() for name, x in tensors.items()}, tmp_path / "model.safetensors")
    named(tmp_path, "Qwen33ForCausalLM", odd_key=3)
    text = said(tmp_path)
    assert "Qwen3ForCausalLM" in text and "14 of 15 kinds of tensors are qwen3's" in text
    assert "not so model.layers.{}.strange.weight" in text and "keys it does not read: odd_key" in text


def test_nothing_is_near_to_what_is_unlike_everything(tmp_path: Path) -> None:
    make("qwen3", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({f"odd.{name}": x.clone() for name, x in tensors.items()}, tmp_path / "model.safetensors")
    named(tmp_path, "Zzz")
    text = said(tmp_path)
    assert "found Zzz" in text and "kinds of" not in text and "docs/tables.md" in text


def test_a_reason_is_given_where_there_is_one(tmp_path: Path) -> None:
    make("qwen3", tmp_path)
    named(tmp_path, "UltravoxModel")
    assert "its text model is a checkpoint of its own" in said(tmp_path)


def test_no_class_that_is_read_has_a_reason_not_to_be() -> None:
    assert set(REASONS) & {name for spec in architectures().values() for name in spec.hf_classes} == set()
    assert dict(coverage(["UltravoxModel", "LlamaForCausalLM", "Zzz"]).reasons).keys() == {"UltravoxModel"}


def test_of_families_as_near_the_one_that_the_configuration_names_is_named(tmp_path: Path) -> None:
    """Several have LLaMA's names."""
    make("llama", tmp_path)
    named(tmp_path, "OddForCausalLM")
    assert "kinds of tensors are llama's" in said(tmp_path)


@pytest.mark.parametrize("name", ["LlamaForSequenceClassification", "BertForTokenClassification"])
def test_heads_without_a_graph_are_called_so(name: str, tmp_path: Path) -> None:
    make("llama", tmp_path)
    named(tmp_path, name)
    assert "classifier" in said(tmp_path) and name in said(tmp_path)
