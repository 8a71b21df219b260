"""What the GGUF reader refuses and with which error: every handcrafted case of llama.cpp's tests/test-gguf.cpp, and a
list of malformed files (G01–G39) of which today's readers accept many.

Files are packed here by hand, not by our writer, which would refuse to make them.
"""

from __future__ import annotations

import struct
import tracemalloc
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from ggferry.formats import errors as e
from ggferry.formats.reader import find_reader
from ggferry.formats.readers.gguf import open_gguf

F32, Q4_0, I8, I64 = 0, 2, 24, 27
U8, U32, I32, BOOL, STRING, ARRAY, U64 = 0, 4, 5, 7, 8, 9, 10
M1 = (1 << 64) - 1


def text(raw: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(raw) if length is None else length) + raw


def kv(key: bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def info(name: bytes, ne: tuple[int, ...], kind: int, offset: int, n_dims: int | None = None) -> bytes:
    dims = struct.pack(f"<{len(ne)}Q", *(n % (1 << 64) for n in ne))
    return (
        text(name) + struct.pack("<I", len(ne) if n_dims is None else n_dims) + dims + struct.pack("<IQ", kind, offset)
    )


@dataclass(frozen=True)
class File:
    """A valid file of two tensors and three keys, in parts that a case replaces."""

    magic: bytes = b"GGUF"
    version: bytes = b"\3\0\0\0"
    n_tensors: int | None = None
    n_kv: int | None = None
    counts: str = "<2Q"
    kvs: tuple[bytes, ...] = (
        kv(b"general.architecture", STRING, text(b"llama")),
        kv(b"llama.block_count", U32, struct.pack("<I", 2)),
        kv(b"flags", ARRAY, struct.pack("<IQ", BOOL, 3) + b"\1\0\1"),
    )
    infos: tuple[bytes, ...] = (info(b"a.weight", (32, 2), Q4_0, 0), info(b"b.weight", (8, 3), F32, 64))
    alignment: int = 32
    data: bytes = bytes(64 + 96)
    tail: bytes = b""

    def __bytes__(self) -> bytes:
        counts = (
            len(self.infos) if self.n_tensors is None else self.n_tensors,
            len(self.kvs) if self.n_kv is None else self.n_kv,
        )
        head = self.magic + self.version + struct.pack(self.counts, *counts) + b"".join(self.kvs + self.infos)
        return head + bytes(-len(head) % self.alignment) + self.data + self.tail

    def with_kv(self, *kvs: bytes) -> File:
        return replace(self, kvs=self.kvs + kvs)

    def with_infos(self, *infos: bytes, data: bytes | None = None) -> File:
        return replace(self, infos=infos, data=self.data if data is None else data)


GOOD = File()
LLAMA = GOOD.kvs[0]
ALIGN_64 = kv(b"general.alignment", U32, struct.pack("<I", 64))
ALIGN_13 = kv(b"general.alignment", U32, struct.pack("<I", 13))
ALIGN_I32 = kv(b"general.alignment", I32, struct.pack("<I", 32))


def one(ne: tuple[int, ...], kind: int = F32, offset: int = 0, name: bytes = b"a", n_dims: int | None = None) -> File:
    """A file of one tensor and 1 KiB of data."""
    return GOOD.with_infos(info(name, ne, kind, offset, n_dims), data=bytes(1024))


def custom_alignment() -> File:
    infos = info(b"a.weight", (32, 2), Q4_0, 0), info(b"b.weight", (8, 3), F32, 64)
    return replace(GOOD.with_kv(ALIGN_64), alignment=64, infos=infos, data=bytes(64 + 128))


LLAMA_CPP = {
    # handcrafted_file_type of tests/test-gguf.cpp; None: ggml accepts it and so do we
    "HEADER_BAD_MAGIC": (replace(GOOD, magic=b"FUGG"), e.UnknownFormatError),
    "HEADER_BAD_VERSION_0": (replace(GOOD, version=bytes(4)), e.UnsupportedVersionError),
    "HEADER_BAD_VERSION_1": (replace(GOOD, version=b"\1\0\0\0"), e.CorruptError),  # v3 counts: no v1 file either
    "HEADER_BAD_VERSION_FUTURE": (replace(GOOD, version=b"\4\0\0\0"), e.UnsupportedVersionError),
    "HEADER_BAD_N_KV": (replace(GOOD, n_kv=M1), e.OutOfRangeError),
    "HEADER_BAD_N_TENSORS": (replace(GOOD, n_tensors=M1), e.OutOfRangeError),
    "HEADER_EMPTY": (File(kvs=(), infos=(), data=b""), None),
    "KV_BAD_KEY_SIZE": (replace(GOOD, kvs=(text(b"k", M1) + bytes(5),)), e.OutOfRangeError),
    "KV_BAD_TYPE": (GOOD.with_kv(kv(b"k", 13, bytes(8))), e.OutOfRangeError),
    "KV_EMPTY_KEY": (GOOD.with_kv(kv(b"", U8, b"\0")), e.OutOfRangeError),
    "KV_DUPLICATE_KEY": (GOOD.with_kv(GOOD.kvs[1]), e.DuplicateError),
    "KV_BAD_ALIGN": (File(kvs=(LLAMA, ALIGN_13), infos=(), data=b""), e.OutOfRangeError),
    "KV_WRONG_TYPE_ALIGN": (File(kvs=(LLAMA, ALIGN_I32), infos=(), data=b""), e.OutOfRangeError),
    "KV_SUCCESS": (File(infos=(), data=b""), None),
    "TENSORS_BAD_NAME_SIZE": (one((4,), name=b"n" * 64), e.OutOfRangeError),
    "TENSORS_BAD_N_DIMS": (one((1, 1, 1, 1, 1)), e.OutOfRangeError),
    "TENSORS_BAD_SHAPE": (one((-1,)), e.OutOfRangeError),
    "TENSORS_ZERO_DIM": (one((4, 0)), e.OutOfRangeError),  # ggml accepts it; no model has one
    "TENSORS_NE_TOO_BIG": (one((4 * 0x7FFFFFFF,) * 4), e.TruncatedError),
    "TENSORS_NBYTES_TOO_BIG": (one((1 << 31, 1 << 31), I64), e.TruncatedError),
    "TENSORS_NBYTES_PAD_WRAP": (one((4, (1 << 30) - 1, (1 << 30) + 1)), e.TruncatedError),
    "TENSORS_BAD_TYPE": (one((4,), 43), e.UnsupportedTypeError),
    "TENSORS_BAD_OFFSET": (one((4,), offset=M1), e.OverlapError),
    "TENSORS_DUPLICATE_NAME": (GOOD.with_infos(GOOD.infos[0], GOOD.infos[0]), e.DuplicateError),
    "TENSORS_BAD_ALIGN": (GOOD.with_kv(ALIGN_13), e.OutOfRangeError),
    "TENSORS_INCONSISTENT_ALIGN": (
        replace(GOOD.with_kv(ALIGN_64), alignment=64).with_infos(
            info(b"a", (8,), F32, 0), info(b"b", (8,), F32, 32), data=bytes(64)
        ),
        e.OverlapError,
    ),
    "TENSORS_SUCCESS": (GOOD, None),
    "TENSORS_CUSTOM_ALIGN": (custom_alignment(), None),
    "DATA_NOT_ENOUGH_DATA": (replace(GOOD, data=GOOD.data[:-1]), e.TruncatedError),
    "DATA_BAD_ALIGN": (GOOD.with_kv(ALIGN_13), e.OutOfRangeError),
    "DATA_INCONSISTENT_ALIGN": (replace(custom_alignment(), alignment=32, data=bytes(64 + 96)), e.CorruptError),
    "DATA_MEM_SIZE_OVERFLOW": (
        GOOD.with_infos(info(b"a", (0x7FFFFFFFFFFFFFC0,), I8, 0), info(b"b", (0x7FFFFFFFFFFFFFC0,), I8, 0)),
        e.OutOfRangeError,
    ),
    "DATA_SUCCESS": (replace(GOOD, data=bytes(range(160))), None),
    "DATA_CUSTOM_ALIGN": (custom_alignment(), None),
}

G_LIST = {
    "G01 empty": (b"", e.TruncatedError),
    "G02 three bytes": (b"GGU", e.TruncatedError),
    "G03 header cut": (bytes(GOOD)[:20], e.TruncatedError),
    "G04 magic in lower case": (replace(GOOD, magic=b"gguf"), e.UnknownFormatError),
    "G05 GGJT under the name .gguf": (replace(GOOD, magic=b"tjgg"), e.UnknownFormatError),
    "G06 version 0": (replace(GOOD, version=bytes(4)), e.UnsupportedVersionError),
    "G07 version 4": (replace(GOOD, version=b"\4\0\0\0"), e.UnsupportedVersionError),
    "G08 version 4 of the other order": (replace(GOOD, version=b"\0\0\0\4"), e.UnsupportedVersionError),
    "G08 big-endian version, little-endian rest": (replace(GOOD, version=b"\0\0\0\3"), e.OutOfRangeError),
    "G09 v1 with u64 counts": (replace(GOOD, version=b"\1\0\0\0"), e.CorruptError),
    "G09 v2 with u32 counts": (replace(GOOD, version=b"\2\0\0\0", counts="<2I"), e.OutOfRangeError),
    "G10 -1 tensors": (replace(GOOD, n_tensors=M1), e.OutOfRangeError),
    "G11 -1 keys": (replace(GOOD, n_kv=M1), e.OutOfRangeError),
    "G12 one key too many": (replace(GOOD, n_kv=4), e.CorruptError),
    "G13 one tensor too many": (replace(GOOD, n_tensors=3), e.CorruptError),
    "G14 one tensor too few": (replace(GOOD, n_tensors=1), e.CorruptError),
    "G15 2e9 keys": (replace(GOOD, n_kv=2 * 10**9), e.OutOfRangeError),
    "G15 10 000 keys in 200 bytes": (replace(GOOD, n_kv=10_000), e.TruncatedError),
    "G15 60 000 tensors in 300 bytes": (replace(GOOD, n_tensors=60_000), e.TruncatedError),
    "G16 key of 2^63 bytes": (replace(GOOD, kvs=(text(b"k", 1 << 63) + bytes(5),)), e.OutOfRangeError),
    "G16 key of 65535 bytes in a short file": (replace(GOOD, kvs=(text(b"k", 65535) + bytes(5),)), e.TruncatedError),
    "G17 empty key": (GOOD.with_kv(kv(b"", U8, b"\0")), e.OutOfRangeError),
    "G18 key not UTF-8": (GOOD.with_kv(kv(b"general.\xff", U8, b"\0")), e.EncodingError),
    "G18 key in Greek": (GOOD.with_kv(kv("γλώσσα".encode(), U8, b"\0")), e.EncodingError),
    "G18 key with a space": (GOOD.with_kv(kv(b"general. name", U8, b"\0")), e.EncodingError),
    "G18 key with a NUL": (GOOD.with_kv(kv(b"general.name\0", U8, b"\0")), e.EncodingError),
    "G18 key with an empty part": (GOOD.with_kv(kv(b"general..name", U8, b"\0")), e.EncodingError),
    "G19 string longer than the file": (GOOD.with_kv(kv(b"k", STRING, text(b"x", 1 << 20))), e.TruncatedError),
    "G19 string longer than any": (GOOD.with_kv(kv(b"k", STRING, text(b"x", 1 << 40))), e.OutOfRangeError),
    "G20 duplicate key": (GOOD.with_kv(kv(b"llama.block_count", U8, b"\2")), e.DuplicateError),
    "G21 value type 13": (GOOD.with_kv(kv(b"k", 13, bytes(8))), e.OutOfRangeError),
    "G21 value type 2^32-1": (GOOD.with_kv(kv(b"k", (1 << 32) - 1, bytes(8))), e.OutOfRangeError),
    "G22 boolean 2": (GOOD.with_kv(kv(b"k", BOOL, b"\2")), e.OutOfRangeError),
    "G22 boolean 255 in an array": (
        GOOD.with_kv(kv(b"k", ARRAY, struct.pack("<IQ", BOOL, 2) + b"\1\xff")),
        e.OutOfRangeError,
    ),
    "G23 arrays five deep": (
        GOOD.with_kv(kv(b"k", ARRAY, struct.pack("<IQ", ARRAY, 1) * 4 + struct.pack("<IQ", U8, 0))),
        e.OutOfRangeError,
    ),
    "G24 array of 2e9": (GOOD.with_kv(kv(b"k", ARRAY, struct.pack("<IQ", U8, 2 * 10**9))), e.OutOfRangeError),
    "G24 array of 2^64-1": (GOOD.with_kv(kv(b"k", ARRAY, struct.pack("<IQ", STRING, M1))), e.OutOfRangeError),
    "G24 array of 2^26 numbers": (GOOD.with_kv(kv(b"k", ARRAY, struct.pack("<IQ", U64, 1 << 26))), e.TruncatedError),
    "G24 array of 2^26 strings": (GOOD.with_kv(kv(b"k", ARRAY, struct.pack("<IQ", STRING, 1 << 26))), e.TruncatedError),
    "G24 array of 2^26 arrays": (GOOD.with_kv(kv(b"k", ARRAY, struct.pack("<IQ", ARRAY, 1 << 26))), e.TruncatedError),
    "G25 element type 99": (GOOD.with_kv(kv(b"k", ARRAY, struct.pack("<IQ", 99, 0))), e.OutOfRangeError),
    "G26 alignment 0": (GOOD.with_kv(kv(b"general.alignment", U32, bytes(4))), e.OutOfRangeError),
    "G26 alignment 13": (GOOD.with_kv(ALIGN_13), e.OutOfRangeError),
    "G26 alignment 2^31": (GOOD.with_kv(kv(b"general.alignment", U32, b"\0\0\0\x80")), e.OutOfRangeError),
    "G26 alignment of type i32": (GOOD.with_kv(ALIGN_I32), e.OutOfRangeError),
    "G27 tensor name of 64 bytes": (one((4,), name=b"n" * 64), e.OutOfRangeError),
    "G28 empty tensor name": (one((4,), name=b""), e.OutOfRangeError),
    "G28 duplicate tensor name": (GOOD.with_infos(GOOD.infos[0], GOOD.infos[0]), e.DuplicateError),
    "G28 tensor name with a NUL": (one((4,), name=b"a\0b"), e.EncodingError),
    "G28 tensor name not UTF-8": (one((4,), name=b"a\xffb"), e.EncodingError),
    "G29 no dimensions": (one(()), e.OutOfRangeError),
    "G29 five dimensions": (one((1,) * 5), e.OutOfRangeError),
    "G29 a million dimensions": (one((1,), n_dims=10**6), e.OutOfRangeError),
    "G30 dimension -1": (one((4, -1)), e.OutOfRangeError),
    "G30 dimension 0": (one((0,)), e.OutOfRangeError),
    "G31 product wraps to 4": (one((1 << 32, (1 << 32) + 1)), e.TruncatedError),
    "G31 dimension 2^62": (one((1 << 62,)), e.OutOfRangeError),
    "G31 bytes wrap when padded": (one((4, (1 << 30) - 1, (1 << 30) + 1)), e.TruncatedError),
    "G32 type 255": (one((4,), 255), e.UnsupportedTypeError),
    **{
        f"G33 removed type {kind}": (one((32,), kind), e.UnsupportedTypeError)
        for kind in (4, 5, 31, 32, 33, 36, 37, 38)
    },
    "G34 row of 33 in blocks of 32": (one((33, 32), Q4_0), e.ShapeError),
    "G35 unaligned": (GOOD.with_infos(GOOD.infos[0], info(b"b", (8, 3), F32, 65)), e.OverlapError),
    "G35 gap": (GOOD.with_infos(GOOD.infos[0], info(b"b", (8, 1), F32, 96)), e.OverlapError),
    "G35 first tensor not at 0": (one((4,), offset=32), e.OverlapError),
    "G35 overlap": (GOOD.with_infos(GOOD.infos[0], info(b"b", (8, 3), F32, 32)), e.OverlapError),
    "G35 same place twice": (GOOD.with_infos(GOOD.infos[0], info(b"b", (8, 3), F32, 0)), e.OverlapError),
    "G35 offset 2^64-1": (one((4,), offset=M1), e.OverlapError),
    "G36 region smaller than the type needs": (
        GOOD.with_infos(info(b"a", (32,), F32, 0), GOOD.infos[1]),
        e.OverlapError,
    ),
    "G37 data one byte short": (replace(GOOD, data=GOOD.data[:-1]), e.TruncatedError),
    "G37 data half": (replace(GOOD, data=GOOD.data[:80]), e.TruncatedError),
    "G37 data absent": (replace(GOOD, data=b""), e.TruncatedError),
    "G38 trailing bytes": (replace(GOOD, tail=b"PK\3\4"), e.TrailingBytesError),
    "G38 trailing bytes without tensors": (File(infos=(), data=b"", tail=bytes(32)), e.TrailingBytesError),
    "G39 no architecture": (replace(GOOD, kvs=GOOD.kvs[1:]), e.MissingError),
    "G39 architecture is a number": (
        replace(GOOD, kvs=(kv(b"general.architecture", U32, bytes(4)),)),
        e.OutOfRangeError,
    ),
    "split.count is a string": (GOOD.with_kv(kv(b"split.count", STRING, text(b"two"))), e.OutOfRangeError),
    "split.count 65535": (GOOD.with_kv(kv(b"split.count", 2, b"\xff\xff")), e.OutOfRangeError),
    "split.count 2 under a name without numbers": (GOOD.with_kv(kv(b"split.count", 2, b"\2\0")), e.NotFoundError),
}
REFUSED = {**{k: v for k, v in LLAMA_CPP.items() if v[1]}, **G_LIST}
ACCEPTED = {k: v[0] for k, v in LLAMA_CPP.items() if not v[1]}


def test_the_list_is_whole() -> None:
    assert len(LLAMA_CPP) == 34
    assert {name.split()[0] for name in G_LIST if name.startswith("G")} == {f"G{n:02}" for n in range(1, 40)}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, tmp_path: Path) -> None:
    made, kind = REFUSED[name]
    path = tmp_path / "bad.gguf"
    path.write_bytes(bytes(made))
    tracemalloc.start()
    try:
        with pytest.raises(kind) as caught:
            open_gguf(str(path))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
    assert caught.value.path and Path(caught.value.path).parent == tmp_path
    if not name.startswith("split"):
        assert caught.value.offset is not None and caught.value.offset <= len(bytes(made))
    assert "bad" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(name: str, tmp_path: Path) -> None:
    path = tmp_path / "good.gguf"
    path.write_bytes(bytes(ACCEPTED[name]))
    found = open_gguf(str(path))
    assert len(found.tensors) == len(ACCEPTED[name].infos) and len(found.metadata) == len(ACCEPTED[name].kvs)
    assert found.notes == ()


