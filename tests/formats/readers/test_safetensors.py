"""safetensors against the official library both ways, and every way a file can be wrong (facts T01–T21)."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from ggferry.formats import errors
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.reader import find_reader
from ggferry.formats.readers.safetensors import SPEC, TYPES, open_checkpoint
from ggferry.formats.tensor_read import read_rows
from helpers.third_party_fixtures import cases, listed, witness

TORCH = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "F32": torch.float32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
}


def tensor(dtype: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    if 0 in shape:
        return torch.empty(shape, dtype=TORCH[dtype])
    count = int(np.prod(shape)) * torch.empty(0, dtype=TORCH[dtype]).element_size()
    raw = np.random.default_rng(seed).integers(0, 2 if dtype == "BOOL" else 256, count, np.uint8)
    return torch.from_numpy(raw).view(TORCH[dtype]).reshape(shape)


def bytes_of(value: torch.Tensor) -> bytes:
    return value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""


def whole(held: Checkpoint, name: str) -> bytes:
    ref = held.tensors[name]
    return read_rows(held, ref, 0, ref.rows).tobytes()


def assert_equal(held: Checkpoint, expected: dict[str, torch.Tensor]) -> None:
    assert set(held.tensors) == set(expected)
    for name, value in expected.items():
        ref = held.tensors[name]
        assert (TORCH[ref.type.name], ref.shape, ref.big_endian) == (value.dtype, tuple(value.shape), False)
        assert whole(held, name) == bytes_of(value)


def pack(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: str = "U8", shape: Any = (1,), begin: Any = 0, end: Any = 1) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def write(folder: Path, data: bytes, name: str = "model.safetensors") -> str:
    path = folder / name
    path.write_bytes(data)
    return os.fspath(path)


# --- equal to the library ----------------------------------------------------------------------


def test_every_type_of_ours_is_one_of_theirs() -> None:
    assert set(TORCH) == TYPES


tables = st.dictionaries(
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=20).filter(lambda name: name != "__metadata__"),
    st.tuples(st.sampled_from(sorted(TORCH)), st.lists(st.integers(0, 5), max_size=4).map(tuple), st.integers(0, 99)),
    max_size=6,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(tables.filter(bool), st.none() | st.dictionaries(st.text(max_size=9), st.text(max_size=9), max_size=3))
def test_what_the_library_writes_is_read(
    tmp_path: Path, table: dict[str, Any], metadata: dict[str, str] | None
) -> None:
    # The library (0.8.0) writes `{},"__metadata__":{}}`, which nobody can read, when there are no tensors: left out.
    path = os.fspath(tmp_path / "x.safetensors")
    tensors = {name: tensor(*made) for name, made in table.items()}
    save_file(tensors, path, metadata)
    held = open_checkpoint(path)
    assert_equal(held, tensors)
    assert held.header["metadata"] == (metadata or {})
    held.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(tables, st.sampled_from([b"", b" ", b"\n\t  "]), st.randoms())
def test_the_library_reads_what_we_read(tmp_path: Path, table: dict[str, Any], padding: bytes, random: Any) -> None:
    """Files in any order of tensors and of header lines, made here: both readers see the same."""
    names = list(table)
    random.shuffle(names)
    header, data = {}, b""
    for name in names:
        value = bytes_of(tensor(*table[name]))
        header[name] = entry(table[name][0], table[name][1], len(data), len(data) + len(value))
        data += value
    lines = list(header.items())
    random.shuffle(lines)
    path = write(tmp_path, pack(json.dumps(dict(lines)).encode() + padding, data), "y.safetensors")
    assert_equal(open_checkpoint(path), load_file(path) if table else {})


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=300)
@given(st.data())
def test_damaged_files_are_read_alike_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    """Any byte of a small file changed: our reader accepts only what the library accepts, and then sees the same."""
    good = pack({"ab": entry("F16", (3,), 0, 6), "c": entry("U8", (2, 1), 6, 8)}, bytes(range(8)))
    bad, new = bytearray(good), st.integers(0, 255) | st.sampled_from(b'0123456789",[]')
    for _ in range(data.draw(st.integers(1, 3))):
        bad[data.draw(st.integers(0, len(good) - 9))] = data.draw(new)
    path = write(tmp_path, bytes(bad), "z.safetensors")
    try:
        held = open_checkpoint(path)
    except errors.GgferryError as error:
        assert error.path == path
        return
    assert_equal(held, load_file(path))


@pytest.mark.parametrize("name", cases([*listed("hf/ckpt/*/model.safetensors"), *listed("lora/*/*.safetensors")]))
def test_checkpoints_equal_the_library(name: str) -> None:
    path = witness(name)
    reader, match = find_reader(os.fspath(path.parent))
    assert (reader.name, match.container) == ("safetensors", "safetensors")
    held = reader.open(os.fspath(path.parent), ())
    assert_equal(held, load_file(path))
    assert held.metadata
    held.close()


# --- every way to be wrong ---------------------------------------------------------------------

ONE = {"a": entry()}
BAD: dict[str, tuple[bytes, type[errors.GgferryError]]] = {
    "T01 empty": (b"", errors.TruncatedError),
    "T01 seven bytes": (b"\2\0\0\0\0\0\0", errors.TruncatedError),
    "T02 length beyond the file": (struct.pack("<Q", 99) + b"{}", errors.TruncatedError),
    "T02 length of all ones": (b"\xff" * 8 + b"{}", errors.OutOfRangeError),
    "T02 length over the cap": (struct.pack("<Q", 100_000_001) + b"{}", errors.OutOfRangeError),
    "T02 length zero": (pack(b""), errors.EncodingError),
    "T03 not UTF-8": (pack(b'{"\xff":1}'), errors.EncodingError),
    "T03 BOM": (pack(b"\xef\xbb\xbf{}"), errors.EncodingError),
    "T03 not JSON": (pack(b"{'a':1}"), errors.EncodingError),
    "T03 cut JSON": (pack(b'{"a":'), errors.EncodingError),
    "T03 NaN": (pack(b'{"a":NaN}'), errors.EncodingError),
    "T03 a list": (pack(b"[]"), errors.InconsistentError),
    "T03 a million brackets": (pack(b"[" * 1_000_000), errors.EncodingError),
    "T03 half a UTF-16 pair": (pack(b'{"\\ud800":' + json.dumps(entry()).encode() + b"}", b"\0"), errors.EncodingError),
    "T03 a number of 5000 digits": (pack(b'{"a":' + b"9" * 5000 + b"}"), errors.EncodingError),
    "T05 key twice": (pack(b'{"a":%b,"a":%b}' % ((json.dumps(entry()).encode(),) * 2), b"\0"), errors.DuplicateError),
    "T05 field twice": (
        pack(b'{"a":{"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]}}', b"\0"),
        errors.DuplicateError,
    ),
    "T05 metadata key twice": (pack(b'{"__metadata__":{"a":"1","a":"2"}}'), errors.DuplicateError),
    "T06 unknown type": (pack({"a": entry("F31")}, b"\0"), errors.UnsupportedTypeError),
    "T06 type is a number": (pack({"a": entry(7)}, b"\0"), errors.UnsupportedTypeError),  # type: ignore[arg-type]
    "T06 FP4": (pack({"a": entry("F4", (2,))}, b"\0"), errors.UnsupportedTypeError),
    "T06 complex": (pack({"a": entry("C64", (1,), 0, 8)}, bytes(8)), errors.UnsupportedTypeError),
    "T07 negative": (pack({"a": entry(shape=(-1, -1))}, b"\0"), errors.OutOfRangeError),
    "T07 float": (pack({"a": entry(shape=(1.0,))}, b"\0"), errors.OutOfRangeError),
    "T07 true": (pack({"a": entry(shape=(True,))}, b"\0"), errors.OutOfRangeError),
    "T07 shape is a number": (
        pack({"a": {"dtype": "U8", "shape": 1, "data_offsets": [0, 1]}}, b"\0"),
        errors.OutOfRangeError,
    ),
    "T07 a thousand axes": (pack({"a": entry(shape=(1,) * 1000)}, b"\0"), errors.OutOfRangeError),
    "T08 bytes too few": (pack({"a": entry("F32", (1,), 0, 3)}, bytes(3)), errors.ShapeError),
    "T08 bytes too many": (pack({"a": entry("F32", (1,), 0, 5)}, bytes(5)), errors.ShapeError),
    "T09 begin after end": (pack({"a": entry(begin=1, end=0)}, b"\0"), errors.OutOfRangeError),
    "T09 three offsets": (
        pack({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1, 2]}}, b"\0"),
        errors.OutOfRangeError,
    ),
    "T09 negative offset": (pack({"a": entry(begin=-1, end=0)}, b"\0"), errors.OutOfRangeError),
    "T10 hole": (pack({"a": entry(), "b": entry(begin=2, end=3)}, bytes(3)), errors.OverlapError),
    "T11 overlap": (pack({"a": entry(shape=(2,), end=2), "b": entry(begin=1, end=2)}, bytes(2)), errors.OverlapError),
    "T11 ten names, one range": (pack({f"n{i}": entry() for i in range(10)}, b"\0"), errors.OverlapError),
    "T12 not from 0": (pack({"a": entry(begin=1, end=2)}, bytes(2)), errors.OverlapError),
    "T13 trailing bytes": (pack(ONE, bytes(2)), errors.TrailingBytesError),
    "T13 data without tensors": (pack({}, bytes(2)), errors.TrailingBytesError),
    "T14 one byte short": (pack({"a": entry(shape=(2,), end=2)}, b"\0"), errors.TruncatedError),
    "T15 dimension overflows": (pack({"a": entry(shape=(0, 2**64), end=0)}), errors.OutOfRangeError),
    "T15 product overflows": (pack({"a": entry("U8", (2**32, 2**32), 0, 0)}), errors.ShapeError),
    "T15 offsets overflow": (pack({"a": entry("U8", (1,), 2**64 - 1, 2**64)}, b"\0"), errors.OverlapError),
    "T16 metadata not strings": (pack({"__metadata__": {"a": 1}}), errors.InconsistentError),
    "T16 metadata a list": (pack({"__metadata__": []}), errors.InconsistentError),
    "T17 extra field": (pack({"a": {**entry(), "x": 1}}, b"\0"), errors.InconsistentError),
    "T17 missing field": (pack({"a": {"dtype": "U8", "shape": [1]}}, b"\0"), errors.InconsistentError),
    "T17 entry as a list": (pack({"a": ["U8", [1], [0, 1]]}, b"\0"), errors.InconsistentError),
    "T17 empty name": (pack({"": entry()}, b"\0"), errors.OutOfRangeError),
    "T17 endless name": (pack({"n" * 1025: entry()}, b"\0"), errors.OutOfRangeError),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files_are_refused(case: str, tmp_path: Path) -> None:
    data, kind = BAD[case]
    path = write(tmp_path, data)
    with pytest.raises(kind) as caught:
        open_checkpoint(path)
    assert caught.value.path == path
    assert "\n" not in str(caught.value)
    if data:
        reader, _ = find_reader(path)
        assert reader.name == "safetensors"  # by its name at least: the error comes from us, not from "unknown format"


def test_bad_files_the_library_accepts_are_the_known_ones(tmp_path: Path) -> None:
    """We are never laxer; where we are stricter is listed."""
    accepted = set()
    for case, (data, _) in BAD.items():
        path = write(tmp_path, data)
        try:
            with safe_open(path, "np") as opened:
                opened.keys()
        except SafetensorError:
            continue
        accepted.add(case)
    assert accepted == {
        "T05 key twice",
        "T05 metadata key twice",
        "T06 FP4",
        "T06 complex",
        "T07 a thousand axes",
        "T17 extra field",
        "T17 entry as a list",
        "T17 empty name",
        "T17 endless name",
    }


def test_leading_whitespace_is_told(tmp_path: Path) -> None:
    held = open_checkpoint(write(tmp_path, pack(b" \n" + json.dumps(ONE).encode(), b"\7")))
    assert any("whitespace" in note for note in held.notes)
    assert whole(held, "a") == b"\7"


def test_path_like_names_are_only_names(tmp_path: Path) -> None:
    held = open_checkpoint(write(tmp_path, pack({"../../etc/x": entry()}, b"\7")))
    assert whole(held, "../../etc/x") == b"\7"


def test_errors_point_at_the_name(tmp_path: Path) -> None:
    data = pack({"first": entry(), "second": entry("F31", (1,), 1, 2)}, bytes(2))
    with pytest.raises(errors.UnsupportedTypeError) as caught:
        open_checkpoint(write(tmp_path, data))
    assert caught.value.offset == data.index(b'"second"')


def test_every_prefix_of_a_file_is_refused(tmp_path: Path) -> None:
    good = pack({"ab": entry("F16", (3,), 0, 6), "c": entry("U8", (2,), 6, 8)}, bytes(range(8)))
    for size in range(len(good)):
        with pytest.raises(errors.GgferryError):
            open_checkpoint(write(tmp_path, good[:size]))
    open_checkpoint(write(tmp_path, good))


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:", "git-LFS"),
        (b"<!DOCTYPE html><html>", "HTML"),
        (b"<html><body>Entry not found", "HTML"),
        (b"7z\xbc\xaf\x27\x1c" + bytes(40), "7-Zip"),
    ],
)
def test_other_things_are_named(tmp_path: Path, head: bytes, words: str) -> None:
    path = write(tmp_path, head)
    with pytest.raises(errors.UnknownFormatError, match=words):
        open_checkpoint(path)
    with pytest.raises(errors.UnknownFormatError):
        find_reader(path)


# --- several files -----------------------------------------------------------------------------


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """Two shards and their index."""
    first = {"a": tensor("F32", (2, 3), 1), "b": tensor("BF16", (4,), 2)}
    second = {"c": tensor("I64", (1, 2), 3)}
    save_file(first, tmp_path / "model-00001-of-00002.safetensors", {"format": "pt"})
    save_file(second, tmp_path / "model-00002-of-00002.safetensors", {"format": "pt"})
    places = dict.fromkeys(first, "model-00001-of-00002.safetensors") | dict.fromkeys(
        second, "model-00002-of-00002.safetensors"
    )
    index = {"metadata": {"total_size": 24 + 8 + 16}, "weight_map": places}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    return tmp_path


def edit_index(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))


@pytest.mark.parametrize("name", ["", "model.safetensors.index.json", "model-00002-of-00002.safetensors"])
def test_a_model_in_shards_opens_through_any_of_its_files(sharded: Path, name: str) -> None:
    path = os.fspath(sharded / name) if name else os.fspath(sharded)
    reader, _ = find_reader(path)
    held = reader.open(path, ())
    assert list(held.tensors) == ["a", "b", "c"]
    assert [span.file for ref in held.tensors.values() for span in ref.spans] == [0, 0, 1]
    for part in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"):
        for key, value in load_file(sharded / part).items():
            assert whole(held, key) == bytes_of(value)
    assert any("whole model" in note for note in held.notes) == name.startswith("model-0")
    assert not any("total_size" in note for note in held.notes)


def test_shards_without_an_index_are_taken_as_numbered(sharded: Path) -> None:
    (sharded / "model.safetensors.index.json").unlink()
    held = open_checkpoint(os.fspath(sharded))
    assert list(held.tensors) == ["a", "b", "c"]
    assert any("no model.safetensors.index.json" in note for note in held.notes)
    (sharded / "model-00001-of-00002.safetensors").unlink()
    for path in (sharded, sharded / "model-00002-of-00002.safetensors"):
        with pytest.raises(errors.NotFoundError, match="model-00001-of-00002"):
            open_checkpoint(os.fspath(path))


INDEX_FAULTS: dict[str, tuple[Callable[[dict[str, Any]], Any], type[errors.GgferryError]]] = {
    "T18 missing shard": (lambda i: i["weight_map"].update(d="model-00003-of-00003.safetensors"), errors.NotFoundError),
    "T19 not in the index": (lambda i: i["weight_map"].pop("a"), errors.UnexpectedTensorError),
    "T19 not in the shard": (
        lambda i: i["weight_map"].update(d="model-00001-of-00002.safetensors"),
        errors.MissingError,
    ),
    "T19 in another shard": (
        lambda i: i["weight_map"].update(a="model-00002-of-00002.safetensors"),
        errors.InconsistentError,
    ),
    "T20 dots": (lambda i: i["weight_map"].update(a="../model-00001-of-00002.safetensors"), errors.OutOfRangeError),
    "T20 hidden dots": (lambda i: i["weight_map"].update(a="x/../../m.safetensors"), errors.OutOfRangeError),
    "T20 backslash dots": (lambda i: i["weight_map"].update(a="..\\m.safetensors"), errors.OutOfRangeError),
    "T20 absolute": (lambda i: i["weight_map"].update(a="/etc/passwd"), errors.OutOfRangeError),
    "T20 drive": (lambda i: i["weight_map"].update(a="C:\\m.safetensors"), errors.OutOfRangeError),
    "T20 NUL": (lambda i: i["weight_map"].update(a="m\0"), errors.OutOfRangeError),
    "T20 empty": (lambda i: i["weight_map"].update(a=""), errors.OutOfRangeError),
    "no weight_map": (lambda i: i.pop("weight_map"), errors.MissingError),
    "empty weight_map": (lambda i: i.update(weight_map={}), errors.OutOfRangeError),
    "weight_map a list": (lambda i: i.update(weight_map=["a"]), errors.InconsistentError),
    "weight_map of numbers": (lambda i: i["weight_map"].update(a=1), errors.InconsistentError),
    "metadata a list": (lambda i: i.update(metadata=[1]), errors.CorruptError),
}


@pytest.mark.parametrize("case", INDEX_FAULTS)
def test_a_wrong_index_is_refused(sharded: Path, case: str) -> None:
    change, kind = INDEX_FAULTS[case]
    edit_index(sharded, change)
    with pytest.raises(kind):
        open_checkpoint(os.fspath(sharded))


def test_a_tensor_in_two_shards_is_refused(sharded: Path) -> None:
    save_file(
        {"c": tensor("I64", (1, 2), 3), "a": tensor("F32", (2, 3), 1)}, sharded / "model-00002-of-00002.safetensors"
    )
    with pytest.raises(errors.DuplicateError):
        open_checkpoint(os.fspath(sharded))


def test_a_wrong_total_is_told(sharded: Path) -> None:
    edit_index(sharded, lambda i: i["metadata"].update(total_size=47))
    held = open_checkpoint(os.fspath(sharded))
    assert any("total_size 47" in note and "48 bytes" in note for note in held.notes)


def test_index_that_is_not_json(sharded: Path) -> None:
    (sharded / "model.safetensors.index.json").write_text("<html>")
    with pytest.raises(errors.EncodingError):
        open_checkpoint(os.fspath(sharded))


def test_oracle_shards_equal_the_library(fixtures: Path) -> None:
    folder = fixtures / "hf" / "ckpt" / "llama_shards_bf16"
    held = open_checkpoint(os.fspath(folder))
    expected: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        expected |= load_file(path)
    assert len(held.files) == 5
    assert_equal(held, expected)


def test_probe_does_not_claim_what_is_not_ours(tmp_path: Path) -> None:
    for head in (b"GGUF" + bytes(60), b"lmgg" + bytes(60), b"PK\3\4" + bytes(60), b"{}" + bytes(60)):
        assert SPEC.probe(head, os.fspath(tmp_path / "model.bin"), len(head)) is None
    good = pack(ONE, b"\0")
    assert SPEC.probe(good, os.fspath(tmp_path / "renamed.bin"), len(good)) is not None
    shutil.rmtree(tmp_path)
