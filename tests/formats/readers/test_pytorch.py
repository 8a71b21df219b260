"""PyTorch checkpoints against torch.load(weights_only=True): types, views, shared storages, nesting, shards, Meta."""

from __future__ import annotations

import json
import os
import shutil
import sys
import zipfile
from collections import Counter, OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ggferry.formats import errors
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.declared_checksums import verify_checksums
from ggferry.formats.fields import Struct
from ggferry.formats.reader import HeaderLayout, find_reader
from ggferry.formats.readers.pytorch import open_checkpoint
from ggferry.formats.tensor_read import read_rows

TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e8m0fnu: "F8_E8M0",
}


def bits(dtype: torch.dtype, count: int, seed: int = 0) -> torch.Tensor:
    """`count` elements of any bit pattern (of 0 and 1 for bool)."""
    if not count:
        return torch.empty(0, dtype=dtype)
    size = count * torch.empty(0, dtype=dtype).element_size()
    raw = np.random.default_rng(seed).integers(0, 2 if dtype == torch.bool else 256, size, np.uint8)
    return torch.from_numpy(raw).view(dtype)


def bytes_of(value: torch.Tensor) -> bytes:
    flat = torch.empty(value.numel(), dtype=value.dtype)
    flat.copy_(value.detach().reshape(-1))
    return flat.view(torch.uint8).numpy().tobytes() if value.numel() else b""


def whole(held: Checkpoint, name: str) -> bytes:
    ref = held.tensors[name]
    return read_rows(held, ref, 0, ref.rows).tobytes()


def save(folder: Path, value: Any, name: str = "model.pth", **options: Any) -> str:
    path = os.fspath(folder / name)
    torch.save(value, path, **options)
    return path


def assert_equal(held: Checkpoint, expected: dict[str, torch.Tensor]) -> None:
    assert list(held.tensors) == list(expected)
    for name, value in expected.items():
        ref = held.tensors[name]
        assert (ref.type.name, ref.shape) == (TYPES[value.dtype], tuple(value.shape))
        assert whole(held, name) == bytes_of(value), name


def check(path: str) -> Checkpoint:
    """Open a file whose top level is a plain state dict, and hold it against torch.load."""
    held = open_checkpoint(path)
    assert_equal(held, torch.load(path, weights_only=True))
    verify_checksums(held)
    return held


# --- types and views ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_every_type(dtype: torch.dtype, tmp_path: Path) -> None:
    base = bits(dtype, 120)
    held = check(
        save(
            tmp_path,
            {
                "plain": base.reshape(10, 12),
                "scalar": base[7],
                "empty": base[:0],
                "hollow": base[:0].reshape(3, 0, 2),
                "turned": base.reshape(10, 12).t(),
                "parameter": torch.nn.Parameter(base.reshape(2, 60), requires_grad=False),
            },
        )
    )
    assert held.tensors["plain"].spans[0].strides is None
    assert held.tensors["turned"].spans[0].strides == (1, 12)
    assert len({ref.spans[0].file for ref in held.tensors.values()}) == 1


