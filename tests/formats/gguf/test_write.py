"""The GGUF writer: where it puts tensors, what it refuses, and that nothing unfinished ever has the final name."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import gguf
import numpy as np
import pytest

from ggferry.formats import errors as e
from ggferry.formats.files.partial_names import is_partial
from ggferry.formats.gguf.header_layout import lay_out
from ggferry.formats.gguf.values import Value, ValueType, array, boolean, f32, i32, string, u32
from ggferry.formats.gguf.write import GGUFFile, write_gguf
from ggferry.formats.readers.gguf import open_gguf
from ggferry.quant.codec import block_type, types_by_id
from ggferry.quant.endian import swap
from ggferry.support.platform import here
from helpers.peers import Peers

F32, F16, Q8_0, Q4_K = (block_type(name) for name in ("F32", "F16", "Q8_0", "Q4_K"))
LLAMA = {"general.architecture": string("llama")}
TABLE = [("a", F32, (3, 5)), ("b", Q8_0, (2, 64)), ("c", Q4_K, (1, 256)), ("d", F16, (7,))]
DATA = {name: os.urandom(kind.nbytes(shape)) for name, kind, shape in TABLE}


def fill(file: GGUFFile) -> None:
    for name, data in DATA.items():
        file.pwrite(name, 0, data)


# --- layout ---


def test_tinyllama_is_laid_out_as_its_maker_did(fixtures: Path) -> None:
    """201 offsets printed from the published Q2_K file by an independent reader."""
    lines = (fixtures / "gguf" / "tinyllama-q2_k.tensors.txt").read_text().splitlines()
    printed = [line.split() for line in lines if not line.startswith("#")]
    assert len(printed) == 201
    metadata = {
        "general.architecture": string("llama"),
        "general.name": string("tinyllama_tinyllama-1.1b-chat-v1.0"),
        "llama.context_length": u32(2048),
        "llama.embedding_length": u32(2048),
        "llama.block_count": u32(22),
        "llama.feed_forward_length": u32(5632),
        "llama.rope.dimension_count": u32(64),
        "llama.attention.head_count": u32(32),
        "llama.attention.head_count_kv": u32(4),
        "llama.attention.layer_norm_rms_epsilon": f32(1e-5),
        "llama.rope.freq_base": f32(10000.0),
        "general.file_type": u32(10),
        "tokenizer.ggml.model": string("llama"),
        "tokenizer.ggml.tokens": array(ValueType.STRING, ["<unk>", "<s>", "</s>"]),
        "tokenizer.ggml.scores": array(ValueType.FLOAT32, [0.0, 0.0, 0.0]),
        "tokenizer.ggml.token_type": array(ValueType.INT32, [2, 3, 3]),
        "tokenizer.ggml.merges": array(ValueType.STRING, ["▁ t", "e r"]),
        "tokenizer.ggml.bos_token_id": u32(1),
        "tokenizer.ggml.eos_token_id": u32(2),
        "tokenizer.ggml.unknown_token_id": u32(0),
        "tokenizer.ggml.padding_token_id": u32(2),
        "tokenizer.chat_template": string("{% for message in messages %}"),
        "general.quantization_version": u32(2),
    }
    assert len(metadata) == 23
    tensors = [
        (name, types_by_id()[int(kind)], tuple(int(n) for n in reversed(ne.split("x"))))
        for name, kind, ne, _ in printed
    ]
    layout = lay_out(metadata, tensors)
    assert list(layout.relative.values()) == [int(offset) for *_, offset in printed]
    assert list(layout.relative) == [name for name, *_ in printed]
    assert layout.size - layout.data_offset == 481398784 + 2048 * 4


def test_lay_out_is_deterministic_and_its_parts_agree() -> None:
    layout = lay_out(LLAMA, TABLE)
    assert layout == lay_out(dict(LLAMA), tuple(TABLE))
    assert len(layout.header) % 32 == 0 and layout.size % 32 == 0
    ends = [tensor.offset + tensor.nbytes for tensor in layout.tensors.values()]
    starts = list(layout.offsets.values())
    assert starts[0] == layout.data_offset
    assert all(0 <= start - end < 32 for start, end in zip([*starts[1:], layout.size], ends, strict=True))


def test_the_alignment_key_is_written_when_it_must_be() -> None:
    assert b"general.alignment" not in lay_out(LLAMA, TABLE).header
    assert b"general.alignment" in lay_out(LLAMA, TABLE, alignment=64).header
    stated = {"general.alignment": u32(64), **LLAMA}
    assert lay_out(stated, TABLE, alignment=64).header.count(b"general.alignment") == 1
    assert b"general.alignment" in lay_out({**LLAMA, "general.alignment": u32(32)}, TABLE).header
    for wrong in (stated, {"general.alignment": i32(32)}):
        with pytest.raises(e.UsageError, match="alignment"):
            lay_out(wrong, TABLE)


@pytest.mark.parametrize("big", [False, True])
def test_the_same_bytes_as_the_gguf_package(big: bool, tmp_path: Path) -> None:
    order = gguf.GGUFEndian.BIG if big else gguf.GGUFEndian.LITTLE
    writer = gguf.GGUFWriter(tmp_path / "theirs.gguf", "llama", endianess=order)
    writer.add_uint32("t.u32", 7)
    writer.add_float32("t.f32", 0.1)
    writer.add_string("t.text", "Grüße")
    writer.add_bool("t.bool", True)
    writer.add_array("t.list", ["a", "▁b"])
    writer.add_array("t.numbers", [1, -2])
    writer.add_custom_alignment(64)
    values = np.arange(15, dtype=np.float32).reshape(3, 5)
    halves = np.arange(7, dtype=np.float16)
    writer.add_tensor("a", values.copy())
    writer.add_tensor("d", halves.copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    metadata = {
        **LLAMA,
        "t.u32": u32(7),
        "t.f32": f32(0.1),
        "t.text": string("Grüße"),
        "t.bool": boolean(True),
        "t.list": array(ValueType.STRING, ["a", "▁b"]),
        "t.numbers": array(ValueType.INT32, [1, -2]),
    }
    tensors = [("a", F32, (3, 5), values), ("d", F16, (7,), halves)]
    write_gguf(tmp_path / "ours.gguf", metadata, tensors, alignment=64, big_endian=big)
    assert (tmp_path / "ours.gguf").read_bytes() == (tmp_path / "theirs.gguf").read_bytes()


V = ValueType


@pytest.mark.parametrize(
    ("metadata", "kind"),
    [
        ({"": u32(1)}, e.UsageError),
        ({"a b": u32(1)}, e.UsageError),
        ({"a..b": u32(1)}, e.UsageError),
        ({"a\n": u32(1)}, e.UsageError),
        ({"größe": u32(1)}, e.UsageError),
        ({"k" * 65536: u32(1)}, e.UsageError),
        ({"k": Value(V.UINT32, -1)}, e.OutOfRangeError),
        ({"k": Value(V.UINT32, 1 << 32)}, e.OutOfRangeError),
        ({"k": Value(V.INT8, 128)}, e.OutOfRangeError),
        ({"k": Value(V.UINT32, 1.5)}, e.OutOfRangeError),
        ({"k": Value(V.FLOAT32, 1e39)}, e.OutOfRangeError),
        ({"k": Value(V.BOOL, 1)}, e.OutOfRangeError),
        ({"k": Value(V.STRING, b"x")}, e.OutOfRangeError),
        ({"k": Value(V.STRING, "\ud800")}, e.EncodingError),
        ({"k": Value(V.ARRAY, (1,))}, e.OutOfRangeError),
        ({"k": array(V.UINT8, [1, 256])}, e.OutOfRangeError),
        ({"k": array(V.BOOL, [True, 2])}, e.OutOfRangeError),
        ({"k": array(V.STRING, ["a", 1])}, e.OutOfRangeError),
        ({"k": array(V.ARRAY, [u32(1)])}, e.OutOfRangeError),
        ({f"k{n}": u32(1) for n in range((1 << 17) + 1)}, e.OutOfRangeError),
    ],
)
def test_metadata_that_gguf_cannot_hold(metadata: dict[str, Value], kind: type) -> None:
    with pytest.raises(kind):
        lay_out(metadata, [])


@pytest.mark.parametrize(
    ("tensors", "kind"),
    [
        ([("", F32, (1,))], e.UsageError),
        ([("n" * 64, F32, (1,))], e.UsageError),
        ([("ü" * 32, F32, (1,))], e.UsageError),
        ([("a\0", F32, (1,))], e.UsageError),
        ([("a", F32, ())], e.UsageError),
        ([("a", F32, (1,) * 5)], e.UsageError),
        ([("a", F32, (4, 0))], e.UsageError),
        ([("a", F32, (4, -1))], e.UsageError),
        ([("a", Q8_0, (32, 33))], e.UsageError),
        ([("a", block_type("F8_E4M3"), (4,))], e.UsageError),
        ([("a", F32, (1,)), ("b", F32, (1,)), ("a", F32, (1,))], e.DuplicateError),
    ],
)
def test_tensors_that_gguf_cannot_hold(tensors: list, kind: type) -> None:
    with pytest.raises(kind):
        lay_out(LLAMA, tensors)


@pytest.mark.parametrize("alignment", [0, -32, 13, 24, 1 << 31, 1 << 21])
def test_alignments_that_ggml_does_not_take(alignment: int) -> None:
    with pytest.raises(e.UsageError):
        lay_out(LLAMA, TABLE, alignment=alignment)


# --- a file in the making ---


def test_chunks_from_many_threads(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    table = [(f"t{n}", F32, (64, 50 + n)) for n in range(6)]
    data = {name: os.urandom(kind.nbytes(shape)) for name, kind, shape in table}
    layout = lay_out(LLAMA, table)
    with GGUFFile(path, layout) as file:
        pieces = [(name, at) for name in data for at in range(0, len(data[name]), 999)]

        def work(mine: list[tuple[str, int]]) -> None:
            for name, at in mine:
                file.pwrite(name, at, data[name][at : at + 999])

        threads = [threading.Thread(target=work, args=(pieces[n::4],)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        file.finish()
        file.publish()
    assert os.listdir(tmp_path) == ["m.gguf"]
    expected = bytearray(layout.size)
    expected[: len(layout.header)] = layout.header
    for name, offset in layout.offsets.items():
        expected[offset : offset + len(data[name])] = data[name]
    assert path.read_bytes() == bytes(expected)


def test_big_endian_is_little_endian_with_every_field_swapped(tmp_path: Path) -> None:
    little, big = tmp_path / "l.gguf", tmp_path / "b.gguf"
    tensors = [(name, kind, shape, DATA[name]) for name, kind, shape in TABLE]
    write_gguf(little, LLAMA, tensors)
    write_gguf(big, LLAMA, tensors, big_endian=True)
    sources = open_gguf(str(little)), open_gguf(str(big))
    for name, kind, _ in TABLE:
        data = [c.files[0].read(c.tensors[name].spans[0].offset, c.tensors[name].nbytes) for c in sources]
        assert data[0] == DATA[name]
        rows = np.frombuffer(data[1], dtype=np.uint8).reshape(-1, kind.block_bytes)
        assert swap(kind, rows).tobytes() == data[0]
        assert data[0] != data[1]
    assert np.array_equal(gguf.GGUFReader(big).tensors[0].data, gguf.GGUFReader(little).tensors[0].data, equal_nan=True)
    layout = lay_out(LLAMA, TABLE, big_endian=True)
    with GGUFFile(tmp_path / "c.gguf", layout) as file, pytest.raises(e.UsageError, match="whole blocks"):
        file.pwrite("b", 1, DATA["b"][1:])


@pytest.mark.parametrize(("name", "offset", "size"), [("a", -1, 4), ("a", 0, 61), ("a", 60, 1), ("b", 1 << 62, 1)])
def test_writes_outside_a_tensor_are_refused(name: str, offset: int, size: int, tmp_path: Path) -> None:
    with GGUFFile(tmp_path / "m.gguf", lay_out(LLAMA, TABLE)) as file, pytest.raises(e.OutOfRangeError):
        file.pwrite(name, offset, bytes(size))


def test_unknown_tensors_and_late_writes_are_refused(tmp_path: Path) -> None:
    with GGUFFile(tmp_path / "m.gguf", lay_out(LLAMA, TABLE)) as file:
        with pytest.raises(e.UsageError):
            file.pwrite("z", 0, b"")
        with pytest.raises(e.UsageError):
            file.publish()
        fill(file)
        file.finish()
        with pytest.raises(e.UsageError):
            file.pwrite("a", 0, DATA["a"])


@pytest.mark.parametrize("pieces", [[], [(0, 59)], [(1, 60)], [(0, 30), (31, 60)], [(0, 30), (29, 60)]])
def test_a_tensor_with_a_hole_or_written_twice_cannot_be_finished(pieces: list, tmp_path: Path) -> None:
    with GGUFFile(tmp_path / "m.gguf", lay_out(LLAMA, TABLE)) as file:
        for name in "bcd":
            file.pwrite(name, 0, DATA[name])
        for begin, end in pieces:
            file.pwrite("a", begin, DATA["a"][begin:end])
        with pytest.raises(e.VerificationError, match="'a'"):
            file.finish()
    assert os.listdir(tmp_path) == []


def test_until_finished_the_bytes_are_no_model(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    with GGUFFile(path, lay_out(LLAMA, TABLE)) as file:
        fill(file)
        with pytest.raises(e.UnknownFormatError):
            open_gguf(file.partial)
        file.finish()
        assert not path.exists()
        assert list(open_gguf(file.partial).tensors) == list(DATA)  # what a verifier reads
        file.publish()
    assert os.listdir(tmp_path) == ["m.gguf"] and list(open_gguf(str(path)).tensors) == list(DATA)


def test_bytes_go_to_disk_while_others_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ggferry.formats.gguf.write.FLUSH", 1)
    flushed = threading.Event()
    monkeypatch.setattr(here, "sync_data", lambda fd: flushed.set())
    with GGUFFile(tmp_path / "m.gguf", lay_out(LLAMA, TABLE)) as file:
        file.pwrite("a", 0, DATA["a"])
        assert flushed.wait(10)
        for name in "bcd":
            file.pwrite(name, 0, DATA[name])
        file.finish()
        file.publish()


@pytest.mark.parametrize("last", ["a", "d"])
def test_a_flush_that_fails_beside_the_writing_ends_it(
    last: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel tells a descriptor of lost bytes once: fsync at the end would know nothing of them."""
    monkeypatch.setattr("ggferry.formats.gguf.write.FLUSH", 1 if last == "a" else sum(map(len, DATA.values())))
    failed = threading.Event()

    def fdatasync(fd: int) -> None:
        if not failed.is_set():
            failed.set()
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(here, "sync_data", fdatasync)
    with (
        pytest.raises(e.GgferryError, match="cannot be written: Input/output error"),
        GGUFFile(tmp_path / "m.gguf", lay_out(LLAMA, TABLE)) as file,
    ):
        for name, data in DATA.items():
            file.pwrite(name, 0, data)
            assert name != last or failed.wait(10)
        file.finish()
        file.publish()
    assert os.listdir(tmp_path) == []


