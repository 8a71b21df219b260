"""Headers that claim a lot: 10⁶ tensors took a minute and 1.3 GiB, 16 arrays of bytes eight times their size.

Small ones here, measured in a process of their own; the sizes of the attack are among the slow tests.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import struct
import sys
import zipfile
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggferry.formats import errors, limits, memory_cap
from ggferry.formats.checkpoint import Span, TensorRef
from ggferry.formats.files.sources import open_source
from ggferry.formats.gguf.packed_values import Flags, Numbers, Text, Texts, is_utf8
from ggferry.formats.gguf.values import Value, ValueType
from ggferry.formats.json_files import parse as json_parse
from ggferry.formats.json_files.parse import parse_json
from ggferry.formats.readers.gguf import open_gguf
from ggferry.formats.readers.safetensors import open_checkpoint
from ggferry.formats.tensor_table import TensorTable, joined
from ggferry.quant.codec import block_type
from ggferry.service.cli import app as cli

pytestmark = pytest.mark.attack

MIB = 1 << 20
PROGRAM = 80 * MIB
"""What the interpreter, the command and the tables of architectures take, generously: 40 MiB are measured."""
LOAD = "import sys; from ggferry.formats.json_files.text import load_json; load_json(sys.argv[1])"
OPEN = (
    "import sys; from ggferry.converters.model_graph.open_checkpoint import open_checkpoint;"
    "held = open_checkpoint(sys.argv[1])"
)
INSPECT = "import sys; from ggferry.service.cli.app import main; sys.argv[1:1] = ['inspect']; main()"


REPORT = """
import atexit, sys
def report(path=sys.argv[1] + ".peak"):
    with open("/proc/self/status") as status, open(path, "w") as file:
        file.write(next(line.split()[1] for line in status if line.startswith("VmHWM")))