@st.composite
def views(draw: st.DrawFn) -> torch.Tensor:
    """Any view of a small storage, made the ways people make them."""
    dtype = draw(st.sampled_from(sorted(TYPES, key=str)))
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    value = bits(dtype, int(np.prod(shape)), draw(st.integers(0, 9))).reshape(shape)
    for _ in range(draw(st.integers(0, 4))):
        axis = draw(st.integers(0, max(0, value.dim() - 1)))
        kind = draw(st.sampled_from(["permute", "slice", "step", "expand", "select", "diagonal"]))
        if kind == "permute":
            value = value.permute(draw(st.permutations(range(value.dim()))))
        elif kind == "slice" and value.dim():
            value = value.narrow(axis, draw(st.integers(0, value.shape[axis] - 1)), 1)
        elif kind == "step" and value.dim():
            value = value[(slice(None),) * axis + (slice(None, None, 2),)]
        elif kind == "expand":
            value = value.unsqueeze(0).expand(draw(st.integers(1, 3)), *value.shape)
        elif kind == "select" and value.dim():
            value = value.select(axis, draw(st.integers(0, value.shape[axis] - 1)))
        elif kind == "diagonal" and value.dim() > 1:
            value = value.diagonal()
    return value


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
@given(st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1, max_size=9), views(), min_size=1, max_size=4))
def test_any_views(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    check(save(tmp_path, tensors)).close()


def test_shared_storages_are_one_span(tmp_path: Path) -> None:
    base = torch.arange(60.0).reshape(6, 10)
    other = torch.arange(3.0)
    tensors = {"embed": base, "head": base, "turned": base.t(), "part": base[2:4, 1::3], "other": other}
    held = check(save(tmp_path, tensors))
    assert held.tensors["embed"].spans == held.tensors["head"].spans
    assert [note for note in held.notes if "tied" in note] == ["one storage, several names (tied): embed = head"]
    assert held.tensors["part"].spans[0].offset == held.tensors["embed"].spans[0].offset + 21 * 4
    assert len(zipfile.ZipFile(held.path).namelist()) == len(held.checksums)


def test_a_transposed_view_is_read_in_slabs(tmp_path: Path) -> None:
    value = torch.arange(1500 * 700, dtype=torch.int32).reshape(1500, 700).t()
    held = open_checkpoint(save(tmp_path, {"w": value}))
    ref = held.tensors["w"]
    assert read_rows(held, ref, 123, 457).tobytes() == bytes_of(value[123:457])


# --- what stands around the tensors ------------------------------------------------------------


def test_a_module_state_dict(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5), torch.nn.Embedding(7, 2))
    held = check(save(tmp_path, module.state_dict()))
    assert held.tensors["1.num_batches_tracked"].shape == ()


def test_tensors_with_attributes(tmp_path: Path) -> None:
    tensor, parameter = torch.ones(2), torch.nn.Parameter(torch.ones(3))
    tensor.origin, parameter.origin = "here", "there"  # type: ignore[attr-defined]
    check(save(tmp_path, {"t": tensor, "p": parameter, "requires": torch.ones(1, requires_grad=True)}))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pickle_protocols(protocol: int, tmp_path: Path) -> None:
    """torch.load(weights_only=True) knows only protocol 2; ours reads the same dictionary from all of them."""
    tensors = {"a": bits(torch.bfloat16, 6).reshape(2, 3), "ü": bits(torch.uint16, 4)}
    plain = {"note": "x" * 300, "more": [1, -70000, 2.5, None, 10**20, b"raw", b"r" * 300, {"s": {1, 2}}, (1, 2, 3, 4)]}
    protocol_4 = {"frozen": frozenset("ab"), "bytes": bytearray(b"abc")} if protocol > 3 else {}
    assert_equal(open_checkpoint(save(tmp_path, {**tensors, **plain, **protocol_4}, pickle_protocol=protocol)), tensors)


@pytest.mark.parametrize("wrapper", ["state_dict", "model", "module", "model_state_dict"])
def test_wrapped_state_dicts(wrapper: str, tmp_path: Path) -> None:
    inner = OrderedDict(a=torch.ones(2), b=torch.zeros(3))
    held = open_checkpoint(save(tmp_path, {wrapper: inner, "epoch": 3, "optimizer": {"state": {0: torch.ones(9)}}}))
    assert_equal(held, inner)
    assert any(repr(wrapper) in note for note in held.notes)
    assert any("epoch" in note for note in held.notes)
    (left,) = held.dropped
    assert (left.ref.name, left.ref.shape) == ("optimizer.state.0", (9,))
    assert wrapper in left.reason


def test_wrappers_within_wrappers(tmp_path: Path) -> None:
    held = open_checkpoint(save(tmp_path, {"module": {"state_dict": {"a": torch.ones(2)}, "step": 1}, "seed": 2}))
    assert list(held.tensors) == ["a"]
    assert any("'module.state_dict'" in note for note in held.notes)


def test_nested_dictionaries_and_lists_are_joined_with_dots(tmp_path: Path) -> None:
    value = {
        "encoder": {"layers": [{"w": torch.ones(1)}, {"w": torch.zeros(2)}], "names": ["x", "y"]},
        "pair": (torch.ones(3), torch.ones(4)),
        5: {"bias": torch.ones(5)},
        "model": {"size": 3},
    }
    held = open_checkpoint(save(tmp_path, value))
    assert {name: ref.shape[0] for name, ref in held.tensors.items()} == {
        "encoder.layers.0.w": 1,
        "encoder.layers.1.w": 2,
        "pair.0": 3,
        "pair.1": 4,
        "5.bias": 5,
    }
    assert any("encoder.names" in note and "model.size" in note for note in held.notes)