def test_messages_name_place_value_and_limit(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    for made, words in (
        (replace(GOOD, n_kv=M1), ["m.gguf@0x10", "metadata_kv_count", "found -1", "expected 0..16384"]),
        (one((4,), 36), ["IQ4_NL_4_4", "removed", "quantize the original model again"]),
        (replace(GOOD, magic=b"tjgg"), ["GGJT", "expected the magic GGUF"]),
        (replace(GOOD, data=GOOD.data[:-1]), ["b.weight", "found 95 bytes", "expected 96 bytes"]),
        (
            GOOD.with_infos(GOOD.infos[0], info(b"b", (8, 3), F32, 32)),
            ["'b' overlaps 'a.weight'", "found 32, expected 64"],
        ),
    ):
        path.write_bytes(bytes(made))
        with pytest.raises(e.GgferryError) as caught:
            open_gguf(str(path))
        for word in words:
            assert word in str(caught.value)


@pytest.mark.parametrize("head", [b"GGU", b"GGUF", b"gguf\3\0\0\0"])
def test_a_broken_beginning_is_still_ours(head: bytes, tmp_path: Path) -> None:
    """find_reader hands these to this reader, whose error says more than «unknown»."""
    path = tmp_path / "x.gguf"
    path.write_bytes(head)
    assert find_reader(str(path))[0].name == "gguf"
