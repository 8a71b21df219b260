"""Checkpoints of Megatron-core and NeMo against the logits that megatron-core computed with the same weights."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from argparse import Namespace
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ggferry
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.trainer_names.recognize import with_known_names
from ggferry.converters.understand import understand
from ggferry.formats import errors as e
from ggferry.formats.checkpoint_folder.trainer_folders import iteration_folder
from helpers.checkpoints import MEGATRON_LLAMA as LLAMA
from helpers.third_party_fixtures import FIXTURES

MEGATRON = FIXTURES / "training" / "megatron"
MODELS = sorted(path.name for path in MEGATRON.iterdir())


def apart(path: Path, name: str) -> float:
    """The greatest difference of logits from megatron-core's, relative to the greatest of these."""
    expected = np.load(MEGATRON / name / "expected.npz")
    found = ggferry.forward(path, expected["ids"].tolist())
    return float(np.abs(found - expected["logits"]).max() / np.abs(expected["logits"]).max())


@pytest.mark.parametrize("kind", ["torch", "torch_dist"])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_computes_what_megatron_core_computes(name: str, kind: str) -> None:
    assert apart(MEGATRON / name / kind, name) < 2e-5


def test_a_conversion_is_proved_and_names_what_is_of_the_training(tmp_path: Path) -> None:
    made = ggferry.convert(MEGATRON / "llama" / "torch", tmp_path / "x.gguf", no_vocab=True, outtype="bf16")
    assert made.receipt["verified"] == "full"
    assert made.receipt["source"]["header"]["names"] == "Megatron-core"
    reasons = {each["reason"] for each in made.receipt["dropped"]}
    assert reasons == {"state of the training, not of the model", "the same in every process that has it"}
    assert any("pad the vocabulary" in note for note in made.notes)
    expected = np.load(MEGATRON / "llama" / "expected.npz")
    found = ggferry.forward(tmp_path / "x.gguf", expected["ids"].tolist())
    assert np.abs(found - expected["logits"]).max() < 1e-4 * np.abs(expected["logits"]).max()


@pytest.mark.parametrize("name", ["torch/iter_0000007", "torch/iter_0000007/mp_rank_01_001/model_optim_rng.pt"])
def test_any_of_its_files_means_the_checkpoint(name: str) -> None:
    held = open_checkpoint(os.fspath(MEGATRON / "llama" / name))
    assert (held.container, len(held.tensors), len(held.header["parts"])) == ("megatron", 30, 4)


def test_configuration_beside_it_wins(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "architectures": ["MistralForCausalLM"]}))
    held = open_checkpoint(os.fspath(MEGATRON / "llama" / "torch"), config=os.fspath(tmp_path))
    graph = understand(held)
    assert graph.checkpoint.metadata["architectures"] == ["MistralForCausalLM"]
    assert graph.checkpoint.metadata["vocab_size"] == 90


# --- NeMo: the parts as its save_restore_connector lays them -----------------------------------


def archived(path: Path, parts: dict[str, Any], mode: str = "w:") -> Path:
    """A `.nemo` file of these parts, by Python's own tar module, as NeMo calls it: names begin with `./`."""
    inside = path.parent / "inside"
    for folder, state in parts.items():
        (inside / folder).mkdir(parents=True, exist_ok=True)
        torch.save(state, inside / folder / "model_weights.ckpt")
    (inside / "model_config.yaml").write_text("num_layers: 2\n")
    with tarfile.open(path, mode) as tar:
        tar.add(inside, arcname=".")
    (path.parent / "config.json").write_text(json.dumps({**LLAMA, "vocab_size": 100}))
    return path


def parts_of_llama() -> dict[str, Any]:
    states = {}
    for tensor, pipe in product(range(2), range(2)):
        part = MEGATRON / "llama" / "torch" / "iter_0000007" / f"mp_rank_{tensor:02}_{pipe:03}" / "model_optim_rng.pt"
        state = torch.load(part, weights_only=False)["model"]
        states[f"tp_rank_{tensor:02}_pp_rank_{pipe:03}"] = {f"model.{name}": value for name, value in state.items()}
    return states


@pytest.mark.parametrize("mode", ["w:", "w:gz"])
def test_a_nemo_file_computes_the_same(mode: str, tmp_path: Path) -> None:
    assert apart(archived(tmp_path / "x.nemo", parts_of_llama(), mode), "llama") < 2e-5


def test_a_nemo_file_of_one_part_and_nemo_2_compute_the_same(tmp_path: Path) -> None:
    whole = with_known_names(open_checkpoint(os.fspath(MEGATRON / "llama" / "torch_dist")))
    assert len(whole.tensors) == 21
    shutil.copytree(MEGATRON / "llama" / "torch_dist" / "iter_0000007", tmp_path / "nemo2" / "weights")
    (tmp_path / "nemo2" / "context").mkdir()
    assert apart(tmp_path / "nemo2", "llama") < 2e-5


@pytest.mark.parametrize(
    ("parts", "error", "words"),
    [
        ({"model_weights": {}}, e.UnsupportedError, "many files"),
        ({"other": {}}, e.MissingError, "no weights"),
    ],
)
def test_other_archives_of_nemo_are_refused(
    tmp_path: Path, parts: dict[str, Any], error: type[e.GgferryError], words: str
) -> None:
    with pytest.raises(error, match=words):
        open_checkpoint(os.fspath(archived(tmp_path / "x.nemo", parts)))