atexit.register(report)
"""
"""ru_maxrss also counts what the process was a copy of before it became this program."""


def measured(path: Path, program: str = INSPECT) -> tuple[int, float, int, str]:
    """Exit code, seconds of CPU, bytes of memory at most and stderr of `program` at `path`."""
    log = os.open(f"{path}.log", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    actions = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0), (os.POSIX_SPAWN_DUP2, log, 2)]
    command = [sys.executable, "-P", "-c", REPORT + program, os.fspath(path)]
    pid = os.posix_spawn(sys.executable, command, os.environ, file_actions=actions)
    _, status, usage = os.wait4(pid, 0)
    text = os.pread(log, 10_000, 0).decode()
    os.close(log)
    peak = int(Path(f"{path}.peak").read_text()) << 10
    return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, peak, text


def assert_cheap(path: Path, header: int, program: str = INSPECT) -> None:
    """It is read, in three times its bytes and a time that a square of its length could not keep to on any machine."""
    code, seconds, peak, text = measured(path, program)
    assert code == 0, text
    assert peak <= PROGRAM + 3 * header, f"{peak >> 20} MiB for {header >> 20} MiB"
    assert seconds < 30 + 4 * header / MIB


def assert_refused(path: Path, words: str, room: int = 0, program: str = INSPECT) -> None:
    """It is refused by name, before memory is spent on it, in a time that grows with what was read of it at most."""
    code, seconds, peak, text = measured(path, program)
    assert (code, words in text, "\n" in text.strip()) == (5, True, False), text
    assert peak <= PROGRAM + room
    assert seconds < 10 + 2 * room / MIB


# --- GGUF ----------------------------------------------------------------------------------------------------------


def string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def array(key: str, kind: int, count: int, data: bytes) -> bytes:
    return string(key) + struct.pack("<IIQ", 9, kind, count) + data


def gguf(path: Path, keys: list[bytes], tensors: int = 0, name: Callable[[int], str] = "t{}".format) -> int:
    """A file of these metadata keys and of vectors of eight floats; the bytes of its header."""
    lines = [string(name(i)) + struct.pack("<IQIQ", 1, 8, 0, 32 * i) for i in range(tensors)]
    named = [string("general.architecture") + struct.pack("<I", 8) + string("zzz"), *keys]
    head = b"".join([b"GGUF", struct.pack("<IQQ", 3, tensors, len(named)), *named, *lines])
    path.write_bytes(head + bytes(-len(head) % 32))
    os.truncate(path, len(head) + -len(head) % 32 + 32 * tensors)
    return len(head)


def texts(count: int) -> bytes:
    return b"".join(string(f"t{i}") for i in range(count))


GGUF_HEADERS: dict[str, Callable[[Path], int]] = {
    "arrays of bytes": lambda path: gguf(path, [array(f"a.b{i}", 0, MIB, b"\7" * MIB) for i in range(16)]),
    "an array of floats": lambda path: gguf(path, [array("a.b", 6, 4 * MIB, bytes(16 * MIB))]),
    "a vocabulary": lambda path: gguf(path, [array("a.b", 8, 500_000, texts(500_000))]),
    "empty strings": lambda path: gguf(path, [array("a.b", 8, MIB, bytes(8 * MIB))]),
    "a long text": lambda path: gguf(
        path, [string("a.b") + struct.pack("<I", 8) + string("\U0001f680" + "x" * 16 * MIB)]
    ),
    "tensors": lambda path: gguf(path, [], 60_000),
    "keys": lambda path: gguf(path, [string(f"a.k{i}") + struct.pack("<IB", 7, 1) for i in range(16_000)]),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", GGUF_HEADERS)
def test_a_gguf_header_costs_three_times_its_bytes(kind: str, tmp_path: Path) -> None:
    assert_cheap(tmp_path / "x.gguf", GGUF_HEADERS[kind](tmp_path / "x.gguf"), OPEN if kind == "tensors" else INSPECT)


NESTED = array("a.b", 9, 20_000, struct.pack("<IQB", 0, 1, 1) * 20_000)
GGUF_BOMBS: dict[str, tuple[Callable[[Path], int], str]] = {
    "tensors": (lambda path: gguf(path, [], 66_000), "@0x8: tensor_count: found 66000"),
    "keys": (
        lambda path: gguf(path, [string(f"a.k{i}") + struct.pack("<IB", 7, 1) for i in range(20_000)]),
        "@0x10: metadata_kv_count: found 20001",
    ),
    "arrays in an array": (lambda path: gguf(path, [NESTED]), "arrays in 'a.b': found 20000, expected ≤ 4096"),
    "a text": (
        lambda path: gguf(path, [string("a.b") + struct.pack("<I", 8) + string(bytes(limits.MAX_STRING + 1))]),
        "length of value of 'a.b': found 67108865",
    ),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", GGUF_BOMBS)
def test_a_gguf_header_beyond_any_model_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    make, words = GGUF_BOMBS[kind]
    make(tmp_path / "x.gguf")
    assert_refused(tmp_path / "x.gguf", words)


def test_a_gguf_header_of_many_arrays_is_refused_before_it_is_held(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(limits, "MAX_GGUF_HEADER", MIB)
    for kind, data in ((0, b"\7" * (MIB >> 1)), (7, b"\1" * (MIB >> 1)), (8, bytes(8) * (MIB >> 4))):
        count = len(data) >> 3 if kind == 8 else len(data)
        gguf(tmp_path / "x.gguf", [array(f"a.b{i}", kind, count, data) for i in range(3)])
        with pytest.raises(errors.OutOfRangeError, match=r"size of the header|bytes of all"):
            open_gguf(os.fspath(tmp_path / "x.gguf"))


def test_later_shards_keep_no_vocabulary(tmp_path: Path) -> None:
    """4,096 shards could each state one."""
    for number in range(2):
        keys = [
            string("split.no") + struct.pack("<IH", 2, number),
            string("split.count") + struct.pack("<IH", 2, 2),
            array("a.b", 8, 3, texts(3)),
        ]
        gguf(tmp_path / f"x-{number + 1:05}-of-00002.gguf", keys, 2, f"n{number}.{{}}".format)
    held = open_gguf(os.fspath(tmp_path / "x-00002-of-00002.gguf"))
    assert list(held.tensors) == ["n0.0", "n0.1", "n1.0", "n1.1"]
    assert [ref.spans[0].file for ref in held.tensors.values()] == [0, 0, 1, 1]
    assert held.metadata["a.b"].data == ("t0", "t1", "t2")


# --- safetensors ---------------------------------------------------------------------------------------------------


def safetensors(path: Path, header: bytes, data: int = 0) -> int:
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    os.truncate(path, 8 + len(header) + data)
    return len(header)


def table(count: int) -> bytes:
    lines = ({"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]} for i in range(count))
    return json.dumps({f"t{i}": line for i, line in enumerate(lines)}, separators=(",", ":")).encode()


def test_a_safetensors_header_costs_three_times_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    assert_cheap(path, safetensors(path, table(60_000), 240_000), OPEN)


SAFETENSORS_BOMBS = {
    "keys": (b'{"__metadata__":{' + b",".join(b'"%d":""' % i for i in range(700_000)) + b"}}", "size of __metadata__"),
    "a key": (b'{"__metadata__":{"a":"\xf0\x9f\x9a\x80' + b"x" * 9 * MIB + b'"}}', "a line of __metadata__"),
    "ranks": (b'{"a":{"dtype":"F32","shape":[' + b"1," * 4_000_000 + b'1],"data_offsets":[0,4]}}', "fields of 'a'"),
    "lists": (b'{"a":' + b"[],[" * 2_000_000 + b"]}", "fields of 'a'"),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", SAFETENSORS_BOMBS)
def test_a_safetensors_header_beyond_any_model_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    header, words = SAFETENSORS_BOMBS[kind]
    safetensors(tmp_path / "x.safetensors", header)
    assert_refused(tmp_path / "x.safetensors", words, 3 * len(header))


def test_too_many_tensors_in_safetensors_are_refused(tmp_path: Path, monkeypatch: Any) -> None:
    from ggferry.formats.readers import safetensors as reader

    monkeypatch.setattr(reader, "MAX_TENSORS", 99)
    safetensors(tmp_path / "x.safetensors", table(100), 400)
    with pytest.raises(errors.OutOfRangeError, match="number of tensors") as caught:
        open_checkpoint(os.fspath(tmp_path / "x.safetensors"))
    line = b',"t99"'
    assert caught.value.offset == 8 + table(100).index(line) + 1


def test_headers_of_many_files_count_together(tmp_path: Path, monkeypatch: Any) -> None:
    from ggferry.formats.readers import safetensors as reader

    monkeypatch.setattr(reader, "MAX_HEADERS", 1000)
    for number in range(1, 4):
        header = b'{"t%d":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}' % number + b" " * 400
        safetensors(tmp_path / f"model-{number:05}-of-00003.safetensors", header, 4)
    with pytest.raises(errors.OutOfRangeError, match="bytes of headers in all files"):
        open_checkpoint(os.fspath(tmp_path))


def experts(layers: int, each: int) -> Iterator[str]:
    """The names of the experts of Kimi-K3, which has 896 in 92 layers (ggml-org/llama.cpp#26185)."""
    for layer, expert, matrix in product(range(1, 1 + layers), range(each), (1, 2, 3)):
        for part in ("weight_packed", "weight_scale"):
            yield f"language_model.model.layers.{layer}.block_sparse_moe.experts.{expert}.w{matrix}.{part}"


@pytest.mark.parametrize("layers", [23, pytest.param(92, marks=pytest.mark.slow)])
def test_an_index_costs_three_times_its_bytes(layers: int, tmp_path: Path) -> None:
    """It names a file that is not there: everything before that is reading."""
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": dict.fromkeys(experts(layers, 896), "model-00096-of-00096.safetensors")}))
    code, seconds, peak, text = measured(path)
    assert code == 3
    assert "files it names are missing" in text
    assert peak <= PROGRAM + 3 * path.stat().st_size
    assert seconds < 10


def test_an_index_of_too_many_tensors_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    from ggferry.formats.checkpoint_folder import shard_index

    monkeypatch.setattr(shard_index, "MAX_TENSORS", 99)
    path = tmp_path / "model.safetensors.index.json"
    path.write_text('{"weight_map":{' + ",".join(f'"{i}":"a"' for i in range(100)) + "}}")
    with pytest.raises(errors.OutOfRangeError, match="number of tensors") as caught:
        open_checkpoint(os.fspath(path))
    assert caught.value.offset == path.read_bytes().index(b'"99"')


# --- the GGML era, PyTorch ------------------------------------------------------------------------------------------


def test_records_and_tokens_of_the_ggml_era_beyond_any_model_are_refused(tmp_path: Path) -> None:
    head = struct.pack("<I7i", 0x67676D6C, 260, 64, 256, 4, 1, 16, 0) + struct.pack("<i1s", 1, b"a") * 260
    records = (struct.pack("<4i", 1, len(name), 0, 1) + name + bytes(4) for name in (b"t%d" % i for i in range(17_000)))
    (tmp_path / "records.bin").write_bytes(head + b"".join(records))
    assert_refused(tmp_path / "records.bin", "too many tensors: expected 16384")
    vocabulary = struct.pack("<I8i", 0x67676D66, 1, 300_000, 64, 256, 4, 1, 16, 0) + bytes(4) * 300_000
    (tmp_path / "tokens.bin").write_bytes(vocabulary)
    assert_refused(tmp_path / "tokens.bin", "n_vocab: found 300000, expected 1..262144")


PICKLES = {
    "dictionaries": b"(" + b"}" * 1_500_000 + b"l",
    "lists": b"(" + b"]" * 1_500_000 + b"t",
    "marks": b"(" * 1_500_000,
    "tuples": b"N" + b"\x85" * 1_500_000,
    "strings": b"(" + b"".join(b"U\3%03x" % (i % 4096) for i in range(880_000)) + b"t",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", PICKLES)
def test_pickles_of_containers_are_refused_while_they_are_small(kind: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.pth", "w") as file:
        file.writestr("x/data.pkl", b"\x80\x02" + PICKLES[kind] + b".")
        file.writestr("x/version", "3\n")
    assert_refused(tmp_path / "x.pth", "number of instructions", 3 * len(PICKLES[kind]) + 20 * MIB)


def test_archives_of_too_many_entries_are_refused(tmp_path: Path, monkeypatch: Any) -> None:
    from ggferry.formats.pytorch import zip_archive as zip_spans

    monkeypatch.setattr(zip_spans, "MAX_ZIP_ENTRIES", 99)
    with zipfile.ZipFile(tmp_path / "x.pth", "w") as file:
        for i in range(100):
            file.writestr(f"x/data/{i}", b"")
    with pytest.raises(errors.OutOfRangeError, match="size of the directory"):
        zip_spans.read_archive(open_source(tmp_path / "x.pth"))


def test_what_a_pickle_never_stored_is_not_recalled() -> None:
    from ggferry.formats.pytorch.pickle_machine import read_pickle

    assert read_pickle(b"\x80\x02]q\1h\1a.", "x", 0)[0][0] is not None  # Python 2 numbered from 1
    for data in (b"\x80\x02]q\1h\0a.", b"\x80\x02]q\2.", b"\x80\x02h\0."):
        with pytest.raises(errors.CorruptError):
            read_pickle(data, "x", 0)
    values = [["a", "b"], {"a": "b"}, ["a"] * 300, list(map(str, range(600)))]
    assert read_pickle(pickle.dumps(values * 2, 2), "x", 0)[0] == values * 2


# --- JSON ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_tokenizer_json_costs_three_times_its_bytes(tmp_path: Path) -> None:
    """As Hugging Face writes it. With a character beyond the BMP, which makes a str of all the text fourfold."""
    vocabulary = {f"token{i}\U0001f680" if i == 7 else f"token{i}": i for i in range(100_000)}
    merges = [[f"token{i}", f"token{i * 7 % 100_000}"] for i in range(200_000)]
    path = tmp_path / "tokenizer.json"
    document = {"model": {"type": "BPE", "vocab": vocabulary, "merges": merges}}
    path.write_text(json.dumps(document, ensure_ascii=False, indent=2))
    assert_cheap(path, path.stat().st_size, LOAD)


@pytest.mark.parametrize("text", ["[" + "[]," * 1_400_000 + "1]", "[" + "1," * 4_500_000 + "1]"], ids=["lists", "ones"])
def test_json_of_more_values_than_any_tokenizer_has_is_refused_unbuilt(text: str, tmp_path: Path) -> None:
    program = LOAD.replace("load_json(sys.argv[1])", "import contextlib\ntry: load_json(sys.argv[1])\n")
    program += "except Exception as error: print(error, file=sys.stderr); sys.exit(error.exit_code)"
    (tmp_path / "x.json").write_text(text)
    assert_refused(tmp_path / "x.json", "of a JSON text: found", 2 * len(text), program)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=80) | st.dictionaries(st.text(max_size=4), inner, max_size=80),
    max_leaves=200,
)


@given(values, st.sampled_from([None, 1]), st.booleans())
@settings(max_examples=60, deadline=None)
def test_json_in_batches_is_the_same_json(value: Any, indent: int | None, escaped: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=escaped).encode("utf-8", "surrogatepass")
    before, json_parse.LONG = json_parse.LONG, 0
    try:
        assert parse_json(text, "x") == value
    finally:
        json_parse.LONG = before


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every text counts as long."""
    monkeypatch.setattr(json_parse, "LONG", 0)


PAIRS = ",".join(f'"k{i}":{i}' for i in range(5000))
WRONG = {
    "a key twice, far apart": ("{" + PAIRS + ',"k7":0}', errors.DuplicateError),
    "a key twice, near": ('{"a":1,"a":1,"b":2}', errors.DuplicateError),
    "a comma too many": ("[1,2,]", errors.EncodingError),
    "a comma in an object": ('{"a":1,}', errors.EncodingError),
    "brackets crossed": ("[1,2}", errors.EncodingError),
    "crossed inside": ('[{"a":1],2]', errors.EncodingError),
    "more behind": ("[1] 2", errors.EncodingError),
    "nothing": ("", errors.EncodingError),
    "cut": ('{"a":[1,2', errors.EncodingError),
    "no value": ('{"a":}', errors.EncodingError),
    "not UTF-8": ("[1,\udcff]", errors.EncodingError),
    "half a pair": ('["a","\\ud800"]', errors.EncodingError),
    "NaN": ("[1,NaN,2]", errors.EncodingError),
    "a control character": ('["a\nb",1]', errors.EncodingError),
    "too deep": ("[" * 200 + "]" * 200, errors.EncodingError),
    "endless depth": ("[" * 100_000, errors.EncodingError),
    "5000 digits": ("[" + "9" * 5000 + ",1]", errors.EncodingError),
    "a leading zero": ("[1,01]", errors.EncodingError),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.usefixtures("batches")
def test_wrong_json_in_batches_is_refused(case: str) -> None:
    text, kind = WRONG[case]
    with pytest.raises(kind) as caught:
        parse_json(text.encode("utf-8", "surrogateescape"), "x")
    assert caught.value.path == "x"
    assert caught.value.offset is not None


# --- what is packed is what it was ---------------------------------------------------------------------------------


def test_packed_values_are_the_plain_ones() -> None:
    for big, mark in ((False, "<"), (True, ">")):
        numbers = Value(ValueType.ARRAY, Numbers(struct.pack(f"{mark}3h", 1, -2, 3), "i16", big), ValueType.INT16)
        assert (len(numbers), numbers.first(2), numbers.data) == (3, (1, -2), (1, -2, 3))
        strings = b"".join(struct.pack(f"{mark}I", len(text)) + text for text in (b"a", b"", b"\xff"))
        found = Value(ValueType.ARRAY, Texts(strings, 3, "u32", big), ValueType.STRING)
        assert (len(found), found.first(1)) == (3, ("a",))
        assert found == Value(ValueType.ARRAY, ("a", "", "\udcff"), ValueType.STRING)
        assert found != Value(ValueType.ARRAY, ("a", "", "b"), ValueType.STRING)
    flags = Value(ValueType.ARRAY, Flags(b"\0\1"), ValueType.BOOL)
    assert (flags.first(1), flags.data, len({flags, Value(ValueType.ARRAY, (False, True), ValueType.BOOL)})) == (
        (False,),
        (False, True),
        1,
    )
    again = Value(ValueType.ARRAY, Flags(b"\0\1"), ValueType.BOOL)
    assert replace(again, data=(True,)) == Value(ValueType.ARRAY, (True,), ValueType.BOOL)
    assert (pickle.loads(pickle.dumps(again)), deepcopy(again), f"{again}") == (again, again, f"{flags}")
    text = Value(ValueType.STRING, Text("größer".encode() * 9000))
    assert text.first(3).startswith("grö")
    assert text.data == "größer" * 9000


@pytest.mark.parametrize(
    ("text", "good"),
    [
        (b"a" * 10, True),
        ("ü🚀".encode() * 400_000, True),
        ("ü🚀".encode() * 400_000 + b"\xc3", False),
        (b"a" * (MIB - 1) + "🚀".encode(), True),
        (b"a" * MIB + b"\x80", False),
    ],
)
def test_utf8_is_told_over_the_edges_of_windows(text: bytes, good: bool) -> None:
    assert is_utf8(text) is good


@pytest.mark.parametrize("length", [5, 127, 128, 200, 33_000, 5 * MIB])
def test_a_string_that_is_not_utf8_is_noted_whatever_its_length(length: int, tmp_path: Path) -> None:
    """A length from 128 on is no ASCII: characters could seem to reach over it."""
    for texts in ([b"ok", "ü".encode() * (length // 2)], [b"a" * (length - 1) + b"\xc3", b"\x80\x80"]):
        data = b"".join(map(string, texts))
        gguf(tmp_path / "x.gguf", [array("a.b", 8, len(texts), data)])
        held = open_gguf(os.fspath(tmp_path / "x.gguf"))
        assert held.metadata["a.b"].data == tuple(text.decode(errors="surrogateescape") for text in texts)
        assert bool(held.notes) == (texts[0] != b"ok")


def refs(names: str) -> Iterator[TensorRef]:
    return (TensorRef(name, block_type("F32"), (i,), (Span(0, i, (i,)),)) for i, name in enumerate(names))


def test_tables_are_mappings_in_order() -> None:
    made = {ref.name: ref for ref in refs("dbca")}
    lines = list(made.values())
    lazy = TensorTable(range(4), lines.__getitem__, lambda place: lines[place].name)
    assert lazy == made
    assert (list(lazy), list(lazy.values()), list(lazy.items())) == (list(made), lines, list(made.items()))
    assert ("c" in lazy, "x" in lazy, lazy.get("x"), lazy["c"].shape, len(lazy)) == (True, False, None, (2,), 4)
    more = {ref.name: ref for ref in refs("xyz")}
    assert list(joined([lazy, more]).items()) == [*made.items(), *more.items()]
    assert joined([lazy, more])["y"] == more["y"]


# --- the cap -------------------------------------------------------------------------------------------------------

HELD = """
import resource, sys
from ggferry.converters.model_graph import open_checkpoint as opening
from ggferry.formats import memory_cap
from ggferry.formats.reader import Match
def hold(path, layouts): return bytearray(1 << 30)
class Reader: open = staticmethod(hold)
opening.find_reader = lambda path: (Reader, Match("ggjt"))
memory_cap.ration(200 << 20)
try: opening.open_checkpoint(sys.argv[1])
except Exception as error: print(type(error).__name__, error, file=sys.stderr)
held = bytearray(1 << 30)
print(resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY, file=sys.stderr)
"""


def test_a_header_that_wants_more_memory_than_the_cap_ends_in_an_error(tmp_path: Path) -> None:
    """And what comes after it has no cap."""
    code, _, _, text = measured(tmp_path / "x", HELD)
    assert (code, text.splitlines()[1]) == (0, "True")
    assert text.startswith("OutOfRangeError")
    assert "takes more memory than any model's: expected ≤ 200 MiB" in text


@pytest.mark.linux("limits of memory")
def test_the_command_line_reads_headers_under_a_cap(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[int] = []
    monkeypatch.setattr(memory_cap, "_limit", 0)
    finder = "ggferry.converters.model_graph.open_checkpoint.find_reader"
    monkeypatch.setattr(finder, lambda path: seen.append(_soft()) or 1 / 0)
    before = _soft()
    assert cli._run(["inspect", os.fspath(tmp_path)]) == cli.INTERNAL_ERROR
    assert seen[0] != resource.RLIM_INFINITY
    assert seen[0] < memory_cap.HEADERS + (1 << 40)
    assert _soft() == before


def _soft() -> int:
    return resource.getrlimit(resource.RLIMIT_DATA)[0]


def test_running_out_of_memory_is_an_error_of_ours(monkeypatch: Any, capsys: Any, tmp_path: Path) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("ggferry.converters.model_graph.open_checkpoint.find_reader", fail)
    monkeypatch.setattr(cli, "ration", lambda nbytes: None)
    monkeypatch.setattr(memory_cap, "_limit", 0)
    assert cli._run(["inspect", os.fspath(tmp_path), "--json"]) == 1
    said = capsys.readouterr()
    assert said.err.startswith("error: out of memory")
    assert json.loads(said.out)["error"]["code"] == "out_of_memory_error"


# --- the sizes of the attack ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["gguf tensors", "gguf, most", "gguf arrays", "safetensors tensors", "safetensors, most", "shape"]
)
def test_the_bombs_of_the_attack(kind: str, tmp_path: Path) -> None:
    path = tmp_path / ("x.gguf" if kind.startswith("gguf") else "x.safetensors")
    if kind == "gguf tensors":
        gguf(path, [], 1_000_000)
        assert_refused(path, "tensor_count: found 1000000")
    elif kind == "gguf, most":
        assert_cheap(path, gguf(path, [], limits.MAX_GGUF_TENSORS))
    elif kind == "gguf arrays":
        gguf(path, [array(f"a.b{i}", 0, 16 * MIB, b"\7" * 16 * MIB) for i in range(16)])
        assert_refused(path, "size of the header", 256 * MIB)
    elif kind == "shape":
        header = b'{"a":{"dtype":"F32","shape":[' + b"1," * 40_000_000 + b'1],"data_offsets":[0,4]}}'
        assert_refused(path, "fields of 'a'", 2 * safetensors(path, header))
    elif kind == "safetensors tensors":
        count = limits.MAX_TENSORS + 1
        assert_refused(path, "number of tensors", 3 * safetensors(path, table(count), 4 * count))
    else:
        assert_cheap(path, safetensors(path, table(limits.MAX_TENSORS), 4 * limits.MAX_TENSORS))
