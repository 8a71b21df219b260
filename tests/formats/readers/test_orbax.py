"""Checkpoints of orbax: arrays as its own library wrote them, and every way a store can be wrong."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ggferry.formats import errors as e
from ggferry.formats.orbax.ocdbt import Place, crc32c, read_entries
from ggferry.formats.orbax.zarr import read_array
from ggferry.formats.packed.streams import zstd_library
from ggferry.formats.reader import find_reader
from ggferry.formats.readers.orbax import MANIFEST, open_checkpoint
from ggferry.formats.tensor_read import read_rows
from helpers.third_party_fixtures import FIXTURES

STORE, FOLDERS = FIXTURES / "orbax" / "gemma2", FIXTURES / "orbax" / "gemma-joint"
KINDS = {"BF16": "bfloat16", "F32": "float32", "I32": "int32", "I64": "int64"}
FIRST = "transformer.final_norm.scale"


def copied(folder: Path, into: Path) -> Path:
    shutil.copytree(folder, into)
    return into


def test_a_checksum_is_the_published_one() -> None:
    """RFC 3720, B.4."""
    assert crc32c(bytes(32)) == 0x8A9136AA and crc32c(b"\xff" * 32) == 0x62A8AB43


@pytest.mark.parametrize("folder", sorted((FIXTURES / "orbax").iterdir()), ids=lambda path: path.name)
def test_arrays_are_those_that_orbax_restores(folder: Path) -> None:
    held = open_checkpoint(os.fspath(folder))
    expected = json.loads((folder / "tensors.json").read_text())
    found = {}
    for name, ref in held.tensors.items():
        values = read_rows(held, ref, 0, ref.rows).tobytes()
        found[name] = [list(ref.shape), KINDS[ref.type.name], hashlib.sha256(values).hexdigest()]
    assert found == expected and found
    assert find_reader(os.fspath(folder))[0].name == "orbax"


def test_a_manifest_stands_for_its_folder_and_other_weights_win(tmp_path: Path) -> None:
    whole = open_checkpoint(os.fspath(STORE))
    assert find_reader(os.fspath(STORE / MANIFEST))[0].name == "orbax"
    assert open_checkpoint(os.fspath(STORE / MANIFEST)).tensors.keys() == whole.tensors.keys()
    folder = copied(STORE, tmp_path / "x")
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
    assert find_reader(os.fspath(folder))[0].name == "safetensors"


def data_file(folder: Path) -> Path:
    """The file in which the root of the tree lies."""
    return min((folder / "d").iterdir())


def flipped(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


def array_file(folder: Path) -> Path:
    return folder / FIRST / ".zarray"


def described(**changes: object) -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        path = array_file(folder)
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return write


IN_STORE: dict[str, tuple[Callable[[Path], object], type[e.GgferryError], str]] = {
    "another magic": (lambda f: flipped(f / MANIFEST, 0), e.CorruptError, "node of the store"),
    "another length": (lambda f: flipped(f / MANIFEST, 4), e.CorruptError, "node of the store"),
    "a changed byte": (lambda f: flipped(f / MANIFEST, 40), e.ChecksumError, "checksum"),
    "a cut manifest": (lambda f: os.truncate(f / MANIFEST, 9), e.TruncatedError, "node"),
    "no root": (lambda f: shutil.rmtree(f / "d"), e.NotFoundError, "d/"),
    "a changed root": (lambda f: flipped(data_file(f), 30), e.CorruptError, "."),
    "no data": (lambda f: shutil.rmtree(f / "ocdbt.process_0"), e.NotFoundError, "process_0"),
}
IN_FOLDERS: dict[str, tuple[Callable[[Path], object], type[e.GgferryError], str]] = {
    "no JSON": (lambda f: array_file(f).write_text("{"), e.EncodingError, "no JSON"),
    "no object": (lambda f: array_file(f).write_text("[]"), e.CorruptError, "description"),
    "version 3": (described(zarr_format=3), e.UnsupportedError, "version"),
    "a file of version 3": (lambda f: (f / FIRST / "zarr.json").touch(), e.UnsupportedError, "zarr 3"),
    "columns first": (described(order="F"), e.UnsupportedError, "order"),
    "filters": (described(filters=[{"id": "delta"}]), e.UnsupportedError, "filters"),
    "another compression": (described(compressor={"id": "blosc"}), e.UnsupportedError, "compression"),
    "no shape": (described(shape=None), e.MissingError, "shape"),
    "a shape that is none": (described(shape=[-1]), e.OutOfRangeError, "shape"),
    "no chunks": (described(chunks=[0]), e.OutOfRangeError, "chunks"),
    "other axes": (described(chunks=[1, 1]), e.OutOfRangeError, "chunks"),
    "too many chunks": (described(shape=[1 << 30], chunks=[1]), e.OutOfRangeError, "number of chunks"),
    "the other byte order": (described(dtype=">f4"), e.UnsupportedTypeError, "type"),
    "no type": (described(dtype=[["a", "<f4"]]), e.UnsupportedTypeError, "type"),
    "other names": (described(dimension_separator="-"), e.CorruptError, "names"),
    "a missing chunk": (lambda f: (f / FIRST / "0").unlink(), e.MissingError, "chunk"),
    "fewer values": (described(shape=[9], chunks=[9]), e.ShapeError, "bytes of"),
    "more values": (described(shape=[7], chunks=[7]), e.ShapeError, "bytes of"),
    "no zstd": (described(compressor=None), e.ShapeError, "bytes of"),
    "a damaged chunk": (lambda f: flipped(f / FIRST / "0", 1), e.CorruptError, "zstd"),
    "a cut chunk": (lambda f: os.truncate(f / FIRST / "0", 12), e.TruncatedError, "cut short"),
    "no arrays": (lambda f: [(one / ".zarray").unlink() for one in f.iterdir() if one.is_dir()], e.MissingError, "."),
}
BAD = [(STORE, name) for name in IN_STORE] + [(FOLDERS, name) for name in IN_FOLDERS]


@pytest.mark.parametrize(("source", "name"), BAD, ids=[name for _, name in BAD])
def test_what_is_wrong_is_named(tmp_path: Path, source: Path, name: str) -> None:
    write, error, words = (IN_STORE if source == STORE else IN_FOLDERS)[name]
    folder = copied(source, tmp_path / "model")
    if name == "no arrays":
        shutil.rmtree(folder / "original")
    write(folder)
    with pytest.raises(error, match=words) as caught:
        open_checkpoint(os.fspath(folder))
    assert caught.value.path


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def node(magic: int, body: bytes) -> bytes:
    size = 4 + 8 + 2 + len(body) + 4
    data = struct.pack(">I", magic) + struct.pack("<Q", size) + b"\0\0" + body
    return data + struct.pack("<I", crc32c(data))


def table(*paths: str) -> bytes:
    out = varint(len(paths)) + bytes(max(0, len(paths) - 1))
    return out + b"".join(varint(len(path)) for path in paths) + bytes(len(paths)) + "".join(paths).encode()


def manifest(path: str, length: int, height: int = 0, kind: int = 0) -> bytes:
    head = bytes(16) + varint(kind) + varint(100) + varint(1000) + b"\4\0"
    version = varint(1) + varint(1) + bytes([height]) + b"\0\0" + varint(length) + b"\0\0\0" + bytes(8)
    return node(0x0CDB3A2A, head + table(path) + version + b"\0")


def leaf(*keys: bytes, height: int = 0) -> bytes:
    out = bytes([height]) + table() + varint(len(keys)) + bytes(len(keys) - 1)
    out += b"".join(varint(len(key)) for key in keys) + b"".join(keys)
    return node(0x0CDB20DE, out + b"\1" * len(keys) + bytes(len(keys)) + b"x" * len(keys))


def interior(path: str, length: int, height: int, times: int = 1) -> bytes:
    keys = [bytes([97 + number]) for number in range(times)]
    out = bytes([height]) + table(path) + varint(times) + bytes(times - 1) + b"\1" * times + b"\1" * times
    out += b"".join(keys) + bytes(times) + bytes(times) + varint(length) * times + b"\0\0\0" * times
    return node(0x0CDB20DE, out)


def made(folder: Path, root: bytes, height: int = 0, path: str = "r", **other: bytes) -> str:
    (folder / "r").write_bytes(root)
    for name, data in other.items():
        (folder / name).write_bytes(data)
    (folder / MANIFEST).write_bytes(manifest(path, len(root), height))
    return os.fspath(folder)


def test_trees_of_several_levels_and_values_in_nodes(tmp_path: Path) -> None:
    inner = leaf(b"x", b"y")
    folder = made(tmp_path, interior("s", len(inner), 1, 2), 1, s=inner)
    assert read_entries(folder) == {key: Place("", 0, 1, b"x") for key in ("ax", "ay", "bx", "by")}


def test_hostile_trees(tmp_path: Path) -> None:
    """Paths that lead out, heights that do not fall, keys twice, a tree that is read again and again."""
    one = leaf(b"x")
    for path in ("../r", "/etc/passwd", "a//b", "c:r", "a\\..\\b"):
        with pytest.raises(e.OutOfRangeError, match="path of a data file"):
            read_entries(made(tmp_path, one, path=path))
    with pytest.raises(e.CorruptError, match="height"):
        read_entries(made(tmp_path, leaf(b"x", height=3)))
    with pytest.raises(e.DuplicateError, match="one key"):
        read_entries(made(tmp_path, leaf(b"x", b"x")))
    itself = interior("r", 0, 1, 26)
    itself = interior("r", len(itself), 1, 26)
    with pytest.raises(e.CorruptError):
        read_entries(made(tmp_path, itself, 1))
    with pytest.raises(e.OutOfRangeError, match="nodes of the store"):
        read_entries(made(tmp_path, one, 200))
    (tmp_path / MANIFEST).write_bytes(manifest("r", 9, kind=1))
    with pytest.raises(e.UnsupportedError, match="several files"):
        read_entries(os.fspath(tmp_path))


def test_every_cut_and_changed_byte_of_a_leaf_is_an_error_or_other_keys(tmp_path: Path) -> None:
    whole = leaf(b"abc", b"abd")
    body = whole[14:-4]
    for at in range(len(body)):
        for changed in (body[:at], body[:at] + bytes([body[at] ^ 0xFF]) + body[at + 1 :]):
            try:
                found = read_entries(made(tmp_path, node(0x0CDB20DE, changed)))
            except e.GgferryError:
                continue
            assert all(isinstance(place, Place) for place in found.values())


def test_chunks_that_go_beyond_their_array(tmp_path: Path) -> None:
    """Five rows and three columns in chunks of two by two, without compression and with it."""
    values = np.arange(15, dtype=np.float32).reshape(5, 3)
    whole = np.zeros((6, 4), np.float32)
    whole[:5, :3] = values
    for compressor in (None, {"id": "zstd", "level": 1}):
        folder = tmp_path / str(compressor is None) / "a"
        folder.mkdir(parents=True)
        (folder.parent / "_METADATA").touch()
        text = {"zarr_format": 2, "shape": [5, 3], "chunks": [2, 2], "dtype": "<f4", "order": "C", "filters": None}
        (folder / ".zarray").write_text(json.dumps({**text, "compressor": compressor, "dimension_separator": "."}))
        for row in range(3):
            for column in range(2):
                data = whole[2 * row : 2 * row + 2, 2 * column : 2 * column + 2].tobytes()
                data = zstd_library().compress(data) if compressor else data
                (folder / f"{row}.{column}").write_bytes(data)
        held = open_checkpoint(os.fspath(folder.parent))
        assert read_rows(held, held.tensors["a"], 0, 5).tobytes() == values.tobytes()
        assert read_rows(held, held.tensors["a"], 3, 5).tobytes() == values[3:].tobytes()
    array = read_array("b", b'{"zarr_format": 2, "shape": [], "chunks": [], "dtype": "<i4", "compressor": null}', "x")
    assert [chunk.key for chunk in array.chunks()] == ["b/0"] and array.chunk_bytes == 4
