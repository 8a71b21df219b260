"""Every malformed LLaMA file of the GGML era on the list L01–L30, M01–M05: refused by name, or read with a remark."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.understand import understand
from ggferry.formats import errors as e
from helpers.builders import MAGIC, Llama, code_of, random_rows, record

SMALL = {"n_vocab": 262, "n_embd": 32, "n_head": 4, "n_head_kv": 4, "n_layer": 2, "n_ff": 64, "kind": "F16"}
GOOD = Llama(**SMALL)  # type: ignore[arg-type]
FIELDS = ("n_vocab", "n_embd", "n_mult", "n_head", "n_layer", "n_rot", "ftype")
QUANTIZED = Llama(**{**SMALL, "kind": "Q4_0"})  # type: ignore[arg-type]


def field(name: str, value: int) -> bytes:
    """The good file with another value in its header."""
    data = bytearray(GOOD.bytes())
    struct.pack_into("<i", data, 8 + 4 * FIELDS.index(name), value)
    return bytes(data)


def start(data: bytes) -> bytes:
    """The good file with its first bytes replaced."""
    return data + GOOD.bytes()[len(data) :]


def records(change: Callable[[list[tuple[str, int, tuple[int, ...], bytes]]], object]) -> bytes:
    """The good file with other records of tensors."""
    import numpy as np

    rng = np.random.default_rng(0)
    table = []
    for name, shape in GOOD.tensors():
        kind = "F32" if len(shape) == 1 else "F16"
        raw = random_rows(rng, kind, shape[0] if len(shape) > 1 else 1, shape[-1])
        if len(shape) == 1:
            raw = np.ones(shape[0], "<f4").tobytes()
        table.append((name, code_of(kind), shape, raw))
    change(table)
    data = GOOD.prelude()
    for name, code, shape, raw in table:
        data += record(name, code, shape, raw, 32, len(data))
    return data


def token(at: int, raw: bytes, length: int | None = None) -> bytes:
    """The good file whose token `at` is other bytes of the same number, or states another length."""
    data, place = bytearray(GOOD.bytes()), 8 + 4 * len(FIELDS)
    for each in GOOD.vocabulary()[:at]:
        place += 8 + len(each)
    if length is not None:
        struct.pack_into("<i", data, place, length)
    data[place + 4 : place + 4 + len(raw)] = raw
    return bytes(data)


def renamed(old: str, new: str) -> Callable[[list[tuple[str, int, tuple[int, ...], bytes]]], object]:
    def change(table: list[tuple[str, int, tuple[int, ...], bytes]]) -> None:
        [at] = [n for n, row in enumerate(table) if row[0] == old]
        table[at] = (new, *table[at][1:])

    return change


def score(value: float) -> bytes:
    data, place = bytearray(GOOD.bytes()), 8 + 4 * len(FIELDS)
    for each in GOOD.vocabulary()[:260]:
        place += 8 + len(each)
    struct.pack_into("<f", data, place + 4 + len(GOOD.vocabulary()[260]), value)
    return bytes(data)


FIRST = 8 + 4 * len(FIELDS) + sum(8 + len(each) for each in GOOD.vocabulary())  # the first record
INT_MAX = 2**31 - 1


def patched(at: int, *values: int) -> bytes:
    """The good file with other numbers in the first record."""
    data = bytearray(GOOD.bytes())
    struct.pack_into(f"<{len(values)}i", data, FIRST + at, *values)
    return bytes(data)


L_LIST: dict[str, tuple[bytes, type[e.GgferryError]]] = {
    "L01 unknown magic": (start(b"abcd"), e.UnknownFormatError),
    "L02 magic of the other byte order": (start(struct.pack(">I", MAGIC["ggjt"])), e.GgferryError),
    "L03 GGMF 2": (start(struct.pack("<Ii", MAGIC["ggmf"], 2)), e.OutOfRangeError),
    "L04 GGJT 0": (start(struct.pack("<Ii", MAGIC["ggjt"], 0)), e.OutOfRangeError),
    "L04 GGJT 4": (start(struct.pack("<Ii", MAGIC["ggjt"], 4)), e.OutOfRangeError),
    "L05 ggla": (start(b"algg"), e.GgferryError),
    "L05 ggsn": (start(b"nsgg"), e.UnsupportedError),
    "L06 GGUF under the name .bin": (start(b"GGUF"), e.CorruptError),
    "L07 header cut": (GOOD.bytes()[:20], e.TruncatedError),
    "L08 2^31-1 tokens": (field("n_vocab", INT_MAX), e.CorruptError),
    "L08 no tokens": (field("n_vocab", 0), e.CorruptError),
    "L09 width 0": (field("n_embd", 0), e.CorruptError),
    "L10 n_mult 0": (field("n_mult", 0), e.CorruptError),
    "L11 no heads": (field("n_head", 0), e.CorruptError),
    "L12 heads that do not divide": (field("n_head", 5), e.CorruptError),
    "L13 no layers": (field("n_layer", 0), e.CorruptError),
    "L13 more layers than tensors": (field("n_layer", 3), e.CorruptError),
    "L15 ftype 99": (field("ftype", 99), e.GgferryError),
    "L17 vocabulary cut": (GOOD.bytes()[:300], e.TruncatedError),
    "L17 token of 2^31-1 bytes": (token(5, b"", INT_MAX), e.CorruptError),
    "L19 score NaN": (score(float("nan")), e.CorruptError),
    "L20 no axes": (patched(0, 0), e.CorruptError),
    "L20 five axes": (patched(0, 5), e.CorruptError),
    "L21 name of no bytes": (patched(4, 0), e.CorruptError),
    "L21 name of a million bytes": (patched(4, 10**6), e.CorruptError),
    "L21 name not UTF-8": (GOOD.bytes().replace(b"tok_embeddings", b"tok\xff\xfebeddings"[:14], 1), e.CorruptError),
    "L22 type 99": (patched(8, 99), e.OutOfRangeError),
    "L22 type 4 where there is none": (patched(8, 4), e.OutOfRangeError),
    "L23 a row of no whole blocks": (patched(8, 2, 33), e.CorruptError),
    "L24 padding absent": (GOOD.prelude() + GOOD.bytes()[FIRST:].lstrip(b"\0")[:100], e.CorruptError),
    "L25 a tensor twice": (records(lambda table: table.append(table[0])), e.DuplicateError),
    "L26 an unknown tensor": (records(renamed("norm.weight", "strange.weight")), e.UnexpectedTensorError),
    "L27 a tensor missing": (records(lambda table: table.pop(1)), e.CorruptError),
    "L28 transposed": (
        records(lambda table: table.__setitem__(0, (table[0][0], 1, table[0][2][::-1], table[0][3]))),
        e.CorruptError,
    ),
    "L29 a byte short": (GOOD.bytes()[:-1], e.TruncatedError),
    "L30 trailing bytes": (GOOD.bytes() + bytes(64), e.CorruptError),
    "L30 a trailing byte": (GOOD.bytes() + b"x", e.CorruptError),
}


@pytest.mark.parametrize("case", L_LIST)
def test_refused(case: str, tmp_path: Path) -> None:
    data, kind = L_LIST[case]
    (tmp_path / "x.bin").write_bytes(data)
    with pytest.raises(kind) as caught:
        understand(open_checkpoint(str(tmp_path / "x.bin")))
    assert caught.value.path and str(caught.value)


def test_the_good_file_is_good(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(records(lambda table: None))
    assert understand(open_checkpoint(str(tmp_path / "x.bin"))).architecture.name == "llama"


READ = {
    "L14 another n_rot": field("n_rot", 6),  # programs of the time took n_embd / n_head all the same
    "L16 ftype of another type than the tensors'": field("ftype", 2),
    "L18 a token that is not UTF-8": token(261, b"\xff"),
    "M05 quantized in one part": QUANTIZED.bytes(),
}


@pytest.mark.parametrize("case", READ)
def test_read(case: str, tmp_path: Path) -> None:
    """What is odd and says all the same what it is."""
    (tmp_path / "x.bin").write_bytes(READ[case])
    graph = understand(open_checkpoint(str(tmp_path / "x.bin")))
    graph.checkpoint.close()
    assert not case.startswith("L14") or any("n_rot=6 is obsolete: 8" in note for note in graph.notes)


def parts(tmp_path: Path, count: int = 2, **changes: object) -> Path:
    model = Llama(**{**SMALL, "n_ff": 64 * count, "container": "ggmf", "version": 1, **changes})  # type: ignore[arg-type]
    return model.write(tmp_path / "m.bin", parts=count)


def test_m01_a_missing_part(tmp_path: Path) -> None:
    path = parts(tmp_path)
    (tmp_path / "m.bin.1").unlink()
    with pytest.raises(e.GgferryError, match=r"part|m\.bin\.1"):
        understand(open_checkpoint(str(path)))


@pytest.mark.parametrize("change", ["M02 another header", "M03 another type"])
def test_parts_that_are_not_of_one_model(change: str, tmp_path: Path) -> None:
    path = parts(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    parts(other, **({"n_mult": 64} if change.startswith("M02") else {"kind": "F32"}))
    (other / "m.bin.1").replace(tmp_path / "m.bin.1")
    with pytest.raises(e.CorruptError):
        understand(open_checkpoint(str(path)))


def test_m04_parts_go_by_number_and_not_by_name(tmp_path: Path) -> None:
    """Twelve parts: .10 and .11 are behind .2 to .9."""
    path = parts(tmp_path, 12, n_vocab=264, n_embd=192, n_head=12, n_head_kv=12, n_ff=192)
    checkpoint = open_checkpoint(str(path))
    try:
        assert [Path(file.path).suffix for file in checkpoint.files[1:]] == [f".{n}" for n in range(1, 12)]
    finally:
        checkpoint.close()
