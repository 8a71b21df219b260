"""The GGUF reader against the `gguf` package on files that other programs made, and on versions, byte orders and
splits that package cannot make."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import gguf
import pytest

from ggferry.formats import errors as e
from ggferry.formats.gguf.header_layout import lay_out
from ggferry.formats.gguf.values import Value, ValueType, array, boolean, f32, i32, string, u16, u32, u64
from ggferry.formats.gguf.write import write_gguf
from ggferry.formats.readers.gguf import SPEC, open_gguf
from ggferry.quant.codec import block_type
from helpers.peers import Peers
from helpers.third_party_fixtures import cases, listed

F32, Q8_0 = block_type("F32"), block_type("Q8_0")
LLAMA = {"general.architecture": string("llama")}
EVERY_TYPE = {
    **LLAMA,
    "t.u8": Value(ValueType.UINT8, 255),
    "t.i8": Value(ValueType.INT8, -128),
    "t.u16": u16(65535),
    "t.i16": Value(ValueType.INT16, -2),
    "t.u32": u32(1 << 31),
    "t.i32": i32(-7),
    "t.f32": f32(0.5),
    "t.bool": boolean(True),
    "t.text": string("Grüße ▁ 🦙"),
    "t.u64": u64((1 << 64) - 1),
    "t.i64": Value(ValueType.INT64, -(1 << 63)),
    "t.f64": Value(ValueType.FLOAT64, 0.1),
    "t.numbers": array(ValueType.INT32, [1, -2, 3]),
    "t.floats": array(ValueType.FLOAT32, [0.25, -1.5]),
    "t.bools": array(ValueType.BOOL, [True, False]),
    "t.texts": array(ValueType.STRING, ["", "a", "▁b"]),
    "t.empty": array(ValueType.STRING, []),
}


LLAMA_CPPS = [*listed("hf/out/*/*.gguf"), *listed("quantize/*.gguf"), *listed("lora/*/*.gguf")]
QUICK = set(LLAMA_CPPS[::13])  # GGUFReader needs 0.3 s a file


def test_there_are_files_of_llama_cpp() -> None:
    assert len(LLAMA_CPPS) > 60


def plain(value: Value) -> object:
    """A value as gguf.ReaderField.contents() gives it."""
    return list(value.data) if value.type is ValueType.ARRAY else value.data


def assert_as_gguf_reads(path: Path) -> None:
    ours, theirs = open_gguf(str(path)), gguf.GGUFReader(path)
    fields = {name: field for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert list(ours.metadata) == list(fields)
    for name, field in fields.items():
        value = ours.metadata[name]
        kinds = [value.type, value.items] if value.data and value.type is ValueType.ARRAY else [value.type]
        assert [int(kind) for kind in kinds] == [int(kind) for kind in field.types[:2]], name
        assert plain(value) == field.contents(), name
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        ref = ours.tensors[tensor.name]
        assert ref.type.ggml_id == int(tensor.tensor_type)
        assert ref.shape == tuple(int(size) for size in reversed(tensor.shape))
        assert (ref.nbytes, ref.spans[0].offset) == (tensor.n_bytes, tensor.data_offset)
        assert ref.big_endian == (theirs.byte_order == "S")
    assert ours.alignment == theirs.alignment
    assert ours.header["data_offset"] == theirs.data_offset or not ours.tensors


@pytest.mark.parametrize("name", cases(LLAMA_CPPS, slow=set(LLAMA_CPPS) - QUICK))
def test_files_of_llama_cpp_as_the_gguf_package_reads_them(name: str, peer: Peers) -> None:
    path = peer(name)
    assert_as_gguf_reads(path)
    assert open_gguf(str(path)).notes == ()


@pytest.mark.parametrize("name", cases(LLAMA_CPPS))
def test_laying_out_what_was_read_gives_the_header_back(name: str, peer: Peers) -> None:
    """Byte for byte the header that convert_hf_to_gguf and llama-quantize wrote, and the file's size."""
    path = peer(name)
    found = open_gguf(str(path))
    declared = [(t.name, t.type, t.shape) for t in found.tensors.values()]
    layout = lay_out(found.metadata, declared, alignment=found.alignment)
    with path.open("rb") as file:
        assert file.read(len(layout.header)) == layout.header
    assert layout.size == path.stat().st_size
    assert layout.offsets == {t.name: t.spans[0].offset for t in found.tensors.values()}


