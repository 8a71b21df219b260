"""Importance matrices: llama-imatrix's own file, files made here in both containers, and damaged ones.

What the weights are for is the last test: ggml's quantizer, given ours, makes the bytes llama-quantize made.
"""

from __future__ import annotations

import ctypes
import importlib.util
import struct
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggferry.formats.errors import (
    BadValueError,
    CorruptError,
    DuplicateError,
    EncodingError,
    GgferryError,
    InconsistentError,
    MissingError,
    NotFoundError,
    OutOfRangeError,
    ShapeError,
    TrailingBytesError,
    TruncatedError,
    UsageError,
)
from ggferry.formats.imatrix.matrix import Imatrix
from ggferry.formats.imatrix.read import read_imatrix
from ggferry.formats.readers.gguf import SPEC
from ggferry.formats.tensor_read import read_rows
from helpers.peers import Peers

SUMS = {  # two weights, one of them three experts of four columns
    "blk.0.attn_q.weight": (np.array([[8.0, 2.0, 0.5, 0.0]], np.float32), [4.0]),
    "blk.0.ffn_down_exps.weight": (np.arange(12, dtype=np.float32).reshape(3, 4), [2.0, 0.0, 3.0]),
}


def gguf_file(
    path: Path, entries: Mapping[str, tuple[np.ndarray, Iterable[float]]] = SUMS, *, big: bool = False, **keys: Any
) -> Path:
    """An importance matrix as llama-imatrix writes it, by the gguf package.

    `keys`: None leaves a key out; `plain`: sums of the inputs themselves, by name, as `ggferry imatrix` adds them, and
    `sketches` of their second moments.
    """
    writer = gguf.GGUFWriter(path, "", endianess=gguf.GGUFEndian.BIG if big else gguf.GGUFEndian.LITTLE)
    writer.kv_data[0].clear()
    writer.add_type("imatrix")
    if (datasets := keys.get("datasets", ["a.txt", "b.txt"])) is not None:
        writer.add_array("imatrix.datasets", datasets)
    for key in ("chunk_count", "chunk_size"):
        if (value := keys.get(key, 12)) is not None:
            writer.add_uint32(f"imatrix.{key}", value)
    for name, sums in keys.get("plain", {}).items():
        writer.add_tensor(f"{name}.in_sum", sums)
    if sketches := keys.get("sketches", {}):
        writer.add_string("ggferry.imatrix.sketch", "splitmix64")
    for name, sums in sketches.items():
        writer.add_tensor(f"{name}.in_sketch", sums)
    for name, (sums, counts) in entries.items():
        writer.add_tensor(f"{name}.in_sum2", sums)
        if counts is not None:
            writer.add_tensor(f"{name}.counts", np.array(counts, np.float32).reshape(-1, 1))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def dat_bytes(
    entries: Iterable[tuple[bytes, int, list[float]]], tail: tuple[int, bytes] | None = (7, b"calib.txt")
) -> bytes:
    """The older container, field by field as save_imatrix_legacy of imatrix.cpp lays it out."""
    listed = list(entries)
    data = struct.pack("<i", len(listed))
    for name, calls, values in listed:
        data += struct.pack(f"<i{len(name)}sii{len(values)}f", len(name), name, calls, len(values), *values)
    return data if tail is None else data + struct.pack(f"<ii{len(tail[1])}s", tail[0], len(tail[1]), tail[1])


