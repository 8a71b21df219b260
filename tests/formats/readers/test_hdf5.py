"""HDF5: what h5py writes is found where h5py finds it, and every way such a file can be wrong."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np
import pytest

from ggferry.formats import errors as e
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.files.sources import open_source
from ggferry.formats.hdf5.datasets import read_contents
from ggferry.formats.reader import find_reader
from ggferry.formats.readers.hdf5 import open_checkpoint
from ggferry.formats.tensor_read import read_rows
from helpers.third_party_fixtures import FIXTURES

FILES = sorted(FIXTURES.glob("tensorflow/*/*.h5"))
VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


def datasets(path: Path) -> dict[str, tuple[Any, ...]]:
    found: dict[str, tuple[Any, ...]] = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.dtype.kind in "fiu":
            found[name] = (item.shape, item.id.get_offset(), np.asarray(item).tobytes())

    with h5py.File(path) as file:
        file.visititems(visit)
    return found


def ours(path: Path) -> dict[str, tuple[Any, ...]]:
    source = open_source(os.fspath(path))
    held = read_contents(source, 0)
    whole = Checkpoint("hdf5", None, (source,), held.tensors)
    found = {
        name: (ref.shape, ref.spans[0].offset, read_rows(whole, ref, 0, ref.rows).tobytes())
        for name, ref in held.tensors.items()
    }
    source.close()
    return found


@pytest.mark.parametrize("path", FILES, ids=["/".join(path.parts[-2:]) for path in FILES])
def test_datasets_are_where_h5py_finds_them(path: Path) -> None:
    assert ours(path) == datasets(path)
    assert ours(path) or "00001" in path.name  # a first shard without a variable


def test_types_shapes_and_groups_of_every_size(tmp_path: Path) -> None:
    """Four hundred members of a group take a tree of two levels; attributes of a layer go on behind its header."""
    path = tmp_path / "x.h5"
    kinds = [np.float16, np.float32, np.float64, *(np.dtype(f"{sign}{size}") for sign in "iu" for size in (1, 2, 4, 8))]
    with h5py.File(path, "w") as file:
        for kind in kinds:
            file[f"kinds/{np.dtype(kind).name}"] = np.arange(5).astype(kind)
        for number in range(400):
            file[f"many/layer_{number}/kernel:0"] = np.full((3, 1, 2), number, np.float32)
        file["deep/" + "x/" * 40 + "y"] = VALUES
        file["one"], file["none"] = np.float32(4), np.zeros((0, 3), np.float32)
        for number in range(60):
            file["many"].attrs[f"weight_names{number}"] = [b"x" * 100] * 9
        file["texts"], file["flags"] = ["a", "b"], np.array([True, False])
        file["records"] = np.zeros(2, [("a", "f4"), ("b", "i4")])
        compact = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        compact.set_layout(h5py.h5d.COMPACT)
        small = h5py.h5d.create(file.id, b"small", h5py.h5t.IEEE_F32LE, h5py.h5s.create_simple((2, 3)), compact)
        small.write(h5py.h5s.ALL, h5py.h5s.ALL, VALUES)
    found, expected = ours(path), datasets(path)
    assert found.keys() == expected.keys() and len(found) == 400 + len(kinds) + 4
    for name, (shape, offset, data) in expected.items():
        assert found[name][::2] == (shape, data), name
        assert offset in (None, found[name][1]), name
    source = open_source(os.fspath(path))
    assert set(read_contents(source, 0).others) == {"texts", "flags", "records"}
    assert read_contents(source, 0).tensors["kinds/uint16"].type.name == "U16"


def test_bfloat16_is_told_from_float16(tmp_path: Path) -> None:
    kind = h5py.h5t.IEEE_F16LE.copy()
    kind.set_fields(15, 7, 8, 0, 7)
    kind.set_ebias(127)
    values = np.array([1.5, -3.25], ml_dtypes.bfloat16)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        made = h5py.h5d.create(file.id, b"a:0", kind, h5py.h5s.create_simple((2,)))
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, values.view(np.uint16), kind)
    held = open_checkpoint(os.fspath(tmp_path / "x.h5"))
    assert held.tensors["a:0"].type.name == "BF16"
    assert read_rows(held, held.tensors["a:0"], 0, 1).tobytes() == values.tobytes()


def external(file: Any) -> None:
    file.create_dataset("a:0", (2, 3), "f4", external=[("other.bin", 0, 24)])


def twice(file: Any) -> None:
    file["a:0"] = VALUES
    file["b:0"] = file["a:0"]


def within(file: Any) -> None:
    file.create_group("a/b")
    file["a/b/c"] = file["a"]


BAD: dict[str, tuple[Callable[[Any], Any], type[e.GgferryError], str]] = {
    "chunks": (lambda f: f.create_dataset("a:0", data=VALUES, chunks=(1, 3)), e.UnsupportedError, "chunks"),
    "compressed": (lambda f: f.create_dataset("a:0", data=VALUES, compression="gzip"), e.UnsupportedError, "compress"),
    "in another file": (external, e.UnsupportedError, "another file"),
    "a link": (lambda f: f.__setitem__("a:0", h5py.SoftLink("/x")), e.UnsupportedError, "symbolic link"),
    "a link to another file": (
        lambda f: f.__setitem__("a:0", h5py.ExternalLink("x.h5", "/x")),
        e.UnsupportedError,
        "form",
    ),
    "one dataset twice": (twice, e.CorruptError, "twice"),
    "a group within itself": (within, e.CorruptError, "twice"),
    "never written": (lambda f: f.create_dataset("a:0", (2, 3), "f4"), e.ShapeError, "bytes of"),
    "the other byte order": (lambda f: f.create_dataset("a:0", data=VALUES.astype(">f4")), e.UnsupportedError, "first"),
    "long names": (lambda f: f.__setitem__("x" * 600 + "/" + "y" * 600, VALUES), e.OutOfRangeError, "name of"),
    "deep": (lambda f: f.__setitem__("x/" * 80 + "y", VALUES), e.OutOfRangeError, "depth"),
    "no variables": (lambda f: f.__setitem__("a", VALUES), e.UnsupportedError, "without variables"),
    "nothing": (lambda f: f.__setitem__("a:0", "text"), e.UnsupportedError, "without variables"),
    "a whole model": (lambda f: f.__setitem__("model_weights/a:0", VALUES), e.UnsupportedError, "with its graph"),
    "Keras 3": (lambda f: f.__setitem__("layers/dense/vars/0", VALUES), e.UnsupportedError, "Keras 3"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_named(tmp_path: Path, name: str) -> None:
    write, error, words = BAD[name]
    with h5py.File(tmp_path / "tf_model.h5", "w") as file:
        write(file)
    with pytest.raises(error, match=words) as caught:
        open_checkpoint(os.fspath(tmp_path / "tf_model.h5"))
    assert caught.value.path


def test_a_file_of_the_newer_form_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w", libver="latest") as file:
        file["a:0"] = VALUES
    with pytest.raises(e.UnsupportedError, match="h5repack"):
        open_checkpoint(os.fspath(tmp_path / "x.h5"))


def test_data_that_lie_on_others_are_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for name in "abc":
            file[f"{name}:0"] = VALUES
        places = [file[f"{name}:0"].id.get_offset() for name in "ab"]
    data = (tmp_path / "x.h5").read_bytes()
    changed = data.replace(struct.pack("<QQ", places[1], 24), struct.pack("<QQ", places[0] + 4, 24))
    assert changed != data
    (tmp_path / "x.h5").write_bytes(changed)
    with pytest.raises(e.OverlapError):
        open_checkpoint(os.fspath(tmp_path / "x.h5"))


def small(folder: Path) -> bytearray:
    with h5py.File(folder / "tf_model.h5", "w") as file:
        file["a/m/a/kernel:0"], file["a/m/a/bias:0"] = VALUES, VALUES[0]
        file.attrs["layer_names"] = [b"a"]
    return bytearray((folder / "tf_model.h5").read_bytes())


def test_a_cut_anywhere_is_an_error_of_ours(tmp_path: Path) -> None:
    whole = small(tmp_path)
    last = max(ref.spans[0].offset + ref.nbytes for ref in open_checkpoint(os.fspath(tmp_path)).tensors.values())
    for size in range(0, last, 23):
        (tmp_path / "tf_model.h5").write_bytes(whole[:size])
        with pytest.raises(e.GgferryError):
            open_checkpoint(os.fspath(tmp_path))


@pytest.mark.slow
def test_a_changed_byte_is_a_model_or_an_error_of_ours(tmp_path: Path) -> None:
    whole, refused = small(tmp_path), 0
    places = [at for at, value in enumerate(whole) if value or whole[at - 1]][::3]
    for at in places:
        for value in (0xFF, whole[at] ^ 9):
            before, whole[at] = whole[at], value
            (tmp_path / "tf_model.h5").write_bytes(whole)
            try:
                open_checkpoint(os.fspath(tmp_path)).close()
            except e.GgferryError:
                refused += 1
            whole[at] = before
    assert refused > len(places) // 2


@pytest.mark.parametrize("content", [b"", b"<html>", b"\x89HDF\r\n\x1a", b"\x89HDF\r\n\x1a\n", bytes(100)])
def test_another_file_of_the_name_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tf_model.h5").write_bytes(content)
    with pytest.raises(e.GgferryError):
        open_checkpoint(os.fspath(tmp_path))


def test_shards_are_one_model(tmp_path: Path) -> None:
    folder = FIXTURES / "tensorflow" / "mistral"
    for name in ("", "tf_model-00002-of-00005.h5", "tf_model.h5.index.json"):
        path = os.fspath(folder / name)
        assert find_reader(path)[1].container == "hdf5"
        assert (len(open_checkpoint(path).tensors), len(open_checkpoint(path).files)) == (21, 4)
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    with h5py.File(tmp_path / "tf_model-00002-of-00005.h5", "a") as file:
        file["more/kernel:0"] = VALUES
    with pytest.raises(e.InconsistentError, match="number of tensors"):
        open_checkpoint(os.fspath(tmp_path))