def write(path: Path, metadata: dict[str, Value] = LLAMA, **options: object) -> Path:
    tensors = [("a", F32, (2, 3), bytes(range(24))), ("b", Q8_0, (1, 64), bytes(range(68)))]
    write_gguf(path, metadata, tensors, **options)  # type: ignore[arg-type]
    return path


def test_every_value_type(tmp_path: Path) -> None:
    path = write(tmp_path / "t.gguf", EVERY_TYPE)
    assert open_gguf(str(path)).metadata == EVERY_TYPE
    assert_as_gguf_reads(path)


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("version", [1, 2, 3])
def test_versions_and_byte_orders_hold_the_same(version: int, big: bool, tmp_path: Path) -> None:
    late = (ValueType.UINT64, ValueType.INT64, ValueType.FLOAT64)  # came with v2
    metadata = {k: v for k, v in EVERY_TYPE.items() if version > 1 or v.type not in late}
    path = write(tmp_path / "t.gguf", metadata, version=version, big_endian=big)
    found = open_gguf(str(path))
    assert (found.container, found.version, found.big_endian, found.alignment) == ("gguf", version, big, 32)
    assert found.metadata == metadata
    assert [(t.name, t.type, t.shape, t.big_endian) for t in found.tensors.values()] == [
        ("a", F32, (2, 3), big),
        ("b", Q8_0, (1, 64), big),
    ]
    match = SPEC.probe(path.read_bytes()[:64], str(path), path.stat().st_size)
    assert match is not None and (match.container, match.version) == ("gguf", version)
    assert bool(found.notes) == (big and version < 3)
    if version > 1:  # gguf-py reads v1 no more
        assert_as_gguf_reads(path)


def test_v1_bytes_by_hand(tmp_path: Path) -> None:
    """u32 counts, lengths and dimensions, u64 offsets, padding: ggml f03d74aa, the first GGUF."""

    def text(raw: bytes) -> bytes:
        return struct.pack("<I", len(raw)) + raw

    head = b"GGUF" + struct.pack("<III", 1, 1, 2)
    head += text(b"general.architecture") + struct.pack("<I", 8) + text(b"llama")
    head += text(b"t.list") + struct.pack("<III", 9, 8, 2) + text(b"x") + text(b"yz")
    head += text(b"w") + struct.pack("<IIIIQ", 2, 5, 3, 0, 0)
    path = tmp_path / "v1.gguf"
    path.write_bytes(head + bytes(-len(head) % 32) + bytes(64))
    found = open_gguf(str(path))
    assert found.version == 1 and found.era and "2023" in found.era
    assert found.metadata["t.list"] == array(ValueType.STRING, ["x", "yz"])
    assert found.tensors["w"].shape == (3, 5) and found.tensors["w"].spans[0].offset == len(head) + -len(head) % 32


def test_nested_arrays_to_the_fourth_level(tmp_path: Path) -> None:
    value = array(ValueType.INT32, [1, 2])
    for _ in range(3):
        value = array(ValueType.ARRAY, [value, value])
    path = write(tmp_path / "t.gguf", {**LLAMA, "t.nested": value})
    found = open_gguf(str(path))
    assert found.metadata["t.nested"] == value
    assert any("arrays" in note for note in found.notes)
    with pytest.raises(e.OutOfRangeError):
        write(tmp_path / "u.gguf", {**LLAMA, "t.nested": array(ValueType.ARRAY, [value])})


def test_bytes_that_are_not_utf8_survive(tmp_path: Path) -> None:
    tokens = ["ok", b"\xff\xfe".decode(errors="surrogateescape"), "▁"]
    metadata = {**LLAMA, "t.tokens": array(ValueType.STRING, tokens), "t.one": string("caf\udce9")}
    path = write(tmp_path / "t.gguf", metadata)
    assert b"\xff\xfe" in path.read_bytes() and b"caf\xe9" in path.read_bytes()
    found = open_gguf(str(path))
    assert found.metadata == metadata
    assert found.notes == ("not UTF-8, kept byte for byte: t.tokens, t.one",)


@pytest.mark.parametrize("alignment", [1, 2, 8, 64, 4096, 1 << 20])
def test_alignments(alignment: int, tmp_path: Path) -> None:
    path = write(tmp_path / "t.gguf", alignment=alignment)
    found = open_gguf(str(path))
    assert found.alignment == alignment
    assert all(t.spans[0].offset % alignment == 0 for t in found.tensors.values())
    assert bool(found.notes) == bool(alignment % 8)
    assert_as_gguf_reads(path)