def saved(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    return str(path)


def opened(path: Path, data: bytes) -> Imatrix:
    return read_imatrix(saved(path, data))


@pytest.mark.parametrize("counts", [[90.0], [90.0, 90.0, 90.0], [0.0, 0.0, 0.0], [90.0, 0.0, 5.0]])
@pytest.mark.parametrize("shape", [(3, 2, 4), (2, 4), (6, 4), None])
def test_directions_of_a_stack_whatever_its_counts_and_sketches(
    counts: list[float], shape: tuple[int, ...] | None, tmp_path: Path
) -> None:
    """One count for all matrices, as no program writes them, leaves out sketches; nothing is divided by 0."""
    name, random = "blk.0.ffn_up_exps.weight", np.random.default_rng(3)
    sums = np.abs(random.normal(size=(3, 4))).astype(np.float32) * 100
    given = {} if shape is None else {name: random.normal(size=shape).astype(np.float32)}
    path = gguf_file(tmp_path / "i.gguf", {name: (sums, counts)}, plain={name: sums / 9}, sketches=given)
    if (len(counts), shape) == (1, (2, 4)):  # of one matrix, by its count, and too small for it
        with pytest.raises(InconsistentError, match="in_sketch"):
            read_imatrix(str(path))
        return
    with read_imatrix(str(path)) as matrix:
        for expert in range(3):
            found = matrix.directions(name, (3, 8, 4), expert)
            assert found is not None and found.values.shape[0] == 4
            assert all(np.isfinite(each).all() for each in (found.values, found.variances, found.gains))


def test_llama_imatrixs_own_file(fixtures: Path, peer: Peers) -> None:
    path = fixtures / "quantize" / "k256.imatrix.gguf"
    raw = {tensor.name: tensor.data for tensor in gguf.GGUFReader(path).tensors}
    with read_imatrix(str(path)) as matrix:
        assert (matrix.chunks, matrix.chunk_size, matrix.datasets, matrix.legacy) == (
            40,
            64,
            ("tok/corpus.txt",),
            False,
        )
        assert len(matrix.entries) == 14 == len(raw) // 2
        for name in matrix.entries:
            expected = raw[name + ".in_sum2"].reshape(1, -1) / raw[name + ".counts"].reshape(-1, 1)
            weights = matrix.weights(name, (64, 256))
            assert weights is not None and weights.dtype == np.float32 and np.array_equal(weights, expected)
        assert matrix.weights("output_norm.weight", (256,)) is None
        made = SPEC.open(str(peer("quantize/im_k256.Q4_0.gguf")), ()).metadata
        keys = matrix.quantize_keys()
        assert {key: value for key, value in made.items() if key.startswith("quantize.")} == keys | {
            "quantize.imatrix.file": made["quantize.imatrix.file"]  # llama-quantize was given a relative path
        }
        assert keys["quantize.imatrix.file"].data == str(path)[:127]


@pytest.mark.parametrize("big", [False, True])
def test_experts_divide_by_their_own_counts(tmp_path: Path, big: bool) -> None:
    with read_imatrix(str(gguf_file(tmp_path / "m.gguf", big=big))) as matrix:
        assert matrix.big_endian == big and matrix.datasets == ("a.txt", "b.txt")
        plain = matrix.weights("blk.0.attn_q.weight", (8, 4))
        assert plain is not None and plain.tolist() == [[2.0, 0.5, 0.125, 0.0]]
        experts = matrix.weights("blk.0.ffn_down_exps.weight", (3, 8, 4))
        third = [float(np.float32(x) / np.float32(3)) for x in (8, 9, 10, 11)]
        assert experts is not None and experts.tolist() == [[0.0, 0.5, 1.0, 1.5], [1.0] * 4, third]


@pytest.mark.parametrize("big", [False, True])
def test_means_of_inputs_divide_by_the_same_counts(tmp_path: Path, big: bool) -> None:
    name, of = "blk.0.ffn_down_exps.weight", np.array([[2, -4, 0, 1], [0, 0, 0, 0], [3, 6, -3, 1]], np.float32)
    with read_imatrix(str(gguf_file(tmp_path / "m.gguf", big=big, plain={name: of}))) as matrix:
        assert matrix.means("blk.0.attn_q.weight", (8, 4)) is None and matrix.means("other.weight", (8, 4)) is None
        third = float(np.float32(1) / np.float32(3))
        expected = [[1.0, -2.0, 0.0, 0.5], [0.0] * 4, [1.0, 2.0, -1.0, third]]
        found = matrix.means(name, (3, 8, 4))
        assert found is not None and found.dtype == np.float32 and found.tolist() == expected
        pruned = matrix.of_experts({name: (2, 0)}).means(name, (2, 8, 4))
        assert pruned is not None and pruned.tolist() == [expected[2], expected[0]]
        with pytest.raises(ShapeError):
            matrix.means(name, (3, 8, 5))


def test_a_mean_that_is_no_number_is_named(tmp_path: Path) -> None:
    name = "blk.0.attn_q.weight"
    path = gguf_file(tmp_path / "m.gguf", plain={name: np.array([[1, 2, np.nan, 4]], np.float32)})
    with (
        read_imatrix(str(path)) as matrix,
        pytest.raises(BadValueError, match="sum of the activations of value 2") as refused,
    ):
        matrix.means(name, (8, 4))
    at = refused.value.offset
    assert at is not None and np.isnan(np.frombuffer(path.read_bytes()[at : at + 4], "<f4")[0])


def test_one_count_for_all_experts_and_fractions_of_one(tmp_path: Path) -> None:
    entries = {"a.weight": (np.full((2, 2), 10, np.float32), [2.5]), "b.weight": (np.ones((1, 2), np.float32), [0.49])}
    with read_imatrix(str(gguf_file(tmp_path / "m.gguf", entries))) as matrix:
        assert matrix.entries["a.weight"].counts == (3,) and matrix.entries["b.weight"].counts == (0,)  # lround
        weights = matrix.weights("a.weight", (2, 5, 2))
        assert weights is not None and weights.tolist() == [[float(np.float32(10) / np.float32(3))] * 2] * 2
        assert matrix.weights("b.weight", (5, 2)).tolist() == [[1.0, 1.0]]  # type: ignore[union-attr]


def test_the_older_container(tmp_path: Path) -> None:
    entries = [(b"a.weight", 3, [9.0, 1.0]), (b"b.weight", 0, [4.0, 2.0, 8.0, 6.0]), (b"c", -1, [5.0])]
    with opened(tmp_path / "m.dat", dat_bytes(entries)) as matrix:
        assert (matrix.legacy, matrix.chunks, matrix.datasets) == (True, 7, ("calib.txt",))
        assert matrix.weights("a.weight", (4, 2)).tolist() == [[3.0, float(np.float32(1) / np.float32(3))]]  # type: ignore[union-attr]
        assert matrix.weights("b.weight", (2, 4, 2)).tolist() == [[4.0, 2.0], [8.0, 6.0]]  # type: ignore[union-attr]
        assert matrix.weights("c", (1,)).tolist() == [[5.0]]  # type: ignore[union-attr]
    for tail, chunks, datasets in ((None, 0, ()), ((3, b""), 3, ()), ((-1, b"x"), 0, ("x",))):
        with opened(tmp_path / "m.dat", dat_bytes(entries, tail)) as matrix:
            assert (matrix.chunks, matrix.datasets) == (chunks, datasets)
    with opened(tmp_path / "m.dat", dat_bytes(entries, None) + struct.pack("<i", 5)) as matrix:
        assert (matrix.chunks, matrix.datasets) == (5, ())
        assert set(matrix.quantize_keys()) == {
            f"quantize.imatrix.{k}" for k in ("file", "entries_count", "chunks_count")
        }


def test_both_containers_say_the_same(fixtures: Path, tmp_path: Path) -> None:
    """The oracle's matrix, written as llama-imatrix writes a .dat: (sum / count) × calls, calls being whole chunks."""
    with read_imatrix(str(fixtures / "quantize" / "k256.imatrix.gguf")) as new:
        entries = []
        for name, entry in new.entries.items():
            calls = (max(entry.counts) + new.chunk_size - 1) // new.chunk_size
            means = new.weights(name, (1, entry.values))
            assert means is not None
            entries.append((name.encode(), calls, (means[0] * np.float32(calls)).tolist()))
        with opened(tmp_path / "m.dat", dat_bytes(entries, (new.chunks, b"tok/corpus.txt"))) as old:
            assert (old.chunks, old.datasets, list(old.entries)) == (new.chunks, new.datasets, list(new.entries))
            for name, entry in new.entries.items():
                shape = (1, entry.values)
                np.testing.assert_allclose(old.weights(name, shape), new.weights(name, shape), rtol=2.0**-22)


def test_only_some_weights(tmp_path: Path) -> None:
    path = str(gguf_file(tmp_path / "m.gguf"))
    for include, exclude, expected in (
        ((), (), [*SUMS]),
        (("attn", "nothing"), (), ["blk.0.attn_q.weight"]),
        ((), ("exps",), ["blk.0.attn_q.weight"]),
        ((), ("attn", "ffn"), []),
    ):
        with read_imatrix(path, include, exclude) as matrix:
            assert list(matrix.entries) == expected
            assert bool(matrix.quantize_keys()) == bool(expected)
    with pytest.raises(UsageError, match="included or excluded, not both"):
        read_imatrix(path, ["a"], ["b"])


def test_a_matrix_of_another_model(tmp_path: Path) -> None:
    entries = {**SUMS, "token_embd.weight": (np.ones((1, 4), np.float32), [1.0])}
    with read_imatrix(str(gguf_file(tmp_path / "m.gguf", entries))) as matrix:
        for shape in ((8, 5), (2, 8, 4), (8,)):
            with pytest.raises(ShapeError, match=r"another size than 'blk.0.attn_q.weight'.*4 values.*expected"):
                matrix.weights("blk.0.attn_q.weight", shape)
        assert matrix.weights("token_embd.weight", (100, 5)) is None
        assert matrix.weights("token_embd.weight", (100, 4)) is not None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_a_weight_that_is_no_mean_of_squares(tmp_path: Path, value: float) -> None:
    entries = {"a.weight": (np.array([[1, value, 1]], np.float32), [1.0]), "b.weight": SUMS["blk.0.attn_q.weight"]}
    with read_imatrix(str(gguf_file(tmp_path / "m.gguf", entries))) as matrix:
        with pytest.raises(BadValueError, match=r"value 1 of 'a.weight'") as caught:
            matrix.weights("a.weight", (1, 3))
        assert caught.value.offset == matrix.entries["a.weight"].offset + 4
        assert matrix.weights("b.weight", (1, 4)) is not None


def test_what_is_no_importance_matrix(tmp_path: Path) -> None:
    ones = np.ones((1, 4), np.float32)
    for entries, keys, error, message in (
        ({}, {}, MissingError, "no tensor ends in .in_sum2"),
        ({"a": (ones, None)}, {}, InconsistentError, "'a' has sums or counts, not both"),
        ({"a": (ones, [1, 2, 3])}, {}, InconsistentError, "'a.counts': number, for 4 sums: found 3"),
        ({"a": (ones, [1] * 8)}, {}, InconsistentError, "'a.counts': number, for 4 sums: found 8"),
        ({"a": (ones.astype(np.float16), [1])}, {}, InconsistentError, "'a.in_sum2': type: found F16"),
        ({"a": (ones, [-1])}, {}, OutOfRangeError, "count of 'a'"),
        ({"a": (ones, [float("nan")])}, {}, OutOfRangeError, "count of 'a'"),
        ({"a": (ones, [1])}, {"chunk_count": None}, MissingError, "no imatrix.chunk_count"),
        ({"a": (ones, [1])}, {"chunk_size": None}, MissingError, "no imatrix.chunk_size"),
        ({"a": (ones, [1])}, {"datasets": None}, MissingError, "no imatrix.datasets"),
        ({"a": (ones, [1])}, {"datasets": [1, 2]}, InconsistentError, "type of imatrix.datasets: found ARRAY of INT32"),
    ):
        with pytest.raises(error, match=message):
            read_imatrix(str(gguf_file(tmp_path / "m.gguf", entries, **keys)))
    with pytest.raises(NotFoundError):
        read_imatrix(str(tmp_path / "absent"))
    with pytest.raises(NotFoundError):
        read_imatrix(str(tmp_path))


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", TruncatedError),
        (b"\0\0\0\0", OutOfRangeError),
        (b"\xff\xff\xff\xff", OutOfRangeError),
        (struct.pack("<i", 1 << 16), TruncatedError),
        (b"plain text, long enough to be looked at", OutOfRangeError),
        (dat_bytes([(b"", 1, [1.0])]), OutOfRangeError),
        (dat_bytes([(b"a" * 1025, 1, [1.0])]), OutOfRangeError),
        (dat_bytes([(b"a\0b", 1, [1.0])]), EncodingError),
        (dat_bytes([(b"\xff", 1, [1.0])]), EncodingError),
        (dat_bytes([(b"abcdefgh", 1, [])]), OutOfRangeError),
        (dat_bytes([(b"a", 1, [1.0])] * 2), DuplicateError),
        (dat_bytes([(b"a", 1, [1.0])]) + b"\0", TrailingBytesError),
        (dat_bytes([(b"a", 1, [1.0])], None) + b"\0", TruncatedError),
        (dat_bytes([(b"a", 1, [1.0])], None) + struct.pack("<ii", 1, -1), OutOfRangeError),
        (struct.pack("<ii4sii", 1, 4, b"name", 1, 0x7FFFFFFF) + bytes(64), TruncatedError),
    ],
)
def test_damaged_dat(tmp_path: Path, data: bytes, error: type[CorruptError]) -> None:
    path = saved(tmp_path / "m.dat", data)
    with pytest.raises(error) as caught:
        read_imatrix(path)
    assert caught.value.path == path and caught.value.offset is not None


