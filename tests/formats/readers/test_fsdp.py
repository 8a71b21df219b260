"""verl's parts of FSDP against the tensors that PyTorch cut into them, and every way they can be wrong."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ggferry
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint as open_any
from ggferry.formats import errors as e
from ggferry.formats.readers.fsdp import open_checkpoint
from ggferry.formats.tensor_read import read_rows
from helpers.checkpoints import weights, write_checkpoint
from helpers.third_party_fixtures import FIXTURES

TRAINING = FIXTURES / "training"


@pytest.mark.parametrize("name", ["fsdp", "fsdp-ddp"])
def test_tensors_are_those_that_were_cut(name: str) -> None:
    held = open_any(os.fspath(TRAINING / name))
    assert held.container == "fsdp"
    expected = weights()
    assert list(held.tensors) == list(expected)
    for key, value in expected.items():
        ref = held.tensors[key]
        middle = ref.rows // 2
        data = read_rows(held, ref, 0, middle).tobytes() + read_rows(held, ref, middle, ref.rows).tobytes()
        assert (ref.shape, data) == (value.shape, value.tobytes())
        assert len(ref.spans) == (3 if name == "fsdp" else 2)
    assert len(held.dropped) == (0 if name == "fsdp" else 2 * len(expected))


@pytest.mark.parametrize("name", ["fsdp", "fsdp-ddp"])
def test_it_becomes_a_proved_gguf(tmp_path: Path, name: str) -> None:
    shutil.copytree(TRAINING / name, tmp_path / "actor")
    write_checkpoint(tmp_path / "actor" / "huggingface", FIXTURES)
    os.remove(tmp_path / "actor" / "huggingface" / "model.safetensors")
    (tmp_path / "actor" / "optim_world_size_3_rank_0.pt").write_bytes(b"")
    made = ggferry.convert(tmp_path / "actor", tmp_path / "x.gguf", outtype="f32")
    assert made.receipt["verified"] == "full"
    assert any("folder huggingface" in note for note in made.notes)
    assert any("optim_world_size" in note for note in made.notes)
    write_checkpoint(tmp_path / "whole", FIXTURES)
    ids = [3, 17, 42, 8]
    assert np.allclose(ggferry.forward(tmp_path / "x.gguf", ids), ggferry.forward(tmp_path / "whole", ids), atol=1e-5)


def test_a_file_means_the_checkpoint_and_a_missing_one_is_named(tmp_path: Path) -> None:
    folder = shutil.copytree(TRAINING / "fsdp", tmp_path / "x")
    assert len(open_checkpoint(os.fspath(folder / "model_world_size_3_rank_1.pt")).tensors) == 21
    os.remove(folder / "model_world_size_3_rank_1.pt")
    with pytest.raises(e.NotFoundError, match="rank_1"):
        open_checkpoint(os.fspath(folder))


def changed(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> Path:
    """The parts of three processes, those of the first as plain tensors, edited."""
    shutil.copytree(TRAINING / "fsdp", folder)
    for path in sorted(folder.iterdir()):
        state = torch.load(path, weights_only=False)
        if path.name.endswith("rank_0.pt"):
            edit(state)
        torch.save(state, path)
    return folder


KEY = "model.norm.weight"
BAD: dict[str, tuple[Callable[[dict[str, Any]], Any], type[e.GgferryError], str]] = {
    "a tensor more": (lambda s: s.update(x=torch.ones(2)), e.MissingError, "parts of x"),
    "a tensor less": (lambda s: s.pop(KEY), e.MissingError, "parts of model.norm"),
    "whole beside a part": (lambda s: s.update({KEY: torch.ones(48)}), e.InconsistentError, "parts of"),
    "too few rows": (
        lambda s: setattr(s[KEY], "_local_tensor", s[KEY]._local_tensor[:3].clone()),
        e.InconsistentError,
        "parts of",
    ),
    "no tensor": (lambda s: s.update({KEY: 3}), e.CorruptError, "not a tensor"),
    "partial sums": (
        lambda s: setattr(s[KEY]._spec, "placements", (torch.distributed.tensor.Partial(),)),
        e.UnsupportedError,
        "placements",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_parts_that_make_no_model_are_refused(tmp_path: Path, name: str) -> None:
    edit, error, words = BAD[name]
    with pytest.raises(error, match=words):
        open_checkpoint(os.fspath(changed(tmp_path / "x", edit)))


def test_other_classes_are_not_read(tmp_path: Path) -> None:
    torch.save({"x": Path("/")}, tmp_path / "model_world_size_1_rank_0.pt")
    with pytest.raises(e.UnsupportedError, match="class of x"):
        open_checkpoint(os.fspath(tmp_path))
    torch.save({"x": Callable}, tmp_path / "model_world_size_1_rank_0.pt")
    with pytest.raises(e.UnsafePickleError):
        open_checkpoint(os.fspath(tmp_path))


def test_a_cut_file_is_one_of_our_errors(tmp_path: Path) -> None:
    data = (TRAINING / "fsdp" / "model_world_size_3_rank_0.pt").read_bytes()
    for end in range(4, len(data), 4999):
        (tmp_path / "model_world_size_1_rank_0.pt").write_bytes(data[:end])
        with pytest.raises(e.GgferryError):
            open_checkpoint(os.fspath(tmp_path))