def test_accepted_with_a_note(tmp_path: Path) -> None:
    path = write(tmp_path / "pad.gguf")
    path.write_bytes(path.read_bytes()[:-28])  # 'b' ends 4 bytes into its last 32
    assert open_gguf(str(path)).notes == ("the padding behind the last tensor is missing",)

    path = write(tmp_path / "upper.gguf", {**LLAMA, "tokenizer.chat_template.RAG": string("x")})
    assert open_gguf(str(path)).notes == ("metadata keys that are not lower case: tokenizer.chat_template.RAG",)

    path = write(tmp_path / "order.gguf")
    layout = lay_out(LLAMA, [("a", F32, (2, 3)), ("b", Q8_0, (1, 64))])
    data, a, b = path.read_bytes(), layout.offsets["a"], layout.offsets["b"]
    table = struct.pack("<QIQ", 2, 0, 0), struct.pack("<QIQ", 1, 8, 32)
    assert all(data.count(entry) == 1 for entry in table)
    data = data.replace(table[0], struct.pack("<QIQ", 2, 0, 96)).replace(table[1], struct.pack("<QIQ", 1, 8, 0))
    path.write_bytes(data[:a] + data[b : b + 96] + data[a : a + 32])
    found = open_gguf(str(path))
    assert len(found.notes) == 1 and "order" in found.notes[0]
    assert found.tensors["a"].spans[0].offset == a + 96 and found.tensors["b"].spans[0].offset == a

    path = write(tmp_path / "padding.gguf")
    data = path.read_bytes()
    path.write_bytes(data[: a - 1] + b"\1" + data[a:])
    assert open_gguf(str(path)).notes == ("the padding behind the tensor table is not zero",)


def test_an_alignment_of_24_is_the_specifications_not_ggmls(tmp_path: Path) -> None:
    path = tmp_path / "t.gguf"
    head = bytearray(lay_out({**LLAMA, "general.alignment": u32(8)}, [("w", F32, (2,))], alignment=8).header)
    at = head.index(b"general.alignment") + len(b"general.alignment") + 4
    head[at : at + 4] = struct.pack("<I", 24)
    end = head.index(b"w" + struct.pack("<I", 1)) + 1 + 4 + 8 + 4 + 8
    path.write_bytes(head[:end] + bytes(-end % 24) + bytes(24))
    found = open_gguf(str(path))
    assert found.alignment == 24 and found.notes == ("alignment 24: ggml wants a power of two",)


def test_what_is_no_model_needs_no_architecture(tmp_path: Path) -> None:
    path = write(tmp_path / "imatrix.gguf", {"general.type": string("imatrix")})
    assert open_gguf(str(path)).metadata["general.type"].data == "imatrix"
    with pytest.raises(e.MissingError):
        open_gguf(str(write(tmp_path / "model.gguf", {"general.type": string("model")})))


def test_vocabulary_only_files_end_with_or_without_padding(tmp_path: Path) -> None:
    path = tmp_path / "vocab.gguf"
    layout = write_gguf(path, EVERY_TYPE, [])
    end = open_gguf(str(path)).header["tensor_info_offset"]
    assert open_gguf(str(path)).metadata == EVERY_TYPE and end < layout.size
    path.write_bytes(layout.header[:end])
    assert open_gguf(str(path)).metadata == EVERY_TYPE


# --- split models ---


def split(folder: Path, count: int, **changes: dict[str, Value]) -> list[Path]:
    """A model of `count` tensors, one a shard. `changes`: metadata of shard `s0`, `s1`, … to replace."""
    paths = []
    for number in range(count):
        metadata = {
            **(EVERY_TYPE if number == 0 else {}),
            "split.no": u16(number),
            "split.count": u16(count),
            "split.tensors.count": i32(count),
            **changes.get(f"s{number}", {}),
        }
        paths.append(folder / f"m-{number + 1:05}-of-{count:05}.gguf")
        write_gguf(paths[-1], metadata, [(f"blk.{number}.w", F32, (2, 8 + number), bytes([number]) * 8 * (8 + number))])
    return paths


@pytest.mark.parametrize("which", [0, 1, 2])
def test_any_shard_opens_the_whole_model(which: int, tmp_path: Path) -> None:
    paths = split(tmp_path, 3)
    found = open_gguf(str(paths[which]))
    assert [source.path for source in found.files] == [str(path) for path in paths]
    assert [(t.name, t.shape, t.spans[0].file) for t in found.tensors.values()] == [
        (f"blk.{n}.w", (2, 8 + n), n) for n in range(3)
    ]
    assert {k: v for k, v in found.metadata.items() if not k.startswith("split.")} == EVERY_TYPE
    for number, tensor in enumerate(found.tensors.values()):
        span = tensor.spans[0]
        assert found.files[span.file].read(span.offset, tensor.nbytes) == bytes([number]) * tensor.nbytes
    found.close()


