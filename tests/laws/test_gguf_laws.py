"""Laws of GGUF: what is written is read back and written again byte for byte; any cut and any flipped bit of a header
gives one of our errors or a checkpoint that holds together; big-endian is the swap of little-endian."""

from __future__ import annotations

import math
import struct
import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ggferry.formats import limits
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import CorruptError, GgferryError
from ggferry.formats.gguf.header_layout import GGUFLayout, lay_out
from ggferry.formats.gguf.values import Value, ValueType, array, f32, string, u32
from ggferry.formats.gguf.write import write_gguf
from ggferry.formats.readers.gguf import open_gguf, parse
from ggferry.quant.codec import block_type, types_by_id
from ggferry.quant.endian import swap


class Bytes:
    """A Source over bytes."""

    path = "memory.gguf"

    def __init__(self, data: bytes) -> None:
        self.data, self.size = data, len(data)

    def read(self, offset: int, size: int) -> bytes:
        assert 0 <= offset <= offset + size <= self.size, "a reader asks only for what is there"
        return self.data[offset : offset + size]

    def read_into(self, offset: int, buffer: memoryview) -> None:
        buffer[:] = self.read(offset, len(buffer))

    def close(self) -> None:
        pass


def laid_out_again(found: Checkpoint) -> GGUFLayout:
    declared = [(t.name, t.type, t.shape) for t in found.tensors.values()]
    return lay_out(
        found.metadata,
        declared,
        alignment=found.alignment,
        big_endian=found.big_endian,
        version=found.version or 0,
    )


# --- write, read, write ---

_INTEGERS = {
    ValueType.UINT8: (0, 2**8 - 1),
    ValueType.INT8: (-(2**7), 2**7 - 1),
    ValueType.UINT16: (0, 2**16 - 1),
    ValueType.INT16: (-(2**15), 2**15 - 1),
    ValueType.UINT32: (0, 2**32 - 1),
    ValueType.INT32: (-(2**31), 2**31 - 1),
    ValueType.UINT64: (0, 2**64 - 1),
    ValueType.INT64: (-(2**63), 2**63 - 1),
}
PLAIN = {
    **{kind: st.integers(*bounds) for kind, bounds in _INTEGERS.items()},
    ValueType.FLOAT32: st.floats(width=32, allow_nan=False),
    ValueType.FLOAT64: st.floats(allow_nan=False),
    ValueType.BOOL: st.booleans(),
    ValueType.STRING: st.binary(max_size=12).map(lambda raw: raw.decode(errors="surrogateescape")),
}


def arrays_of(items: st.SearchStrategy[Value]) -> st.SearchStrategy[Value]:
    return st.lists(items, max_size=3).map(lambda data: array(ValueType.ARRAY, data))


@st.composite
def plain_arrays(draw: st.DrawFn) -> Value:
    kind = draw(st.sampled_from(sorted(PLAIN)))
    return array(kind, draw(st.lists(PLAIN[kind], max_size=5)))


@st.composite
def scalars(draw: st.DrawFn) -> Value:
    kind = draw(st.sampled_from(sorted(PLAIN)))
    return Value(kind, draw(PLAIN[kind]))


VALUES = scalars() | plain_arrays() | arrays_of(plain_arrays() | arrays_of(plain_arrays()))
KEYS = st.from_regex(r"[a-z0-9_-]{1,8}(\.[a-z0-9_-]{1,8}){0,3}", fullmatch=True).filter(
    lambda key: key.split(".")[0] not in ("general", "split")
)
NAMES = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=15)


@st.composite
def tensors(draw: st.DrawFn) -> tuple[str, object, tuple[int, ...]]:
    kind = draw(st.sampled_from(sorted(types_by_id().values(), key=lambda kind: kind.name)))
    shape = draw(st.lists(st.integers(1, 3), max_size=limits.MAX_DIMS - 1))
    if kind.interleaved > 1:
        shape = [*shape[:-1], kind.interleaved * (shape or [1])[-1]]
    return draw(NAMES), kind, (*shape, draw(st.integers(1, 2)) * kind.elements)


