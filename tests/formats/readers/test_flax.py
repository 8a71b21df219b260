"""Flax's msgpack: what the library msgpack writes, and every way such a file can be wrong."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgpack import ExtType, packb

from ggferry.formats import errors as e
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.reader import find_reader
from ggferry.formats.readers.flax import open_checkpoint
from ggferry.formats.tensor_read import read_rows
from helpers.third_party_fixtures import FIXTURES


def array(values: Any, name: str | bytes | None = None, shape: Any = None) -> ExtType:
    """An array as flax packs it; with another type or shape where they are given."""
    values = np.asarray(values)
    return ExtType(1, packb([shape or list(values.shape), name or values.dtype.name, values.tobytes()]))


def opened(folder: Path, content: Any) -> Checkpoint:
    path = folder / "flax_model.msgpack"
    path.write_bytes(content if isinstance(content, bytes) else packb(content))
    return open_checkpoint(os.fspath(path))


def chunked(shape: dict[str, Any], *pieces: ExtType, **more: Any) -> dict[str, Any]:
    chunks = {str(number): piece for number, piece in enumerate(pieces)}
    return {"__msgpack_chunked_array__": True, "shape": shape, "chunks": chunks, **more}


HALF = np.arange(6, dtype=np.float32)


def test_every_kind_of_value_is_passed(tmp_path: Path) -> None:
    others = [
        None,
        True,
        1,
        -1,
        300,
        -300,
        1 << 40,
        -(1 << 40),
        1.5,
        "x" * 40,
        "x" * 300,
        b"y" * 70000,
        ExtType(9, b""),
    ]
    leaves: dict[str, Any] = {"n" * (1 + number): value for number, value in enumerate(others)}
    leaves |= {"fixed": ExtType(9, b"1234"), "list": [1, array(HALF)], "e": {}, "number": ExtType(3, array(3.0).data)}
    held = opened(tmp_path, {"a": leaves, "w": array(HALF.reshape(2, 3)), "old": array(HALF, b"float32")})
    assert list(held.tensors) == ["a/list/1", "a/number", "w", "old"]
    assert read_rows(held, held.tensors["w"], 0, 2).tobytes() == HALF.tobytes()
    assert (held.tensors["w"].shape, held.tensors["a/number"].shape) == ((2, 3), ())
    assert any("a/n, a/nn" in note and "more" in note for note in held.notes)


def test_pieces_are_the_array_that_was_cut(tmp_path: Path) -> None:
    values = np.arange(35, dtype=np.int32)
    cut = chunked({"0": 5, "1": 7}, *(array(values[at : at + 9]) for at in range(0, 35, 9)))
    held = opened(tmp_path, {"w": cut, "x": array(HALF)})
    for first in range(5):
        assert read_rows(held, held.tensors["w"], first, 5).tobytes() == values.reshape(5, 7)[first:].tobytes()


@pytest.mark.parametrize("name", ["bert/flax_model.msgpack", "t5/flax_model.msgpack", "train-state/checkpoint_0"])
def test_it_is_known_by_its_bytes(tmp_path: Path, name: str) -> None:
    path = tmp_path / "anything"
    path.write_bytes((FIXTURES / "flax" / name).read_bytes())
    assert find_reader(os.fspath(path))[1].container == "flax"


@pytest.mark.parametrize("content", [{"a": 1}, {"a": {"b": "x"}}, {}, [array(HALF)], {"a": {"b": ExtType(1, b"abc")}}])
def test_other_msgpack_is_not(tmp_path: Path, content: Any) -> None:
    (tmp_path / "x").write_bytes(packb(content) + bytes(16))
    with pytest.raises(e.UnknownFormatError):
        find_reader(os.fspath(tmp_path / "x"))


ONE = chunked({"0": 6}, array(HALF))
DEEP: Any = array(HALF)
for _ in range(70):
    DEEP = {"a": DEEP}
BAD: dict[str, tuple[Any, type[e.GgferryError], str]] = {
    "empty": (b"", e.UnknownFormatError, "checkpoint"),
    "no map": (packb([1]), e.InconsistentError, "a map"),
    "a page": (b"<html>not found", e.UnknownFormatError, "checkpoint"),
    "no array": ({"a": {"driver": "zarr"}}, e.UnsupportedError, "without an array"),
    "bytes behind": (packb({"a": array(HALF)}) + b"\0", e.TrailingBytesError, "follow"),
    "a byte without meaning": (b"\x81\xa1a\xc1", e.CorruptError, "never uses"),
    "a name of a number": ({1: array(HALF)}, e.InconsistentError, "string"),
    "a name of no text": (b"\x81\xa1\xff\xc0", e.EncodingError, "name"),
    "two of one name": (b"\x82" + 2 * packb({"a": array(HALF)})[1:], e.DuplicateError, "name"),
    "a long name": ({"a" * 600: {"b" * 600: array(HALF)}}, e.OutOfRangeError, "name"),
    "a map without room": (b"\xdf\xff\xff\xff\xff\xa1a\xc0", e.TruncatedError, "root"),
    "deep": (DEEP, e.OutOfRangeError, "depth"),
    "another type": ({"a": array(HALF, "complex64")}, e.UnsupportedTypeError, "type of"),
    "other bytes": ({"a": array(HALF, shape=[7])}, e.ShapeError, "bytes of"),
    "a huge shape": ({"a": array(HALF, shape=[1 << 50, 1])}, e.OutOfRangeError, "size of"),
    "many axes": ({"a": array(HALF, shape=[1] * 70)}, e.OutOfRangeError, "axes"),
    "a negative size": ({"a": array(HALF, shape=[-6])}, e.OutOfRangeError, "size of"),
    "no parts": ({"a": ExtType(1, packb([1, 2]))}, e.InconsistentError, "no array of flax"),
    "bytes within": ({"a": ExtType(1, array(HALF).data + b"\0")}, e.ShapeError, "bytes of"),
    "a text for bytes": ({"a": ExtType(1, packb([[1], "uint8", "x"]))}, e.ShapeError, "bytes of"),
    "a text for a shape": ({"a": ExtType(1, packb(["x", "uint8", b"x"]))}, e.OutOfRangeError, "axes"),
    "pieces beside others": ({"a": {**ONE, "x": 1}}, e.InconsistentError, "beside others"),
    "pieces behind others": ({"a": {"x": 1, **ONE}}, e.InconsistentError, "beside others"),
    "pieces too few": ({"a": chunked({"0": 7}, array(HALF))}, e.ShapeError, "pieces of"),
    "no pieces": ({"a": chunked({"0": 0})}, e.ShapeError, "pieces of"),
    "pieces of matrices": ({"a": chunked({"0": 6}, array(HALF.reshape(2, 3)))}, e.InconsistentError, "pieces of"),
    "pieces of two types": (
        {"a": chunked({"0": 12}, array(HALF), array(HALF.astype(np.int32)))},
        e.InconsistentError,
        "pieces of",
    ),
    "pieces that are numbers": ({"a": chunked({"0": 6}, 1)}, e.InconsistentError, "a piece of"),  # type: ignore[arg-type]
    "sizes in another order": ({"a": chunked({"1": 2, "0": 3}, array(HALF))}, e.InconsistentError, "shape of"),
    "pieces by another name": (
        {"a": {"__msgpack_chunked_array__": True, "size": {}, "chunks": {}}},
        e.InconsistentError,
        "pieces of",
    ),
    "two models": (
        {"params": {"a": array(HALF)}, "batch_stats": {"b": array(HALF)}, "params/a": array(HALF)},
        e.DuplicateError,
        "duplicate tensor name",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_named(tmp_path: Path, name: str) -> None:
    content, error, words = BAD[name]
    with pytest.raises(error, match=words) as caught:
        opened(tmp_path, content)
    assert caught.value.path


def test_a_cut_anywhere_is_an_error_of_ours(tmp_path: Path) -> None:
    tensors = {"b": {"kernel": array(HALF.reshape(2, 3)), "bias": array(HALF)}, "c": chunked({"0": 6}, array(HALF))}
    whole = packb(tensors)
    assert len(opened(tmp_path, whole).tensors) == 3
    for size in range(len(whole)):
        with pytest.raises(e.GgferryError):
            opened(tmp_path, whole[:size])


@pytest.mark.slow
def test_a_changed_byte_is_a_model_or_an_error_of_ours(tmp_path: Path) -> None:
    whole = bytearray(packb({"b": {"kernel": array(HALF)}, "c": chunked({"0": 6}, array(HALF[:2]), array(HALF[2:]))}))
    refused = 0
    for at in range(len(whole)):
        for value in (0xC1, 0xDF, whole[at] ^ 1):
            before, whole[at] = whole[at], value
            try:
                opened(tmp_path, bytes(whole)).close()
            except e.GgferryError:
                refused += 1
            whole[at] = before
    assert refused > len(whole)


def test_a_shard_is_its_whole_model() -> None:
    folder = FIXTURES / "flax" / "llama"
    whole = open_checkpoint(os.fspath(folder))
    for name in ("flax_model-00002-of-00003.msgpack", "flax_model.msgpack.index.json"):
        assert set(open_checkpoint(os.fspath(folder / name)).tensors) == set(whole.tensors)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = FIXTURES / "flax" / "llama"
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    os.remove(tmp_path / "flax_model-00002-of-00003.msgpack")
    with pytest.raises(e.NotFoundError, match="00002"):
        open_checkpoint(os.fspath(tmp_path))


def test_payloads_are_passed_over(tmp_path: Path) -> None:
    """Sixteen arrays of a GiB in a file with holes: neither time nor memory for their bytes."""
    path, size = tmp_path / "flax_model.msgpack", 1 << 30
    inner = b"\x93\x92\xcd\x40\x00\xcd\x40\x00\xa7float32\xc6" + size.to_bytes(4, "big")
    with path.open("wb") as file:
        file.write(b"\xde\x00\x10")
        for number in range(16):
            file.write(
                b"\xa3" + f"a{number:02}".encode() + b"\xc9" + (len(inner) + size).to_bytes(4, "big") + b"\1" + inner
            )
            file.seek(size, os.SEEK_CUR)
        file.truncate()
    script = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "from ggferry.formats.readers.flax import open_checkpoint\n"
        "print(len(open_checkpoint(sys.argv[1]).tensors))"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["16"]
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 5