def test_shards_of_gguf_py(tmp_path: Path) -> None:
    import numpy as np

    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama", split_max_tensors=2)
    writer.add_block_count(2)
    for number in range(5):
        writer.add_tensor(f"t{number}", np.full((3, 4), number, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = open_gguf(str(tmp_path / "m-00002-of-00003.gguf"))
    assert list(found.tensors) == [f"t{number}" for number in range(5)]
    assert found.metadata["llama.block_count"] == u32(2)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    paths = split(tmp_path, 3)
    paths[1].unlink()
    for path in (paths[0], paths[2]):
        with pytest.raises(e.NotFoundError) as caught:
            open_gguf(str(path))
        assert caught.value.path == str(paths[1])


def test_a_renamed_shard_says_which_name_it_needs(tmp_path: Path) -> None:
    path = split(tmp_path, 2)[0]
    with pytest.raises(e.NotFoundError, match=r"NAME-00001-of-00002\.gguf"):
        open_gguf(str(path.rename(tmp_path / "model.gguf")))


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"s1": {"split.no": u16(0)}}, e.InconsistentError),
        ({"s1": {"split.count": u16(3)}}, e.InconsistentError),
        ({"s0": {"split.tensors.count": i32(3)}, "s1": {"split.tensors.count": i32(3)}}, e.InconsistentError),
        ({"s1": {"t.u32": u32(1)}}, e.InconsistentError),
        ({"s1": {"t.other": u32(1)}}, e.InconsistentError),
    ],
)
def test_shards_that_contradict_each_other(changes: dict[str, dict[str, Value]], kind: type, tmp_path: Path) -> None:
    with pytest.raises(kind):
        open_gguf(str(split(tmp_path, 2, **changes)[0]))


def test_shards_with_one_name_twice_or_of_two_byte_orders(tmp_path: Path) -> None:
    paths = split(tmp_path, 2)
    metadata = {"split.no": u16(1), "split.count": u16(2)}
    write_gguf(paths[1], metadata, [("blk.0.w", F32, (1,), bytes(4))], overwrite=True)
    with pytest.raises(e.DuplicateError, match=r"blk\.0\.w"):
        open_gguf(str(paths[0]))
    write_gguf(paths[1], metadata, [("blk.1.w", F32, (1,), bytes(4))], overwrite=True, big_endian=True)
    with pytest.raises(e.InconsistentError, match="byte order"):
        open_gguf(str(paths[0]))


def test_a_name_like_a_shards_is_only_a_name(tmp_path: Path) -> None:
    found = open_gguf(str(write(tmp_path / "m-00002-of-00003.gguf")))
    assert len(found.files) == 1 and {t.spans[0].file for t in found.tensors.values()} == {0}


# --- cost ---


def test_a_large_vocabulary_is_quick_and_small(tmp_path: Path) -> None:
    count = 131_072
    metadata = {
        **LLAMA,
        "tokenizer.ggml.tokens": array(ValueType.STRING, [f"token{n}" for n in range(count)]),
        "tokenizer.ggml.scores": array(ValueType.FLOAT32, range(count)),
        "tokenizer.ggml.token_type": array(ValueType.INT32, [1] * count),
    }
    path = tmp_path / "v.gguf"
    write_gguf(path, metadata, [])
    spent = []
    for _ in range(3):
        begin = time.process_time()
        found = open_gguf(str(path))
        spent.append(time.process_time() - begin)
    assert found.metadata == metadata
    assert min(spent) < 0.6  # 0.15 s on an idle machine; a reader that calls per byte or per field takes seconds
    del found
    tracemalloc.start()
    open_gguf(str(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * path.stat().st_size, "a str of 10 letters costs 59 bytes, its entry in the file 18"


def test_a_header_is_read_without_numpy(tmp_path: Path) -> None:
    path = write(tmp_path / "t.gguf", EVERY_TYPE)
    code = (
        "import sys, json; from ggferry.formats.readers.gguf import open_gguf; c = open_gguf(sys.argv[1]);"
        "print(json.dumps([len(c.metadata), "
        "[m for m in sys.modules if m.split('.')[0] in ('numpy', 'torch') and '.' in m]]))"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [len(EVERY_TYPE), []]
