"""torch.distributed.checkpoint: what torch itself writes and gathers, and every way a folder of it can be wrong."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import shutil
import struct
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

import ggferry
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint as open_any
from ggferry.converters.understand import graph_of
from ggferry.formats import errors as e
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.reader import find_reader
from ggferry.formats.readers.dcp import open_checkpoint
from ggferry.formats.tensor_read import read_rows
from helpers.checkpoints import CONFIG, weights, write_checkpoint
from helpers.third_party_fixtures import FIXTURES
from helpers.tiny import TOKENS
from helpers.tiny_models import make, relative

FOUR = FIXTURES / "training" / "dcp"


def values(held: Checkpoint, name: str) -> bytes:
    ref = held.tensors[name]
    middle = ref.rows // 2 + 1
    return b"".join(
        read_rows(held, ref, *each).tobytes() for each in ((0, middle), (middle, ref.rows)) if middle <= ref.rows
    )


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def save(state: dict[str, Any], folder: Path) -> Path:
    with pytest.warns(UserWarning, match="torch.distributed"):
        dcp.save(state, checkpoint_id=os.fspath(folder), no_dist=True)
    return folder


def test_four_processes_pieces_are_the_tensors_that_torch_gathers(tmp_path: Path) -> None:
    dcp_to_torch_save(FOUR, tmp_path / "all.pt")
    gathered = torch.load(tmp_path / "all.pt", weights_only=True)["model"]
    reader, match = find_reader(os.fspath(FOUR))
    assert match.container == "dcp"
    held = reader.open(os.fspath(FOUR), ())
    assert set(held.tensors) == set(gathered) == set(weights())
    cut = {len(ref.spans) for ref in held.tensors.values()}
    assert cut == {1, 2, 4}
    for name, tensor in gathered.items():
        assert values(held, name) == bytes_of(tensor) == weights()[name].tobytes()
        rows = held.tensors[name].rows
        assert all(
            read_rows(held, held.tensors[name], first, first + 1).tobytes()
            == weights()[name].reshape(rows, -1)[first].tobytes()
            for first in range(0, rows, 7)
        )
    assert {drop.ref.name for drop in held.dropped} >= {
        "rng",
        "optim.state.model.layers.0.input_layernorm.weight.exp_avg",
    }
    assert all("of the training" in drop.reason for drop in held.dropped)
    assert any("lr_scheduler.last_epoch" in note for note in held.notes)
    assert held.checksums


@pytest.mark.parametrize("name", ["", ".metadata", "__2_0.distcp"])
def test_any_of_its_files_means_the_checkpoint(name: str) -> None:
    held = open_any(os.fspath(FOUR / name))
    assert (held.container, len(held.tensors), len(held.files)) == ("dcp", len(weights()), 5)


def tensors_of(path: Path) -> dict[str, Any]:
    with ggferry.open_model(path) as model:
        return {name: model.tensor(name).tobytes() for name in model.tensors}


@pytest.mark.slow
def test_it_becomes_the_gguf_of_the_same_weights(tmp_path: Path) -> None:
    plain = write_checkpoint(tmp_path / "plain", FIXTURES)
    ggferry.convert(plain, tmp_path / "plain.gguf")
    ggferry.convert(FOUR, tmp_path / "dcp.gguf", config=os.fspath(plain))
    assert tensors_of(tmp_path / "dcp.gguf") == tensors_of(tmp_path / "plain.gguf")
    receipt = json.loads((tmp_path / "dcp.gguf.receipt.json").read_text())
    assert (receipt["verified"], receipt["source"]["container"]) == ("full", "dcp")
    assert {line["reason"] for line in receipt["dropped"]} == {"state of the training, not of the model"}
    assert ggferry.verify(FOUR, tmp_path / "dcp.gguf", config=os.fspath(plain))


def test_a_configuration_in_the_folder_above_is_its_own(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, FIXTURES)
    os.remove(tmp_path / "model.safetensors")
    shutil.copytree(FOUR, tmp_path / "pytorch_model_fsdp_0")
    held = open_any(os.fspath(tmp_path / "pytorch_model_fsdp_0"))
    assert held.metadata["architectures"] == CONFIG["architectures"]
    with pytest.raises(e.UsageError):
        open_any(os.fspath(tmp_path / "pytorch_model_fsdp_0"), config=os.fspath(tmp_path))


def test_logits_are_those_of_transformers(tmp_path: Path) -> None:
    expected = make("llama", tmp_path / "hf")
    state = load_file(tmp_path / "hf" / "model.safetensors")
    folder = save({"model": state}, tmp_path / "hf" / "step-3")
    graph = graph_of(os.fspath(folder))
    assert relative(expected, forward(graph, TOKENS)) < 1e-5


def test_a_file_that_is_a_link_elsewhere_is_refused(tmp_path: Path) -> None:
    shutil.copytree(FOUR, tmp_path / "dcp")
    shutil.move(tmp_path / "dcp" / "__1_0.distcp", tmp_path / "x.distcp")
    (tmp_path / "dcp" / "__1_0.distcp").symlink_to(tmp_path / "x.distcp")
    with pytest.raises(e.RefusedError, match="link leads out"):
        open_any(os.fspath(tmp_path / "dcp"))


# --- what trainers make of it -------------------------------------------------------------------

W, V = torch.arange(12.0).reshape(3, 4), torch.arange(5, dtype=torch.bfloat16)
STATES: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "a model alone": ({"a.weight": W, "b": V}, ["a.weight", "b"], []),
    "accelerate": ({"model": {"a.weight": W}}, ["a.weight"], []),
    "the tutorial": (
        {"app": {"model": {"a.weight": W}, "optim": {"state": {}, "param_groups": [{"lr": 1}]}}},
        ["a.weight"],
        [],
    ),
    "torchtitan": (
        {"a.weight": W, "optimizer": {"state.a.weight.exp_avg": V, "param_groups.a.weight.lr": 0.1}, "train_state": 3},
        ["a.weight"],
        ["optimizer.state.a.weight.exp_avg"],
    ),
    "beside random numbers": ({"model": {"a": W}, "rng": V}, ["a"], ["rng"]),
    "compiled, under DDP": ({"model": {"module._orig_mod.a._fsdp_wrapped_module.weight": W}}, ["a.weight"], []),
}


@pytest.mark.parametrize("name", STATES)
def test_the_model_is_told_from_the_rest(tmp_path: Path, name: str) -> None:
    state, tensors, dropped = STATES[name]
    held = open_checkpoint(os.fspath(save(state, tmp_path)))
    assert (list(held.tensors), [drop.ref.name for drop in held.dropped]) == (tensors, dropped)
    assert values(held, tensors[0]) == bytes_of(W)


def test_strides_scalars_and_empty_tensors(tmp_path: Path) -> None:
    state = {
        "t": W.t(),
        "s": torch.tensor(3.0),
        "e": torch.zeros(0, 4),
        "w": torch.arange(60.0).reshape(3, 4, 5)[:, 1:3],
    }
    held = open_checkpoint(os.fspath(save(state, tmp_path)))
    for name, tensor in state.items():
        assert held.tensors[name].shape == tuple(tensor.shape)
        assert values(held, name) == bytes_of(tensor)


# --- pieces as no process lays them, written by hand -------------------------------------------------------------


def chunked(
    folder: Path, tensor: torch.Tensor, cuts: list[list[int]], edit: Callable[[Metadata], None] | None = None
) -> Path:
    """A checkpoint of one tensor 'w', cut before these indices along each axis."""
    folder.mkdir(exist_ok=True)
    edges = [[0, *cut, size] for cut, size in zip(cuts, tensor.shape, strict=True)]
    chunks, stored, blob = [], {}, b""
    for where in product(*(range(len(edge) - 1) for edge in edges)):
        at = torch.Size(edge[i] for edge, i in zip(edges, where, strict=True))
        size = torch.Size(edge[i + 1] - edge[i] for edge, i in zip(edges, where, strict=True))
        out = io.BytesIO()
        torch.save(tensor[tuple(slice(a, a + s) for a, s in zip(at, size, strict=True))].clone(), out)
        chunks.append(ChunkStorageMetadata(at, size))
        stored[MetadataIndex("w", at)] = _StorageInfo("__0_0.distcp", len(blob), len(out.getvalue()))
        blob += out.getvalue()
    properties = TensorProperties(dtype=tensor.dtype)
    made = Metadata({"w": TensorStorageMetadata(properties, tensor.shape, chunks)}, {"w": ("w",)}, stored)
    if edit is not None:
        edit(made)
    (folder / "__0_0.distcp").write_bytes(blob)
    (folder / ".metadata").write_bytes(pickle.dumps(made))
    return folder


@pytest.mark.parametrize(
    ("shape", "cuts"),
    [
        ((7, 9), [[3], [2, 5]]),
        ((4, 5, 6), [[1, 2], [], []]),
        ((4, 5, 6), [[2], [1, 4], [5]]),
        ((2, 3, 4, 5), [[1], [], [2], []]),
        ((2, 3, 4, 5), [[1], [2], [1, 3], [1]]),
        ((11,), [[3, 8]]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int8])
def test_pieces_of_any_cut(tmp_path: Path, shape: tuple[int, ...], cuts: list[list[int]], dtype: torch.dtype) -> None:
    tensor = torch.arange(int(np.prod(shape))).reshape(shape).to(dtype)
    held = open_checkpoint(os.fspath(chunked(tmp_path, tensor, cuts)))
    ref, width = held.tensors["w"], shape[-1]
    for first, last in ((0, ref.rows), (0, 1), (ref.rows - 1, ref.rows), (ref.rows // 3, ref.rows * 2 // 3)):
        assert read_rows(held, ref, first, last).tobytes() == bytes_of(tensor.reshape(-1, width)[first:last])


# --- bad ones ---------------------------------------------------------------------------------


def _info(made: Metadata, number: int = 0) -> _StorageInfo:
    return list(made.storage_data.values())[number]


def _entry(made: Metadata) -> Any:
    return made.state_dict_metadata["w"]


def _set(found: Any, name: str, value: Any) -> None:
    found.__dict__[name] = value


def _add(made: Metadata, keys: tuple[str, ...]) -> None:
    """Add an entry that is no tensor under these keys."""
    made.state_dict_metadata["v"] = BytesStorageMetadata()
    made.planner_data["v"] = keys


BAD: dict[str, tuple[Callable[[Metadata], None], type[e.GgferryError], str]] = {
    "a piece missing": (lambda m: _entry(m).chunks.pop(), e.InconsistentError, "do not cover"),
    "a piece twice": (lambda m: _entry(m).chunks.append(_entry(m).chunks[0]), e.InconsistentError, "do not cover"),
    "pieces that overlap": (
        lambda m: _set(_entry(m).chunks[1], "offsets", torch.Size((0, 0))),
        e.InconsistentError,
        "do not cover",
    ),
    "a piece outside": (
        lambda m: _set(_entry(m).chunks[1], "sizes", torch.Size((99, 4))),
        e.InconsistentError,
        "a piece of w",
    ),
    "a piece of another shape": (
        lambda m: (
            [_set(c, "sizes", torch.Size((2, 4))) for c in _entry(m).chunks]
            and _set(_entry(m), "size", torch.Size((6, 4)))
        ),
        e.GgferryError,
        "w",
    ),
    "another type": (lambda m: _set(_entry(m).properties, "dtype", torch.float16), e.InconsistentError, "a piece of w"),
    "a type not carried": (
        lambda m: _set(_entry(m).properties, "dtype", torch.complex64),
        e.UnsupportedTypeError,
        "complex64",
    ),
    "no place": (lambda m: m.storage_data.popitem(), e.MissingError, "no place"),
    "a file elsewhere": (lambda m: _set(_info(m), "relative_path", "../x.distcp"), e.OutOfRangeError, "outside"),
    "a file that is not there": (lambda m: _set(_info(m), "relative_path", "__9_0.distcp"), e.NotFoundError, "missing"),
    "beyond the end": (lambda m: _set(_info(m), "offset", 1 << 30), e.TruncatedError, ""),
    "a negative place": (lambda m: _set(_info(m), "offset", -1), e.OutOfRangeError, "place of w"),
    "no length": (lambda m: _set(_info(m), "length", 0), e.TruncatedError, ""),
    "another blob": (lambda m: _set(_info(m), "offset", 4), e.CorruptError, ""),
    "compressed": (lambda m: _set(_info(m), "transform_descriptors", ["zstd"]), e.UnsupportedError, "compressed"),
    "no tensors": (lambda m: m.state_dict_metadata.clear(), e.UnsupportedError, "no tensors"),
    "no places": (lambda m: _set(m, "storage_data", None), e.MissingError, "places"),
    "bytes in its place": (
        lambda m: m.state_dict_metadata.update(w=BytesStorageMetadata()),
        e.UnsupportedError,
        "no tensors",
    ),
    "a name of no text": (lambda m: m.state_dict_metadata.update({3: _entry(m)}), e.OutOfRangeError, "name"),
    "negative sizes": (lambda m: _set(_entry(m), "size", (-1, 4)), e.OutOfRangeError, "shape"),
    "an optimizer alone": (
        lambda m: m.planner_data.update(w=("optimizer", "state", 0, "exp_avg")),
        e.UnsupportedError,
        "an optimizer",
    ),
    "an entry that others stand under": (
        lambda m: _add(m, ("w", "v")),
        e.InconsistentError,
        "a tensor and for a dictionary",
    ),
    "duplicate entry name": (lambda m: _add(m, ("w",)), e.DuplicateError, "duplicate entry name"),
    "a class of its own": (lambda m: _set(m, "planner_data", print), e.UnsafePickleError, "print"),
    "another's fields": (lambda m: _set(m, "state_dict_metadata", {"w": _info(m)}), e.CorruptError, "another class"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_contradicts_itself_is_refused(tmp_path: Path, name: str) -> None:
    edit, error, words = BAD[name]
    folder = chunked(tmp_path, W, [[1], []], edit)
    with pytest.raises(error, match=words or "w|__0_0"):
        open_checkpoint(os.fspath(folder))


def test_nothing_of_a_pickle_is_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (os.fspath(tmp_path / "ran"),)

    def edit(made: Metadata) -> None:
        _set(made, "storage_meta", Evil())

    folder = chunked(tmp_path, W, [[], []], edit)
    with pytest.raises(e.UnsafePickleError):
        open_checkpoint(os.fspath(folder))
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
def test_any_cut_and_any_flip_of_metadata_is_one_of_our_errors(tmp_path: Path) -> None:
    folder = chunked(tmp_path, W, [[1], [2]])
    good = (folder / ".metadata").read_bytes()
    opened = 0
    for place in range(0, len(good), 3):
        for data in (good[:place], good[:place] + bytes([good[place] ^ 1 << place % 8]) + good[place + 1 :]):
            (folder / ".metadata").write_bytes(data)
            try:
                held = open_checkpoint(os.fspath(folder))
                values(held, next(iter(held.tensors)))
                held.close()
                opened += 1
            except e.GgferryError:
                pass
    assert 0 < opened < len(good) // 3


def test_a_flip_in_a_blobs_directory_is_refused_or_changes_values_only(tmp_path: Path) -> None:
    folder = chunked(tmp_path, W, [[], []])
    good = (folder / "__0_0.distcp").read_bytes()
    for place in range(0, len(good), 9):
        (folder / "__0_0.distcp").write_bytes(good[:place] + bytes([good[place] ^ 0x41]) + good[place + 1 :])
        with contextlib.suppress(e.GgferryError):
            assert open_checkpoint(os.fspath(folder)).tensors["w"].shape == (3, 4)


def test_a_count_beyond_the_cap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ggferry.formats.pytorch import dcp_metadata

    monkeypatch.setattr(dcp_metadata, "MAX_PIECES", 3)
    with pytest.raises(e.OutOfRangeError, match="number of pieces"):
        open_checkpoint(os.fspath(chunked(tmp_path, W, [[1], [2]])))


def test_folders_without_metadata_are_not_claimed(tmp_path: Path) -> None:
    shutil.copy(FOUR / "__0_0.distcp", tmp_path)
    with pytest.raises(e.UnknownFormatError):
        find_reader(os.fspath(tmp_path))
    (tmp_path / ".metadata").write_bytes(struct.pack("<4I", 1, 2, 3, 4))
    with pytest.raises(e.GgferryError):
        open_checkpoint(os.fspath(tmp_path))
