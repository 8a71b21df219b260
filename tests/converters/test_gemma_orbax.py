"""Names and layouts of Google's package gemma, saved by orbax, against what its own modules compute."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ggferry
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.trainer_names.recognize import with_known_names
from ggferry.converters.understand import graph_of, understand
from ggferry.formats import errors as e
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from helpers.third_party_fixtures import FIXTURES
from helpers.tiny_models import relative

FOLDERS = sorted(path.parent for path in FIXTURES.glob("orbax/*/_METADATA"))
IDS = [5, 17, 42, 9, 3, 12, 71, 20, 9, 55, 64, 31]
LIMIT = 3e-6


def opened(folder: Path) -> Checkpoint:
    return open_checkpoint(os.fspath(folder), config=os.fspath(folder / "original"))


def bound(folder: Path) -> ModelGraph:
    return understand(opened(folder))


@pytest.mark.parametrize("folder", FOLDERS, ids=[folder.name for folder in FOLDERS])
def test_logits_are_those_of_the_package(folder: Path) -> None:
    assert relative(np.load(folder / "logits.npy"), forward(bound(folder), IDS)) <= LIMIT


@pytest.mark.sampled(2)
@pytest.mark.parametrize("folder", FOLDERS, ids=[folder.name for folder in FOLDERS])
def test_it_becomes_a_gguf_of_the_same_logits(tmp_path: Path, folder: Path) -> None:
    target, config = tmp_path / "x.gguf", os.fspath(folder / "original")
    made = ggferry.convert(folder, target, no_vocab=True, config=config)
    assert made.receipt["verified"] == "full"
    assert relative(np.load(folder / "logits.npy"), forward(graph_of(os.fspath(target)), IDS)) <= LIMIT
    dropped = {line["name"] for line in made.receipt["dropped"]}
    assert dropped == ({"opt_state.mu.scale", "step"} if folder.name == "gemma3" else set())
    assert ggferry.verify(folder, target, no_vocab=True, config=config)


def test_without_a_configuration_it_is_refused_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(e.MissingError, match=r"without its config\.json") as caught:
        ggferry.convert(FIXTURES / "orbax" / "gemma2", tmp_path / "x.gguf", no_vocab=True)
    assert "--hf-config DIR" in str(caught.value) and "\n" not in str(caught.value)


def test_a_configuration_in_the_folder_above_is_taken(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "orbax" / "gemma", tmp_path / "gemma" / "2b")
    shutil.copy(FIXTURES / "orbax" / "gemma" / "original" / "config.json", tmp_path / "gemma")
    graph = graph_of(os.fspath(tmp_path / "gemma" / "2b"))
    assert relative(np.load(FIXTURES / "orbax" / "gemma" / "logits.npy"), forward(graph, IDS)) <= LIMIT


def renamed(held: Checkpoint, names: dict[str, str]) -> Checkpoint:
    return replace(held, tensors={names.get(name, name): ref for name, ref in held.tensors.items()})


NAMES = {
    "another array": ("transformer.layer_0.attn.q_einsum.w", "transformer.layer_0.attn.x.w", "gemma's text model"),
    "no part of it": ("transformer.layer_0.attn.q_einsum.w", "transformer.x", "gemma's text model"),
    "a part of the embedder": ("transformer.layer_0.mlp.linear", "transformer.embedder.x", "gemma's text model"),
    "twice": ("transformer.layer_0.mlp.linear", "transformer.layer_00.mlp.gating_einsum.w", "."),
    "another model": ("transformer.embedder.input_embedding", "token_embedder.embedding", "not of Google's package"),
}


@pytest.mark.parametrize("case", NAMES)
def test_other_names_are_refused(case: str) -> None:
    old, new, words = NAMES[case]
    held = opened(FIXTURES / "orbax" / "gemma2")
    assert old in held.tensors
    with pytest.raises(e.GgferryError, match=words):
        with_known_names(renamed(held, {old: new}))


def test_the_vision_half_is_dropped_by_name() -> None:
    held = opened(FIXTURES / "orbax" / "gemma2")
    ref = held.tensors["transformer.final_norm.scale"]
    more = {name: replace(ref, name=name) for name in ("SigLiPFromPatches_0/a.b", "transformer.embedder.mm_x.w")}
    found = with_known_names(replace(held, tensors={**held.tensors, **more}))
    assert {drop.ref.name for drop in found.dropped} == set(more)
    assert all("vision half" in drop.reason for drop in found.dropped)


def test_another_class_and_another_width_are_refused() -> None:
    held = opened(FIXTURES / "orbax" / "gemma2")
    for changes, words in (
        ({"architectures": ["LlamaForCausalLM"]}, "this class"),
        ({"hidden_size": 7}, "hidden_size"),
    ):
        with pytest.raises(e.GgferryError, match=words):
            with_known_names(replace(held, metadata={**held.metadata, **changes}))


@pytest.mark.parametrize("part", ["attn.q_einsum.w", "attn.kv_einsum.w", "attn.attn_vec_einsum.w", "mlp.linear"])
def test_axes_of_another_number_are_an_error_of_ours(part: str) -> None:
    held = opened(FIXTURES / "orbax" / "gemma2")
    name = f"transformer.layer_0.{part}"
    ref = held.tensors[name]
    for shape in ((), (ref.elements,), (1, 1, 1, 1, ref.elements)):
        other = TensorRef(name, ref.type, shape, tuple(replace(span, shape=shape) for span in ref.spans))
        with pytest.raises(e.GgferryError, match="axes of"):
            with_known_names(replace(held, tensors={**held.tensors, name: other}))


def test_metadata_of_orbax_alone_is_named(tmp_path: Path) -> None:
    (tmp_path / "_METADATA").write_text(json.dumps({}))
    with pytest.raises(e.UnknownFormatError):
        open_checkpoint(os.fspath(tmp_path))