def test_the_last_flush_runs_while_the_file_is_read_and_its_failure_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proved = threading.Event()

    def fsync(fd: int) -> None:
        assert proved.wait(10)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fsync)
    with (
        pytest.raises(e.GgferryError, match="cannot be written: Input/output error"),
        GGUFFile(tmp_path / "m.gguf", lay_out(LLAMA, TABLE)) as file,
    ):
        fill(file)
        file.finish()
        assert list(open_gguf(file.partial).tensors) == list(DATA)
        proved.set()
        file.publish()
    assert os.listdir(tmp_path) == []


def test_an_existing_file_is_replaced_only_when_told(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"precious")
    layout = lay_out(LLAMA, TABLE)
    with pytest.raises(e.RefusedError, match="--force"):
        GGUFFile(path, layout)
    assert os.listdir(tmp_path) == ["m.gguf"] and path.read_bytes() == b"precious"
    with GGUFFile(path, layout, overwrite=True) as file:
        fill(file)
        file.finish()
        assert path.read_bytes() == b"precious"
        file.publish()
    assert path.stat().st_size == layout.size and os.listdir(tmp_path) == ["m.gguf"]


@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_appears_meanwhile_is_not_replaced(
    links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not links:
        monkeypatch.setattr(os, "link", _no_links)
    path = tmp_path / "m.gguf"
    with GGUFFile(path, lay_out(LLAMA, TABLE)) as file:
        fill(file)
        file.finish()
        path.write_bytes(b"precious")
        with pytest.raises(e.RefusedError, match="exists"):
            file.publish()
    assert path.read_bytes() == b"precious" and os.listdir(tmp_path) == ["m.gguf"]


def _no_links(source: str, target: str) -> None:
    raise OSError(errno.EPERM, "Operation not permitted")


def test_publishing_where_there_are_no_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", _no_links)
    with GGUFFile(tmp_path / "m.gguf", lay_out(LLAMA, TABLE)) as file:
        fill(file)
        file.finish()
        file.publish()
    assert os.listdir(tmp_path) == ["m.gguf"] and len(open_gguf(str(tmp_path / "m.gguf")).tensors) == 4


def test_a_second_live_writer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    layout = lay_out(LLAMA, TABLE)
    with GGUFFile(path, layout) as first:
        with pytest.raises(e.RefusedError, match="another writer"):
            GGUFFile(path, layout)
        fill(first)
        first.finish()
        first.publish()
    assert list(open_gguf(str(path)).tensors) == list(DATA)
    with GGUFFile(path, layout, overwrite=True) as again:  # the lock went with the first
        fill(again)


def test_what_a_crash_leaves_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    (tmp_path / ".m.gguf.ggferry-0123456789abcdef.partial").write_bytes(b"\xff" * 100_000)
    layout = write_gguf(path, LLAMA, [(n, k, s, DATA[n]) for n, k, s in TABLE])
    assert path.stat().st_size == layout.size and os.listdir(tmp_path) == ["m.gguf"]
    padding = path.read_bytes()[layout.offsets["a"] + 60 : layout.offsets["b"]]
    assert padding and not any(padding)


def test_a_crash_between_link_and_unlink_does_not_harm_the_published_file(tmp_path: Path) -> None:
    path, partial = tmp_path / "m.gguf", tmp_path / ".m.gguf.ggferry-0123456789abcdef.partial"
    write_gguf(path, LLAMA, [(n, k, s, DATA[n]) for n, k, s in TABLE])
    published = path.read_bytes()
    os.link(path, partial)
    file = GGUFFile(path, lay_out(LLAMA, TABLE[:1]), overwrite=True)
    assert path.read_bytes() == published
    file.discard()
    os.link(path, partial)
    with pytest.raises(e.RefusedError):
        GGUFFile(path, lay_out(LLAMA, TABLE[:1]))
    assert path.read_bytes() == published and os.listdir(tmp_path) == ["m.gguf"]


KILLED = """
import os, signal, sys
from ggferry.formats.gguf.header_layout import lay_out
from ggferry.formats.gguf.values import string
from ggferry.formats.gguf.write import GGUFFile
from ggferry.quant.codec import block_type
file = GGUFFile(sys.argv[1], lay_out({"general.architecture": string("llama")}, [("a", block_type("F32"), (3, 5))]))
file.pwrite("a", 0, bytes(60))
stage = sys.argv[2]
if stage != "written":
    file.finish()
if stage == "linked":
    os.unlink = lambda path: os.kill(os.getpid(), signal.SIGKILL)
    file.publish()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("stage", ["written", "finished", "linked"])
def test_killed_at_any_stage_leaves_nothing_or_a_whole_file(stage: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    done = subprocess.run([sys.executable, "-c", KILLED, path, stage])
    assert done.returncode == -signal.SIGKILL
    names = sorted(os.listdir(tmp_path))
    assert [name for name in names if not is_partial(name)] == (["m.gguf"] if stage == "linked" else [])
    assert len(names) == 1 + path.exists()
    if path.exists():
        assert list(open_gguf(str(path)).tensors) == ["a"]
    write_gguf(path, LLAMA, [(n, k, s, DATA[n]) for n, k, s in TABLE], overwrite=True)
    assert os.listdir(tmp_path) == ["m.gguf"] and list(open_gguf(str(path)).tensors) == list(DATA)


def test_errors_of_the_disk_are_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = lay_out(LLAMA, TABLE)
    with pytest.raises(e.NotFoundError):
        GGUFFile(tmp_path / "absent" / "m.gguf", layout)
    (tmp_path / "d.gguf").mkdir()
    with pytest.raises(e.UsageError):
        GGUFFile(tmp_path / "d.gguf", layout, overwrite=True)

    def full(fd: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with GGUFFile(tmp_path / "m.gguf", layout) as file:
        monkeypatch.setattr(here, "pwrite", full)
        with pytest.raises(e.GgferryError, match="No space left"):
            file.pwrite("a", 0, DATA["a"])
    assert os.listdir(tmp_path) == ["d.gguf"]


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = here.pwrite
    monkeypatch.setattr(here, "pwrite", lambda fd, data, offset: real(fd, data[:7], offset))
    path = tmp_path / "m.gguf"
    layout = write_gguf(path, LLAMA, [(n, k, s, DATA[n]) for n, k, s in TABLE])
    data = path.read_bytes()
    assert all(data[layout.offsets[name] :].startswith(DATA[name]) for name in DATA)


# --- what others make of it ---

GENERATE = """
import json, sys
import xllamacpp
params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_ctx, params.n_parallel, params.n_gpu_layers, params.warmup, params.verbosity = 64, 1, 0, False, -1
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
answer = xllamacpp.Server(params).handle_completions(
    {"prompt": "Hello world", "max_tokens": 8, "temperature": 0, "n_probs": 1})
print("ANSWER", json.dumps([[t["id"], t["logprob"]] for t in answer["choices"][0]["logprobs"]["content"]]))
"""


def generated(path: Path) -> list[list[float]]:
    """Ids and log-probabilities of eight greedy tokens by a current llama.cpp, in a process of its own."""
    import json

    done = subprocess.run(
        [sys.executable, "-c", GENERATE, path], capture_output=True, text=True, timeout=120, check=True
    )
    line = next(line for line in done.stdout.splitlines() if line.startswith("ANSWER "))
    answer: list[list[float]] = json.loads(line.removeprefix("ANSWER "))
    assert len(answer) == 8
    return answer


@pytest.mark.parametrize("alignment", [32, 128])
def test_llama_cpp_runs_what_we_rewrote(alignment: int, peer: Peers, tmp_path: Path) -> None:
    source = peer("hf/out/llama/llama.f32.gguf")
    found = open_gguf(str(source))
    tensors = [
        (t.name, t.type, t.shape, found.files[0].read(t.spans[0].offset, t.nbytes)) for t in found.tensors.values()
    ]
    copy = tmp_path / "copy.gguf"
    write_gguf(copy, found.metadata, tensors, alignment=alignment)
    assert (copy.read_bytes() == source.read_bytes()) == (alignment == 32)
    assert generated(copy) == generated(source)


def test_write_read_write_is_the_identity_in_either_byte_order(peer: Peers, tmp_path: Path) -> None:
    for name in ("im_k256.IQ1_S", "k256.Q4_K_M", "k256.TQ2_0", "k256.MXFP4_MOE", "im_k256.IQ3_XXS"):
        source = peer(f"quantize/{name}.gguf")
        little = open_gguf(str(source))
        big, back = tmp_path / f"{name}.big.gguf", tmp_path / f"{name}.gguf"
        rewrite(little, big, big_endian=True)
        found = open_gguf(str(big))
        assert found.big_endian and found.metadata == little.metadata
        assert big.stat().st_size == source.stat().st_size
        rewrite(found, back, big_endian=False)
        assert back.read_bytes() == source.read_bytes()


def rewrite(found, path: Path, big_endian: bool) -> None:
    tensors = []
    for t in found.tensors.values():
        data = np.frombuffer(found.files[0].read(t.spans[0].offset, t.nbytes), dtype=np.uint8)
        rows = data.reshape(-1, t.type.block_bytes)
        tensors.append((t.name, t.type, t.shape, swap(t.type, rows) if t.big_endian else data))
    write_gguf(path, found.metadata, tensors, big_endian=big_endian)