def test_a_cut_archive_is_one_of_our_errors(tmp_path: Path) -> None:
    whole = archived(tmp_path / "x.nemo", parts_of_llama()).read_bytes()
    for end in (*range(512, 4096, 97), *range(4096, len(whole) - 10240, 9973)):
        (tmp_path / "cut.nemo").write_bytes(whole[:end])
        with pytest.raises(e.GgferryError):
            open_checkpoint(os.fspath(tmp_path / "cut.nemo"))


def test_a_flipped_byte_of_a_header_of_the_archive_is_seen(tmp_path: Path) -> None:
    whole = bytearray(archived(tmp_path / "x.nemo", parts_of_llama()).read_bytes())
    for place in (2, 130, 160):  # the name, the size, what kind of member it is
        wrong = whole.copy()
        wrong[place] ^= 1
        (tmp_path / "wrong.nemo").write_bytes(wrong)
        with pytest.raises(e.CorruptError):
            open_checkpoint(os.fspath(tmp_path / "wrong.nemo"))


# --- what is no such model ---------------------------------------------------------------------


def changed(folder: Path, edit: Callable[[dict[str, Any], Namespace], Any], only: str = "mp_rank_00_000") -> Path:
    """The model `llama` in parts, with a part and its arguments changed."""
    shutil.copytree(MEGATRON / "llama" / "torch", folder)
    for part in sorted(folder.glob("iter_0000007/mp_rank_*/model_optim_rng.pt")):
        held = torch.load(part, weights_only=False)
        state = held["model"] if part.parent.name == only else {}
        edit(state, held["args"])
        torch.save(held, part)
    return folder


QKV, UP = "decoder.layers.0.self_attention.linear_qkv.weight", "decoder.layers.0.mlp.linear_fc1.weight"
BAD: dict[str, tuple[Callable[[dict[str, Any], Namespace], Any], type[e.GgferryError], str]] = {
    "ways": (lambda s, a: setattr(a, "tensor_model_parallel_size", 4), e.MissingError, "parts of tensor ranks"),
    "experts otherwise": (lambda s, a: setattr(a, "expert_tensor_parallel_size", 1), e.UnsupportedError, "expert"),
    "attention": (lambda s, a: setattr(a, "multi_latent_attention", True), e.UnsupportedError, "multi-latent"),
    "pairs": (lambda s, a: setattr(a, "rotary_interleaved", True), e.UnsupportedError, "rotary-interleaved"),
    "no class": (lambda s, a: setattr(a, "add_bias_linear", True), e.UnsupportedError, "no model class"),
    "in part": (lambda s, a: setattr(a, "rotary_percent", 0.5), e.UnsupportedError, "part of each head"),
    "no number": (lambda s, a: setattr(a, "rotary_base", "x"), e.MissingError, "rotary-base"),
    "no sizes": (lambda s, a: setattr(a, "hidden_size", None), e.MissingError, "hidden-size"),
    "heads": (lambda s, a: setattr(a, "num_attention_heads", 6), e.ShapeError, "rows of"),
    "odd heads": (lambda s, a: setattr(a, "num_query_groups", 3), e.MissingError, "heads of the model"),
    "unknown": (lambda s, a: s.update(x=torch.ones(2)), e.UnexpectedTensorError, "unknown"),
    "unknown in a block": (
        lambda s, a: s.update({"decoder.layers.0.x.weight": torch.ones(2)}),
        e.UnexpectedTensorError,
        "unknown",
    ),
    "a part lacks one": (lambda s, a: s.pop(QKV, None), e.MissingError, "parts of decoder"),
    "another shape": (lambda s, a: s.update({QKV: torch.ones(32, 7).bfloat16()} if s else {}), e.ShapeError, "beside"),
    "odd halves": (lambda s, a: s.update({UP: torch.ones(3, 32).bfloat16()} if s else {}), e.InconsistentError, "rows"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_model_of_megatron_is_refused(tmp_path: Path, name: str) -> None:
    edit, error, words = BAD[name]
    with pytest.raises(error, match=words):
        understand(open_checkpoint(os.fspath(changed(tmp_path / "x", edit))))


def test_norms_less_one_are_no_llama(tmp_path: Path) -> None:
    folder = changed(tmp_path / "x", lambda state, args: setattr(args, "apply_layernorm_1p", True))
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    with pytest.raises(e.UnsupportedError, match="less one"):
        understand(open_checkpoint(os.fspath(folder), config=os.fspath(tmp_path)))


def test_other_classes_missing_parts_and_virtual_stages_are_refused(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**LLAMA, "architectures": ["GemmaForCausalLM"]}))
    with pytest.raises(e.UnsupportedError, match="names of this class"):
        understand(open_checkpoint(os.fspath(MEGATRON / "llama" / "torch"), config=os.fspath(config)))
    folder = changed(tmp_path / "x", lambda state, args: None)
    shutil.rmtree(folder / "iter_0000007" / "mp_rank_01_001")
    with pytest.raises(e.MissingError, match="a part of the model"):
        understand(open_checkpoint(os.fspath(folder)))
    part = folder / "iter_0000007" / "mp_rank_00_000" / "model_optim_rng.pt"
    torch.save({"model0": {}, "model1": {}}, part)
    with pytest.raises(e.UnsupportedError, match="virtual stages"):
        open_checkpoint(os.fspath(folder))


@pytest.mark.parametrize(
    ("text", "error"), [("8", e.NotFoundError), ("x/..", e.InconsistentError), (b"\xff", e.EncodingError)]
)
def test_a_tracker_that_leads_nowhere_is_refused(
    tmp_path: Path, text: str | bytes, error: type[e.GgferryError]
) -> None:
    tracker = tmp_path / "latest_checkpointed_iteration.txt"
    tracker.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(error):
        iteration_folder(os.fspath(tmp_path))
