"""`split` and `merge`: the bytes come back; cut, missing and foreign files are refused; llama.cpp and gguf-py agree."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest

import ggferry
from ggferry.formats.gguf.values import Value, ValueType, array, string, u32
from ggferry.formats.gguf.write import write_gguf
from ggferry.quant.codec import codec
from helpers.attack_tools import typed
from helpers.llama_cpp import continuations

F32 = codec("F32").type


def made_by_gguf(path: Path, *, alignment: int = 32, big: bool = False, shards: int = 0, first: bool = False) -> Path:
    """A file of gguf-py: odd sizes, so that every tensor is padded."""
    order = gguf.GGUFEndian.BIG if big else gguf.GGUFEndian.LITTLE
    writer = gguf.GGUFWriter(path, "llama", endianess=order, split_max_tensors=shards, small_first_shard=first)
    writer.add_name("ünïcode")
    writer.add_token_list([f"token {n}" for n in range(300)])
    writer.add_array("test.numbers", list(range(1000)))
    if alignment != 32:
        writer.add_custom_alignment(alignment)
    for number in range(7):
        values = np.arange(5 + 3 * number, dtype=np.float16 if number % 2 else np.float32)
        writer.add_tensor(f"tensor.{number}", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


TENSORS, BYTES = ["--split-max-tensors", "2"], ["--split-max-size", "60"]
EMPTY_FIRST = ["--split-max-tensors", "3", "--no-tensor-first-split"]


@pytest.mark.parametrize(
    ("alignment", "big", "options"),
    [(32, False, TENSORS), (64, False, BYTES), (256, False, EMPTY_FIRST), (32, True, EMPTY_FIRST), (64, True, TENSORS)],
)
def test_the_round_trip_gives_the_bytes(tmp_path: Path, alignment: int, big: bool, options: list[str]) -> None:
    whole = made_by_gguf(tmp_path / "whole.gguf", alignment=alignment, big=big)
    done = typed("split", whole, *options, "-o", tmp_path / "cut")
    assert done.code == 0, done.err
    shards = sorted(tmp_path.glob("cut-*.gguf"))
    first = gguf.GGUFReader(shards[0])
    assert first.fields["split.count"].contents() == len(shards) > 1
    assert bool(first.tensors) == ("--no-tensor-first-split" not in options)
    found = {tensor.name: tensor for shard in shards for tensor in gguf.GGUFReader(shard).tensors}
    for tensor in gguf.GGUFReader(whole).tensors:
        assert np.array_equal(found[tensor.name].data, tensor.data)
    for shard in shards:
        assert gguf.GGUFReader(shard).alignment == alignment
    assert typed("split", whole, "--check", shards[1]).code == 0
    assert typed("merge", shards[-1], "-o", tmp_path / "again.gguf").code == 0
    assert (tmp_path / "again.gguf").read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("version", [1, 2, 3])
def test_old_versions_and_odd_keys_come_back(tmp_path: Path, version: int) -> None:
    nested = Value(ValueType.ARRAY, (array(ValueType.INT32, [1, 2]), array(ValueType.INT32, [])), ValueType.ARRAY)
    keys = {
        "general.architecture": string("llama"),
        "a.empty": array(ValueType.STRING, []),
        "a.nested": nested,
        "a.bytes": string("\udcff\udc80"),
        "a.number": u32(5),
    }
    tensors = [(f"t{n}", F32, (n + 1,), np.arange(n + 1, dtype="<f4").tobytes()) for n in range(6)]
    write_gguf(tmp_path / "old.gguf", keys, tensors, version=version)
    done = typed("split", tmp_path / "old.gguf", "--split-max-tensors", "4")
    assert done.code == 0 and ("stays v1" in done.err) == (version == 1)
    assert typed("merge", tmp_path / "old-00001-of-00002.gguf", "-o", tmp_path / "again.gguf").code == 0
    assert (tmp_path / "again.gguf").read_bytes() == (tmp_path / "old.gguf").read_bytes()


@pytest.mark.parametrize("first", [False, True])
def test_shards_of_gguf_py_are_the_whole_file(tmp_path: Path, first: bool) -> None:
    whole = made_by_gguf(tmp_path / "whole.gguf")
    made_by_gguf(tmp_path / "theirs.gguf", shards=3, first=first)
    shard = sorted(tmp_path.glob("theirs-*.gguf"))[0]
    done = typed("merge", shard, "--check", whole)
    assert done.code == 0, done.err
    assert "7 tensors byte for byte" in done.out
    assert typed("merge", shard).code == 0
    assert (tmp_path / "theirs.gguf").read_bytes() == whole.read_bytes()


def test_what_is_padded_with_other_bytes_comes_back(tmp_path: Path) -> None:
    whole = made_by_gguf(tmp_path / "whole.gguf")
    raw = bytearray(whole.read_bytes())
    raw[-1] = 7  # padding behind the last tensor
    whole.write_bytes(raw)
    assert typed("split", whole, "--split-max-tensors", "3").code == 0
    assert typed("merge", tmp_path / "whole-00001-of-00003.gguf", "-o", tmp_path / "again.gguf").code == 0
    assert (tmp_path / "again.gguf").read_bytes() == bytes(raw)


@pytest.mark.parametrize("share", [0.999, 0.6, 0.9])
def test_a_cut_file_is_refused(tmp_path: Path, share: float) -> None:
    """llama-gguf-split takes one, and fills the hole with the tensor before it."""
    whole = made_by_gguf(tmp_path / "whole.gguf")
    raw = whole.read_bytes()
    assert typed("split", whole, "--split-max-tensors", "3").code == 0
    whole.write_bytes(raw[: int(len(raw) * share) - 40])
    done = typed("split", whole, "--split-max-tensors", "2", "-o", tmp_path / "cut")
    assert done.code == 5 and not list(tmp_path.glob("cut*"))
    shard = tmp_path / "whole-00003-of-00003.gguf"
    shard.write_bytes(shard.read_bytes()[:-40])
    done = typed("merge", shard, "-o", tmp_path / "out.gguf")
    assert done.code == 5 and not (tmp_path / "out.gguf").exists()


def test_shards_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    whole = made_by_gguf(tmp_path / "whole.gguf")
    assert typed("split", whole, "--split-max-tensors", "3").code == 0
    second = tmp_path / "whole-00002-of-00003.gguf"
    raw = bytearray(second.read_bytes())
    raw[-33] ^= 1
    second.write_bytes(raw)
    done = typed("split", whole, "--check", second)
    assert done.code == 6 and "bytes differ" in done.err
    second.unlink()
    assert typed("merge", tmp_path / "whole-00001-of-00003.gguf", "-o", tmp_path / "out.gguf").code == 3
    assert typed("merge", whole, "-o", tmp_path / "out.gguf").code == 2
    assert typed("split", tmp_path / "whole-00001-of-00003.gguf").code in (2, 3)
    assert typed("split", whole).code == 2
    assert not (tmp_path / "out.gguf").exists()


def test_nothing_is_replaced_unasked(tmp_path: Path) -> None:
    whole = made_by_gguf(tmp_path / "whole.gguf")
    assert typed("split", whole, "--split-max-tensors", "3").code == 0
    assert typed("split", whole, "--split-max-tensors", "3").code == 7
    assert typed("split", whole, "--split-max-tensors", "3", "--force").code == 0
    assert typed("merge", tmp_path / "whole-00001-of-00003.gguf").code == 7
    done = typed(
        "merge", tmp_path / "whole-00001-of-00003.gguf", "--force", "-o", tmp_path / "whole-00002-of-00003.gguf"
    )
    assert done.code == 7 and "the output would replace its own source" in done.err


def test_the_receipt_goes_on(tmp_path: Path, fixtures: Path) -> None:
    source = fixtures / "legacy-llama" / "ggjt1-20230428" / "q4_0.bin"
    ggferry.convert(source, tmp_path / "new.gguf", verify="fast")
    shards = ggferry.split(tmp_path / "new.gguf", split_max_tensors=9)
    receipt = json.loads(Path(str(shards.receipt_path)).read_text())
    assert [step["command"] for step in receipt["edits"]] == ["split"]
    assert [each["name"] for each in receipt["output"]["files"]] == [os.path.basename(path) for path in shards.outputs]
    assert ggferry.verify(source, shards.output, level="fast").proof.level == "fast"
    with (tmp_path / "new.gguf").open("r+b") as file:
        file.seek(-40, os.SEEK_END)
        file.write(b"\1")
    again = ggferry.split(tmp_path / "new.gguf", tmp_path / "other", split_max_tensors=9)
    assert again.receipt_path is None and "not written for these bytes" in again.notes[-1]


@pytest.mark.parametrize(
    "names",
    [
        ("m.gguf.part1of3", "m.gguf.part2of3", "m.gguf.part3of3"),
        ("m.gguf-split-a", "m.gguf-split-b", "m.gguf-split-c"),
        ("m.gguf.000", "m.gguf.001", "m.gguf.002"),
        ("m.gguf.part-aa", "m.gguf.part-ab", "m.gguf.part-ac"),
    ],
)
def test_pieces_cut_at_any_byte(tmp_path: Path, names: tuple[str, ...]) -> None:
    whole = made_by_gguf(tmp_path / "whole.gguf")
    raw = whole.read_bytes()
    cuts = [0, 500, len(raw) - 100, len(raw)]  # within the header, and within the last tensors
    for name, begin, end in zip(names, cuts, cuts[1:], strict=False):
        (tmp_path / name).write_bytes(raw[begin:end])
    assert typed("merge", tmp_path / names[1], "--dry-run").code == 0
    done = typed("merge", tmp_path / names[0])
    assert done.code == 0, done.err
    assert (tmp_path / "m.gguf").read_bytes() == raw
    out = tmp_path / "out.gguf"
    paths = [tmp_path / name for name in names]
    assert typed("merge", *paths, "-o", out).code == 0
    assert out.read_bytes() == raw
    assert typed("merge", *paths[::-1], "-o", out, "--force").code == 2
    paths[1].write_bytes(paths[1].read_bytes()[:-1])
    assert typed("merge", paths[0], "-o", out, "--force").code == 5
    assert out.read_bytes() == raw
    paths[2].write_bytes(raw[cuts[2] :] + b"x" * 33)
    assert typed("merge", paths[0], "-o", out, "--force").code == 5
    paths[1].unlink()
    assert typed("merge", paths[0], "-o", out, "--force").code == 3


def test_pieces_of_other_containers(tmp_path: Path, fixtures: Path) -> None:
    raw = (fixtures / "hf" / "ckpt" / "llama" / "model.safetensors").read_bytes()
    (tmp_path / "m.safetensors.part1of2").write_bytes(raw[:100_000])
    (tmp_path / "m.safetensors.part2of2").write_bytes(raw[100_000:])
    out = tmp_path / "m.safetensors"
    assert typed("merge", tmp_path / "m.safetensors.part2of2", "-o", out).code == 0 and out.read_bytes() == raw
    (tmp_path / "m.safetensors.part2of2").write_bytes(raw[100_000:-1])
    done = typed("merge", tmp_path / "m.safetensors.part1of2", "-o", out, "--force")
    assert done.code == 5 and out.read_bytes() == raw and len(list(tmp_path.iterdir())) == 3


def test_llama_cpp_loads_the_shards(tmp_path: Path, fixtures: Path) -> None:
    whole = tmp_path / "whole.gguf"
    shutil.copy(fixtures / "hf" / "out" / "llama" / "llama.f32.gguf", whole)
    done = ggferry.split(whole, tmp_path / "a", split_max_tensors=8)
    other = ggferry.split(whole, tmp_path / "b", split_max_size="200K", tensor_first_split=False)
    first, second, third = continuations([1, 20, 30], 6, whole, Path(done.output), Path(other.output))
    assert len(first) == 6 and first == second == third