def test_cut_anywhere(tmp_path: Path) -> None:
    whole = dat_bytes([(b"a.weight", 3, [9.0, 1.0]), (b"b", 1, [4.0])])
    ends = {len(dat_bytes([(b"a.weight", 3, [9.0, 1.0]), (b"b", 1, [4.0])], None)) + extra for extra in (0, 4)}
    for size in range(len(whole)):
        if size in ends:  # the tail is optional, and so is its second half
            opened(tmp_path / "m.dat", whole[:size]).close()
        else:
            with pytest.raises(TruncatedError):
                opened(tmp_path / "m.dat", whole[:size])
    whole = gguf_file(tmp_path / "m.gguf").read_bytes()
    for size in range(0, len(whole) - 32, 7):
        with pytest.raises(GgferryError):
            opened(tmp_path / "cut", whole[:size])


@settings(max_examples=150)
@given(data=st.data())
def test_any_bytes_are_a_matrix_or_an_error(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.getbasetemp()
    kind = data.draw(st.sampled_from(["noise", "dat", "gguf"]))
    if kind == "noise":
        raw = bytearray(data.draw(st.binary(max_size=200)))
    else:
        raw = bytearray(
            dat_bytes([(b"a.weight", 3, [9.0, 1.0]), (b"b", 1, [4.0])])
            if kind == "dat"
            else gguf_file(folder / "source.gguf").read_bytes()
        )
        for at in data.draw(st.lists(st.integers(0, len(raw) - 1), min_size=1, max_size=4)):
            raw[at] ^= data.draw(st.integers(1, 255))
    try:
        with opened(folder / "fuzzed", bytes(raw)) as matrix:
            for name, entry in matrix.entries.items():
                matrix.weights(name, (len(entry.counts), 1, entry.values // len(entry.counts)))
    except GgferryError as error:
        assert str(error)


def test_reading_the_header_loads_no_numpy(tmp_path: Path) -> None:
    path = gguf_file(tmp_path / "m.gguf")
    code = "import sys; from ggferry.formats.imatrix.read import read_imatrix; read_imatrix(sys.argv[1]); "
    code += "sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == 0


@pytest.fixture(scope="module")
def quantize_chunk() -> Any:
    package = importlib.util.find_spec("xllamacpp")
    assert package is not None and package.submodule_search_locations
    (library,) = Path(package.submodule_search_locations[0]).glob("xllamacpp*.so")
    call = ctypes.CDLL(str(library)).ggml_quantize_chunk
    call.restype = ctypes.c_size_t
    call.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 3, ctypes.c_void_p]
    return call


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("IQ1_S", "IQ2_XS", "IQ3_XXS")]  # ggml builds its grids


@pytest.mark.parametrize("name", ["Q4_0", "Q4_K_M", *SLOW])
def test_the_weights_are_those_llama_quantize_used(fixtures: Path, peer: Peers, quantize_chunk: Any, name: str) -> None:
    """Every tensor llama-quantize made with the oracle's matrix, made again by ggml with the weights read here."""
    source = SPEC.open(str(peer("quantize/k256.F16.gguf")), ())
    made = SPEC.open(str(peer(f"quantize/im_k256.{name}.gguf")), ())
    weighed = 0
    with read_imatrix(str(fixtures / "quantize" / "k256.imatrix.gguf")) as matrix:
        for ref in made.tensors.values():
            if not ref.type.quantized:
                continue
            origin = source.tensors[ref.name]
            values = read_rows(source, origin, 0, origin.rows).view(np.float16).astype(np.float32)
            weights = matrix.weights(ref.name, ref.shape)
            found = np.zeros((ref.rows, ref.row_bytes), np.uint8)
            at = None if weights is None else weights.ctypes.data
            quantize_chunk(ref.type.ggml_id, values.ctypes.data, found.ctypes.data, 0, ref.rows, ref.columns, at)
            assert np.array_equal(found, read_rows(made, ref, 0, ref.rows)), ref.name
            weighed += weights is not None
    assert weighed == 14  # all but token_embd and output


def test_without_the_weights_the_bytes_are_others(peer: Peers, quantize_chunk: Any) -> None:
    source = SPEC.open(str(peer("quantize/k256.F16.gguf")), ())
    ref = SPEC.open(str(peer("quantize/im_k256.Q4_K_M.gguf")), ())
    made, origin = ref.tensors["blk.1.ffn_up.weight"], source.tensors["blk.1.ffn_up.weight"]
    values = read_rows(source, origin, 0, origin.rows).view(np.float16).astype(np.float32)
    found = np.zeros((made.rows, made.row_bytes), np.uint8)
    quantize_chunk(made.type.ggml_id, values.ctypes.data, found.ctypes.data, 0, made.rows, made.columns, None)
    assert not np.array_equal(found, read_rows(ref, made, 0, made.rows))
