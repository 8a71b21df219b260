"""Presets of KerasHub: datasets where h5py finds them, lists of shards, and every way a folder can be wrong."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import ml_dtypes
import numpy as np
import pytest

from ggferry.formats import errors as e
from ggferry.formats.reader import find_reader
from ggferry.formats.readers.keras import INDEX, open_checkpoint
from ggferry.formats.tensor_read import read_rows
from helpers.third_party_fixtures import FIXTURES

FOLDERS = sorted(path.parent for path in FIXTURES.glob("keras/*/config.json"))
SHARDS = FIXTURES / "keras" / "gemma3"
VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


def copied(folder: Path, into: Path) -> Path:
    shutil.copytree(folder, into)
    return into


@pytest.mark.parametrize("folder", FOLDERS, ids=[folder.name for folder in FOLDERS])
def test_variables_are_where_h5py_finds_them(folder: Path) -> None:
    held = open_checkpoint(os.fspath(folder))
    expected: dict[str, tuple[tuple[int, ...], bytes]] = {}

    def visit(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset):
            expected[name] = (item.shape, np.asarray(item).tobytes())

    for source in held.files:
        with h5py.File(source.path) as file:
            file.visititems(visit)
    found = {name: (ref.shape, read_rows(held, ref, 0, ref.rows).tobytes()) for name, ref in held.tensors.items()}
    assert found == expected and found


def test_a_shard_and_the_list_stand_for_the_whole_model() -> None:
    whole = open_checkpoint(os.fspath(SHARDS))
    for name in (INDEX, "model_00000.weights.h5", "model_00002.weights.h5"):
        path = os.fspath(SHARDS / name)
        assert find_reader(path)[0].name == "keras"
        assert open_checkpoint(path).tensors.keys() == whole.tensors.keys()
    assert len(whole.files) == 3


def test_bfloat16_is_what_keras_says_of_bytes_without_a_type(tmp_path: Path) -> None:
    """h5py keeps them as opaque; other attributes, texts of a fixed length and other opaque data stand beside."""
    values = np.array([[1.5, -3.25]], ml_dtypes.bfloat16)
    with h5py.File(tmp_path / "model.weights.h5", "w") as file:
        for name, kind in (("0", "bfloat16"), ("1", np.bytes_("bfloat16")), ("2", "float16"), ("3", None), ("4", 7)):
            made = file.create_dataset(f"layers/a/vars/{name}", data=values)
            made.attrs["another"] = "bfloat16"
            if kind is not None:
                made.attrs["dtype"] = kind
    held = open_checkpoint(os.fspath(tmp_path / "model.weights.h5"))
    assert {name: ref.type.name for name, ref in held.tensors.items()} == {
        "layers/a/vars/0": "BF16",
        "layers/a/vars/1": "BF16",
    }
    assert read_rows(held, held.tensors["layers/a/vars/0"], 0, 1).tobytes() == values.tobytes()
    assert "layers/a/vars/2" in held.notes[0]


def test_a_tokenizer_of_keras_is_none_of_transformers(tmp_path: Path) -> None:
    folder = copied(FIXTURES / "keras" / "gemma", tmp_path / "x")
    held = open_checkpoint(os.fspath(folder))
    assert "tokenizer.json" not in held.sidecars
    assert held.sidecars["tokenizer.model"].endswith("vocabulary.spm")
    shutil.rmtree(folder / "assets")
    assert "no assets/tokenizer" in open_checkpoint(os.fspath(folder)).notes[0]
    (folder / "assets" / "tokenizer").mkdir(parents=True)
    (folder / "assets" / "tokenizer" / "merges.txt").touch()
    assert "which tokens are special" in open_checkpoint(os.fspath(folder)).notes[0]
    (folder / "tokenizer.json").write_text('{"version": "1.0", "model": {}}')
    (folder / "task.weights.h5").touch()
    held = open_checkpoint(os.fspath(folder))
    assert "tokenizer.json" in held.sidecars
    assert ["task.weights.h5" in note for note in held.notes] == [True]


def listed(change: Callable[[dict[str, object]], object]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        index = json.loads((folder / INDEX).read_text())
        change(index["weight_map"])
        (folder / INDEX).write_text(json.dumps(index))

    return write


LAYER = "/layers/reversible_embedding/vars"
BAD: dict[str, tuple[Callable[[Path], object], type[e.GgferryError], str]] = {
    "no list": (lambda f: (f / INDEX).write_text("{}"), e.MissingError, "weight_map"),
    "no object": (lambda f: (f / INDEX).write_text("[]"), e.CorruptError, "."),
    "names of another type": (listed(lambda m: m.update({LAYER: 3})), e.InconsistentError, "files of"),
    "a file elsewhere": (listed(lambda m: m.update({LAYER: "../model_00000.weights.h5"})), e.OutOfRangeError, "shard"),
    "a layer that is not there": (listed(lambda m: m.update({"/x/vars": m[LAYER]})), e.MissingError, "missing"),
    "a layer that is not listed": (listed(lambda m: m.pop(LAYER)), e.UnexpectedTensorError, "another file"),
    "a layer in another file": (
        listed(lambda m: m.update({LAYER: "model_00001.weights.h5"})),
        e.MissingError,
        "missing",
    ),
    "a missing shard": (lambda f: (f / "model_00001.weights.h5").unlink(), e.NotFoundError, "00001"),
    "no HDF5": (lambda f: (f / "model_00001.weights.h5").write_bytes(bytes(99)), e.UnknownFormatError, "HDF5"),
    "a cut shard": (lambda f: os.truncate(f / "model_00001.weights.h5", 9999), e.TruncatedError, "ends inside"),
    "the same shard twice": (
        lambda f: shutil.copy(f / "model_00001.weights.h5", f / "model_00002.weights.h5"),
        e.DuplicateError,
        "also in",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_named(tmp_path: Path, name: str) -> None:
    write, error, words = BAD[name]
    folder = copied(SHARDS, tmp_path / "model")
    write(folder)
    with pytest.raises(error, match=words) as caught:
        open_checkpoint(os.fspath(folder))
    assert caught.value.path


def test_other_files_of_hdf5_and_a_lone_shard_are_named(tmp_path: Path) -> None:
    path = tmp_path / "x.weights.h5"
    for names in ({"a:0": VALUES}, {"text": "x"}):
        with h5py.File(path, "w") as file:
            for key, value in names.items():
                file[key] = value
        with pytest.raises(e.UnsupportedError, match="without variables of Keras 3"):
            open_checkpoint(os.fspath(path))
    shutil.copy(SHARDS / "model_00001.weights.h5", tmp_path)
    with pytest.raises(e.NotFoundError, match="list of all"):
        open_checkpoint(os.fspath(tmp_path / "model_00001.weights.h5"))


def test_texts_in_a_broken_heap_are_none_or_an_error_of_ours(tmp_path: Path) -> None:
    """Every byte of the heap that holds 'bfloat16', and of the attribute that leads there, changed once."""
    path = tmp_path / "model.weights.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("layers/a/vars/0", data=np.ones(2, ml_dtypes.bfloat16)).attrs["dtype"] = "bfloat16"
        file["layers/a/vars/1"] = VALUES
    data = path.read_bytes()
    heap, attribute = data.index(b"GCOL"), data.index(b"dtype\0")
    for at in (*range(heap, heap + 40), *range(attribute - 16, attribute + 56)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
        try:
            held = open_checkpoint(os.fspath(path))
        except e.GgferryError:
            continue
        assert held.tensors["layers/a/vars/1"].shape == (2, 3)