@given(
    st.dictionaries(KEYS, VALUES, max_size=6),
    st.lists(tensors(), max_size=4, unique_by=lambda tensor: tensor[0]),
    st.sampled_from([1, 8, 32, 64]),
    st.booleans(),
    st.sampled_from([2, 3]),
)
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_write_read_write_is_the_identity(
    metadata: dict[str, Value], table: list, alignment: int, big: bool, version: int
) -> None:
    metadata = {"general.architecture": string("llama"), **metadata}
    layout = lay_out(metadata, table, alignment=alignment, big_endian=big, version=version)
    found = parse(Bytes(layout.header + bytes(layout.size - layout.data_offset)))
    if alignment != 32:
        metadata = {**metadata, "general.alignment": u32(alignment)}
    assert found.metadata == metadata and list(found.metadata) == list(metadata)
    assert [(t.name, t.type, t.shape) for t in found.tensors.values()] == table
    assert {t.name: t.spans[0].offset for t in found.tensors.values()} == layout.offsets
    assert laid_out_again(found) == layout


@pytest.mark.parametrize("kind", sorted(types_by_id().values(), key=lambda kind: kind.name), ids=str)
def test_big_endian_is_the_swap_of_little(kind, tmp_path: Path) -> None:
    shape = (3 * kind.interleaved, 2 * kind.elements)
    rows = np.random.default_rng(kind.ggml_id).integers(0, 256, (shape[0], kind.row_bytes(shape[1])), dtype=np.uint8)
    metadata = {"general.architecture": string("llama"), "n": u32(1)}
    read = {}
    for big in (False, True):
        path = tmp_path / f"{big}.gguf"
        write_gguf(path, metadata, [("w", kind, shape, rows)], big_endian=big)
        found = open_gguf(str(path))
        span = found.tensors["w"].spans[0]
        read[big] = found.files[0].read(span.offset, found.tensors["w"].nbytes)
    assert read[False] == rows.tobytes()
    assert np.array_equal(np.frombuffer(read[True], dtype=np.uint8).reshape(rows.shape), swap(kind, rows))


# --- cuts and flips ---


def sample(version: int, big: bool) -> bytes:
    """A file with every kind of value and three tensors; no key whose change could be a change of byte order."""
    metadata = {
        "general.architecture": string("llama"),
        "general.alignment": u32(32),
        "llama.block_count": u32(2),
        "a.f32": f32(1e-5),
        "a.text": string("▁ grüße"),
        "a.tokens": array(ValueType.STRING, ["<s>", "", "▁b"]),
        "a.types": array(ValueType.INT32, [1, 3, 6]),
        "a.flags": array(ValueType.BOOL, [True, False]),
        "a.flag": Value(ValueType.BOOL, True),
        "a.nested": array(ValueType.ARRAY, [array(ValueType.UINT8, [1, 2]), array(ValueType.STRING, ["x"])]),
    }
    table = [("w", block_type("Q4_0"), (2, 32)), ("blk.0.b", block_type("F32"), (3, 8)), ("g", block_type("F16"), (5,))]
    layout = lay_out(metadata, table, version=version, big_endian=big)
    return layout.header + bytes(range(1, 1 + layout.size - layout.data_offset))


def assert_holds_together(found: Checkpoint, data: bytes) -> None:
    """What every accepted file must satisfy, whatever it was meant to be."""
    spans = sorted((t.spans[0].offset, t.nbytes, t.name) for t in found.tensors.values())
    end = found.header["data_offset"]
    for offset, size, name in spans:
        assert offset >= end and offset + size <= len(data), name
        assert name.isprintable() and 1 <= len(name.encode()) <= limits.MAX_GGUF_NAME
        end = offset + size
    for tensor in found.tensors.values():
        assert 1 <= len(tensor.shape) <= limits.MAX_DIMS and math.prod(tensor.shape) > 0
    if any(math.isnan(v.data) for v in found.metadata.values() if isinstance(v.data, float)):
        return  # Python turns a signalling NaN into a quiet one
    if not any("order" in note or "padding" in note or "power of two" in note for note in found.notes):
        header = data[: found.header["data_offset"]]
        assert laid_out_again(found).header == header, "an accepted header says nothing that we do not hold"