def test_small_values_beside_tensors_are_kept(tmp_path: Path) -> None:
    """Numbers, words and shapes; nothing that is long, or no number of JSON."""
    kept = {"bits": 4, "how": "4bit_u8", "shape": torch.Size((96, 128)), "flag": True, "part": 1.5}
    others = {"big": 1 << 70, "nan": float("nan"), "long": "x" * 65, "sizes": (1 << 70,), "kind": torch.float16}
    torch.save({"layer": {"W_q": torch.zeros(2), **kept, **others}}, tmp_path / "model.pt")
    held = open_checkpoint(str(tmp_path / "model.pt"))
    assert held.header["values"] == {f"layer.{key}": value for key, value in kept.items()}
    held.close()


def test_plain_values_of_every_kind_are_left_out(tmp_path: Path) -> None:
    value = {
        "w": torch.ones(2),
        "dtype": torch.complex64,
        "device": torch.device("cpu"),
        "size": torch.Size([1, 2]),
        "counter": Counter("abc"),
        "bytes": bytearray(b"\xff\0"),
        "complex": 1 + 2j,
        "layout": torch.strided,
        "set": {"a"},
        "list": [1, [2, (3, {})]],
    }
    path = save(tmp_path, value)
    assert torch.load(path, weights_only=True)["w"].shape == (2,)
    held = open_checkpoint(path)
    assert list(held.tensors) == ["w"]