FORMS = [(1, False), (2, False), (3, False), (3, True)]


@pytest.mark.parametrize(("version", "big"), FORMS)
def test_cut_at_every_byte(version: int, big: bool) -> None:
    data = sample(version, big)
    whole = parse(Bytes(data))
    assert whole.notes == ("'a.nested' is an array of arrays: the specification allows it, llama.cpp refuses it",)
    padding = -(5 * 2) % 32
    for size in range(len(data)):
        if size >= len(data) - padding:  # only padding is missing
            found = parse(Bytes(data[:size]))
            assert found.tensors == whole.tensors and found.notes[-1] == "the padding behind the last tensor is missing"
            continue
        with pytest.raises(GgferryError) as caught:
            parse(Bytes(data[:size]))
        assert caught.value.path == "memory.gguf" and caught.value.offset is not None and caught.value.offset <= size
        assert str(caught.value)


def parsed_or_refused(data: bytes) -> bool:
    """Whether a file was accepted; then it must hold together, else the error must be ours and say where."""
    try:
        found = parse(Bytes(data))
    except GgferryError as error:
        assert error.exit_code in (4, 5) and error.offset is not None and str(error)
        return False
    assert_holds_together(found, data)
    return True


def flip(data: bytes, position: int, bit: int) -> bytes:
    flipped = bytearray(data)
    flipped[position] ^= 1 << bit
    return bytes(flipped)


@pytest.mark.parametrize(("version", "big"), [FORMS[0], pytest.param(*FORMS[1], marks=pytest.mark.slow), *FORMS[2:]])
def test_flip_every_bit_of_the_header(version: int, big: bool) -> None:
    data = sample(version, big)
    end = parse(Bytes(data)).header["data_offset"]
    accepted = sum(parsed_or_refused(flip(data, at, bit)) for at in range(end) for bit in range(8))
    assert accepted < 6 * end  # most bits of counts, lengths, types, dimensions and offsets matter


def test_no_flipped_bit_makes_the_reader_allocate() -> None:
    data = sample(3, False)
    end = parse(Bytes(data)).header["data_offset"]
    tracemalloc.start()
    for at in range(end):
        parsed_or_refused(flip(data, at, 7 - at % 8))  # the top bits of the little-endian counts among them
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


@given(st.sampled_from(FORMS), st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=6))
@settings(max_examples=200, deadline=None)
def test_several_bytes_replaced(form: tuple[int, bool], changes: list[tuple[float, int]]) -> None:
    data = bytearray(sample(*form))
    end = parse(Bytes(bytes(data))).header["data_offset"]
    for place, value in changes:
        data[int(place * end)] = value
    parsed_or_refused(bytes(data))


@given(st.binary(max_size=400), st.sampled_from(FORMS))
@settings(max_examples=200, deadline=None)
def test_noise_behind_a_valid_beginning(noise: bytes, form: tuple[int, bool]) -> None:
    version, big = form
    head = b"GGUF" + struct.pack(f"{'>' if big else '<'}I", version)
    counts = struct.pack(f"{'>' if big else '<'}2{'I' if version == 1 else 'Q'}", 2, 3)
    for data in (head + noise, head + counts + noise):
        parsed_or_refused(data)


def test_claims_cost_nothing_before_they_are_checked() -> None:
    """Counts as large as the caps allow, in files of a few hundred bytes."""
    claims = [
        struct.pack("<QI", 1 << 20, 0),  # an array of a million
        struct.pack("<IQ", 8, limits.MAX_ARRAY),
        struct.pack("<IQ", 9, limits.MAX_ARRAY),
        struct.pack("<IQ", 12, limits.MAX_ARRAY),
        struct.pack("<Q", limits.MAX_STRING),
    ]
    tracemalloc.start()
    for kind in range(13):
        for claim in claims:
            head = b"GGUF" + struct.pack("<IqqQ1sI", 3, 0, 1, 1, b"k", kind)
            with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
                file.write(head + claim + bytes(200))
                file.flush()
                with pytest.raises(CorruptError):
                    open_gguf(file.name)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