@pytest.mark.parametrize(
    ("value", "kind", "words"),
    [
        (torch.ones(2), errors.UnsupportedError, "one tensor"),
        ([torch.ones(2)], errors.UnsupportedError, "a list"),
        ({}, errors.UnsupportedError, "has no tensors"),
        ({"a": 1}, errors.UnsupportedError, "has no tensors"),
        (torch.optim.Adam([torch.nn.Parameter(torch.ones(1))]).state_dict(), errors.UnsupportedError, "optimizer"),
        ({"a": {"b": torch.ones(1)}, "a.b": torch.ones(1)}, errors.DuplicateError, "a.b"),
        ({"a": torch.ones(2, dtype=torch.complex64)}, errors.UnsupportedTypeError, "Complex"),
        ({"a": torch.eye(3).to_sparse()}, errors.UnsupportedTypeError, "sparse"),
        ({"a": torch.eye(3).to_sparse_csr()}, errors.UnsupportedTypeError, "sparse"),
        ({"a": torch.ones(3, device="meta")}, errors.UnsupportedTypeError, "meta"),
        (
            {"a": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)},
            errors.UnsupportedTypeError,
            "quantized",
        ),
        ({"a": torch.ones(2).to(torch.float8_e5m2fnuz)}, errors.UnsupportedTypeError, "float8_e5m2fnuz"),
        ({"a": torch._neg_view(torch.ones(2))}, errors.UnsupportedTypeError, "neg"),
        ({"a": torch.zeros(1).expand(1 << 20, 1 << 10)}, errors.OutOfRangeError, "expanded"),
        ({"n" * 1025: torch.ones(1)}, errors.OutOfRangeError, "length"),
        ({"": torch.ones(1)}, errors.OutOfRangeError, "length"),
        ({"\udc00": torch.ones(1)}, errors.EncodingError, "name"),
        ({(1, 2): torch.ones(1)}, errors.UnsupportedTypeError, "key"),
        ({1.5: torch.ones(1)}, errors.UnsupportedTypeError, "key"),
        (torch.nn.Linear(2, 2), errors.UnsafePickleError, "torch.nn.modules.linear.Linear"),
        ({"a": np.ones(3)}, errors.UnsafePickleError, "numpy"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.filterwarnings("ignore")
def test_what_is_not_carried_is_named(value: Any, kind: type[errors.GgferryError], words: str, tmp_path: Path) -> None:
    path = save(tmp_path, value)
    with pytest.raises(kind, match=words) as caught:
        open_checkpoint(path)
    assert caught.value.path == path


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    value: Any = torch.ones(1)
    for _ in range(70):
        value = {"a": value}
    with pytest.raises(errors.OutOfRangeError, match="nesting"):
        open_checkpoint(save(tmp_path, value))


# --- the archive's own words -------------------------------------------------------------------


def rewrite(path: str, changes: dict[str, bytes | None]) -> str:
    """The archive with records replaced or (None) left out, stored plainly by Python's zipfile."""
    again = path + ".again.pth"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(again, "w", zipfile.ZIP_STORED) as new:
        root = old.namelist()[0].partition("/")[0]
        for name in old.namelist():
            data = changes.get(name.partition("/")[2], old.read(name))
            if data is not None:
                new.writestr(name, data)
        for name in changes.keys() - {name.partition("/")[2] for name in old.namelist()}:
            new.writestr(f"{root}/{name}", changes[name] or b"")
    return again


def test_an_archive_python_stored_again_is_read(tmp_path: Path) -> None:
    check(rewrite(save(tmp_path, {"a": torch.arange(5.0)}), {}))


def test_files_of_older_torch_lack_some_records(tmp_path: Path) -> None:
    gone = dict.fromkeys(("byteorder", ".format_version", ".storage_alignment", ".data/serialization_id"))
    held = check(rewrite(save(tmp_path, {"a": torch.arange(5.0)}), gone))
    assert held.header["byteorder"] == "little"


def test_big_endian_is_marked(tmp_path: Path) -> None:
    value = torch.arange(6, dtype=torch.int32).reshape(2, 3)
    swapped = value.numpy().astype(">i4").tobytes()
    held = open_checkpoint(rewrite(save(tmp_path, {"a": value}), {"byteorder": b"big", "data/0": swapped}))
    assert held.big_endian
    assert held.tensors["a"].big_endian
    assert np.array_equal(np.frombuffer(whole(held, "a"), ">i4").reshape(2, 3), value.numpy())
    assert any("big-endian" in note for note in held.notes)
    assert sys.byteorder == "little"
    again = torch.load(held.path, weights_only=True)["a"]  # torch swaps at load: the same numbers
    assert torch.equal(again, value)


def test_files_without_checksums_are_read_and_told(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        held = check(save(tmp_path, {"a": torch.ones(3)}))
    finally:
        torch.serialization.set_crc32_options(True)
    assert held.checksums == ()
    assert any("without checksums" in note for note in held.notes)


def test_a_flipped_byte_of_a_storage_is_found(tmp_path: Path) -> None:
    path = save(tmp_path, {"a": torch.arange(4096.0), "b": torch.ones(8)})
    held = open_checkpoint(path)
    assert verify_checksums(held, budget=1000) == sum(each.nbytes for each in held.checksums)
    offset = held.tensors["a"].spans[0].offset
    data = bytearray(Path(path).read_bytes())
    data[offset + 5000] ^= 4
    Path(path).write_bytes(data)
    assert torch.load(path, weights_only=True)["b"].shape == (8,)  # torch does not look
    with pytest.raises(errors.ChecksumError) as caught:
        verify_checksums(open_checkpoint(path))
    assert caught.value.offset == offset


def test_idle_storages_are_told(tmp_path: Path) -> None:
    held = open_checkpoint(rewrite(save(tmp_path, {"a": torch.ones(3)}), {"data/77": b"abc"}))
    assert any("data/77" in note for note in held.notes)


# --- several files -----------------------------------------------------------------------------


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    parts = [{"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4).bfloat16()}, {"c": torch.arange(3)}]
    places = {}
    for number, part in enumerate(parts, 1):
        name = f"pytorch_model-{number:05}-of-00002.bin"
        torch.save(part, tmp_path / name)
        places |= dict.fromkeys(part, name)
    index = {"metadata": {"total_size": 24 + 8 + 24}, "weight_map": places}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    (tmp_path / "config.json").write_text('{"architectures": ["X"]}')
    return tmp_path


@pytest.mark.parametrize("name", ["", "pytorch_model.bin.index.json", "pytorch_model-00001-of-00002.bin"])
def test_shards_open_through_any_file(sharded: Path, name: str) -> None:
    path = os.fspath(sharded / name) if name else os.fspath(sharded)
    reader, match = find_reader(path)
    assert (reader.name, match.container) == ("pytorch", "pytorch")
    held = reader.open(path, ())
    expected = {}
    for part in sorted(sharded.glob("*.bin")):
        expected |= torch.load(part, weights_only=True)
    assert_equal(held, expected)
    assert held.metadata == {"architectures": ["X"]}
    assert verify_checksums(held) > 0


def test_a_missing_shard(sharded: Path) -> None:
    (sharded / "pytorch_model-00002-of-00002.bin").unlink()
    with pytest.raises(errors.NotFoundError, match="00002-of-00002"):
        open_checkpoint(os.fspath(sharded))


def test_a_tensor_not_in_the_index(sharded: Path) -> None:
    torch.save({"c": torch.arange(3), "d": torch.ones(1)}, sharded / "pytorch_model-00002-of-00002.bin")
    with pytest.raises(errors.UnexpectedTensorError):
        open_checkpoint(os.fspath(sharded))


def test_oracle_bin_shards_equal_torch(fixtures: Path) -> None:
    folder = fixtures / "hf" / "ckpt" / "llama_bin_shards"
    held = open_checkpoint(os.fspath(folder))
    expected = {}
    for part in sorted(folder.glob("*.bin")):
        expected |= torch.load(part, weights_only=True)
    assert_equal(held, expected)
    assert not any("total_size" in note for note in held.notes)


def test_oracle_adapter_of_2023_equals_torch(fixtures: Path) -> None:
    found = sorted((fixtures / "legacy-llama" / "lora").glob("*.bin"))
    zips = [path for path in found if path.read_bytes()[:2] == b"PK"]
    assert zips
    for path in zips:
        check(os.fspath(path))


# --- Meta --------------------------------------------------------------------------------------

LLAMA_2 = HeaderLayout(
    "meta",
    (("pytorch-meta", None),),
    Struct("nothing", ""),
    ("tok_embeddings.weight",),
    embedding="tok_embeddings.weight",
    width="dim",
    column_split=("tok_embeddings.weight", "*.attention.wo.weight", "*.feed_forward.w2.weight"),
)
LLAMA_3 = HeaderLayout(
    "meta-llama3",
    (("pytorch-meta", None),),
    Struct("nothing", ""),
    ("tok_embeddings.weight",),
    embedding="tok_embeddings.weight",
    width="dim",
    column_split=("*.attention.wo.weight", "*.feed_forward.w2.weight"),
)
LAYOUTS = (LLAMA_2, LLAMA_3)


def test_oracle_parts_join_to_the_whole(fixtures: Path) -> None:
    folder = fixtures / "legacy-llama" / "pth"
    one = open_checkpoint(os.fspath(folder / "S128-1sh"), LAYOUTS)
    two = open_checkpoint(os.fspath(folder / "S128-2sh"), LAYOUTS)
    assert (one.container, two.container, two.layout, len(two.files)) == ("pytorch-meta", "pytorch-meta", "meta", 2)
    assert list(one.tensors) == list(two.tensors)
    for name, ref in one.tensors.items():
        assert two.tensors[name].shape == ref.shape
        assert whole(two, name) == whole(one, name), name
    copies = [(left.ref.name, left.ref.spans[0].file) for left in two.dropped]
    assert copies == [(name, 1) for name, ref in one.tensors.items() if len(ref.shape) == 1]
    assert all(left.same_as is two.tensors[left.ref.name] for left in two.dropped)
    assert two.metadata["dim"] == 128
    assert set(two.sidecars) == {"params.json", "tokenizer.model"}
    assert_equal(one, torch.load(folder / "S128-1sh" / "consolidated.00.pth", weights_only=True))


def meta_model(folder: Path, parts: int, *, rows: bool = False, **params: int) -> Path:
    """A LLaMA in parts: dim 8, 12 tokens; the embedding cut along rows (LLaMA 3) or columns."""
    embedding, wo = torch.arange(96.0).reshape(12, 8), torch.arange(64.0).reshape(8, 8)
    for part in range(parts):
        mine = embedding.chunk(parts, 0 if rows else 1)[part]
        state = {
            "tok_embeddings.weight": mine.clone(),
            "layers.0.attention.wq.weight": wo.chunk(parts, 0)[part].clone(),
            "layers.0.attention.wo.weight": wo.chunk(parts, 1)[part].clone(),
            "norm.weight": torch.ones(8),
        }
        torch.save(state, folder / f"consolidated.{part:02}.pth")
    (folder / "params.json").write_text(json.dumps({"dim": 8, **params}))
    return folder


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("rows", [False, True])
def test_which_way_the_embedding_was_cut(parts: int, rows: bool, tmp_path: Path) -> None:
    meta_model(tmp_path, parts, rows=rows, vocab_size=12)
    for path in (tmp_path, tmp_path / f"consolidated.{parts - 1:02}.pth"):
        held = open_checkpoint(os.fspath(path), LAYOUTS)
        assert held.tensors["tok_embeddings.weight"].shape == (12, 8)
        assert whole(held, "tok_embeddings.weight") == bytes_of(torch.arange(96.0))
        assert whole(held, "layers.0.attention.wo.weight") == bytes_of(torch.arange(64.0))
        assert whole(held, "layers.0.attention.wq.weight") == bytes_of(torch.arange(64.0))
        assert held.layout == ("meta-llama3" if rows and parts > 1 else "meta")


def test_a_missing_part_is_told(tmp_path: Path) -> None:
    meta_model(tmp_path, 4)
    (tmp_path / "consolidated.03.pth").unlink()
    with pytest.raises(errors.NotFoundError, match="parts of the model are missing"):
        open_checkpoint(os.fspath(tmp_path), LAYOUTS)
    for number in (1, 2):
        (tmp_path / f"consolidated.0{number}.pth").unlink()
    with pytest.raises(errors.NotFoundError, match="4 parts would fit"):
        open_checkpoint(os.fspath(tmp_path), LAYOUTS)
    shutil.move(tmp_path / "consolidated.00.pth", tmp_path / "consolidated.01.pth")
    with pytest.raises(errors.NotFoundError, match=r"consolidated\.00\.pth"):
        open_checkpoint(os.fspath(tmp_path), LAYOUTS)


def test_a_missing_part_of_a_model_cut_along_rows(tmp_path: Path) -> None:
    meta_model(tmp_path, 4, rows=True, vocab_size=12)
    for number in (1, 2, 3):
        (tmp_path / f"consolidated.0{number}.pth").unlink()
    with pytest.raises(errors.NotFoundError, match="vocab_size"):
        open_checkpoint(os.fspath(tmp_path), LAYOUTS)


def test_too_wide_for_its_params(tmp_path: Path) -> None:
    meta_model(tmp_path, 1)
    (tmp_path / "params.json").write_text('{"dim": 4}')
    with pytest.raises(errors.InconsistentError, match="dim"):
        open_checkpoint(os.fspath(tmp_path), LAYOUTS)


def test_parts_nobody_described(tmp_path: Path) -> None:
    with pytest.raises(errors.UnsupportedError, match="nobody"):
        open_checkpoint(os.fspath(meta_model(tmp_path, 2)), ())


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda s: s.pop("norm.weight"), errors.MissingError),
        (lambda s: s.update(x=torch.ones(1)), errors.UnexpectedTensorError),
        (lambda s: s.update({"norm.weight": torch.ones(9)}), errors.ShapeError),
        (lambda s: s.update({"norm.weight": torch.ones(8).half()}), errors.ShapeError),
        (lambda s: s.update({"tok_embeddings.weight": torch.ones(12, 5)}), errors.ShapeError),
    ],
)
def test_parts_that_disagree(change: Any, kind: type[errors.GgferryError], tmp_path: Path) -> None:
    path = meta_model(tmp_path, 2) / "consolidated.01.pth"
    state = torch.load(path, weights_only=True)
    change(state)
    torch.save(state, path)
    with pytest.raises(kind) as caught:
        open_checkpoint(os.fspath(tmp_path), LAYOUTS)
    assert caught.value.path == os.fspath(path)


def test_vectors_that_are_cut_and_matrices_that_are_repeated(tmp_path: Path) -> None:
    meta_model(tmp_path, 2)
    for part in range(2):
        path = tmp_path / f"consolidated.0{part}.pth"
        state = torch.load(path, weights_only=True)
        state |= {"layers.0.attention.wq.bias": torch.full((4,), float(part)), "layers.0.gate.weight": torch.ones(3, 8)}
        torch.save(state, path)
    options = {"split_vectors": ("*.wq.bias",), "repeated": ("*.gate.weight",)}
    layout = replace(LLAMA_2, name="x", options=options)
    held = open_checkpoint(os.fspath(tmp_path), (layout,))
    assert whole(held, "layers.0.attention.wq.bias") == bytes_of(torch.tensor([0.0] * 4 + [1.0] * 4))
    assert held.tensors["layers.0.gate.weight"].shape == (3, 8)
    assert [left.ref.name for left in held.dropped] == ["norm.weight", "layers.0.gate.weight"]
