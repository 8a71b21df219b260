"""Rows as bytes: joined pieces, strided views, bounded slabs; numpy is the witness."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggferry.formats import tensor_read
from ggferry.formats.checkpoint import Checkpoint, Span, TensorRef
from ggferry.formats.errors import TruncatedError
from ggferry.formats.files.sources import LocalFile
from ggferry.formats.tensor_read import read_rows, read_span_rows
from ggferry.quant.types import BlockError, BlockType, Field

F4 = BlockType("F32", 1, (Field("x", "f4"),), quantized=False)
F2 = BlockType("F16", 1, (Field("x", "f2"),), quantized=False)
Q = BlockType("Q", 32, (Field("d", "f2"), Field("q", "u1", 16)))
PLANAR = BlockType("P", 32, (Field("d", "f2"), Field("q", "u1", 16)), planar=True)


class Memory:
    """A source that remembers how it was read."""

    def __init__(self, data: bytes) -> None:
        self.path, self.data, self.size = "memory", data, len(data)
        self.reads: list[tuple[int, int]] = []

    def read(self, offset: int, size: int) -> bytes:
        if offset < 0 or offset + size > self.size:
            raise TruncatedError("outside", path=self.path, offset=offset)
        self.reads.append((offset, size))
        return self.data[offset : offset + size]

    def read_into(self, offset: int, buffer: memoryview) -> None:
        buffer[:] = self.read(offset, len(buffer))

    def close(self) -> None:
        pass


def checkpoint(*files: bytes) -> Checkpoint:
    return Checkpoint("test", None, tuple(Memory(data) for data in files), {})


def test_contiguous_rows_are_one_read() -> None:
    values = np.arange(60, dtype="<f4").reshape(3, 4, 5)
    held = checkpoint(b"head" + values.tobytes())
    ref = TensorRef("w", F4, (3, 4, 5), (Span(0, 4, (3, 4, 5)),))
    assert read_rows(held, ref, 2, 9).tobytes() == values.reshape(12, 5)[2:9].tobytes()
    assert held.files[0].reads == [(4 + 2 * 20, 7 * 20)]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("axis", "join"), [(0, np.vstack), (-1, np.hstack)])
def test_pieces_are_joined(axis: int, join: Callable[[list[np.ndarray]], np.ndarray]) -> None:
    rng = np.random.default_rng(1)
    shapes = [(2, 6), (5, 6), (1, 6)] if axis == 0 else [(4, 2), (4, 5), (4, 1)]
    parts = [rng.standard_normal(shape).astype("<f2") for shape in shapes]
    whole = join(parts)
    held = checkpoint(*(b"x" * i + part.tobytes() for i, part in enumerate(parts)))
    spans = tuple(Span(i, i, part.shape) for i, part in enumerate(parts))
    ref = TensorRef("w", F2, whole.shape, spans, axis)
    for start in range(ref.rows):
        for stop in range(start, ref.rows + 1):
            assert read_rows(held, ref, start, stop).tobytes() == whole[start:stop].tobytes()
    for i, part in enumerate(parts):
        assert read_span_rows(held, ref, i, 0, part.shape[0]).tobytes() == part.tobytes()


def test_block_rows_join_as_bytes_and_planar_rows_do_not() -> None:
    left, right = bytes(range(36)), bytes(range(100, 136))
    spans = (Span(0, 0, (2, 32)), Span(1, 0, (2, 32)))
    joined = read_rows(checkpoint(left, right), TensorRef("w", Q, (2, 64), spans, -1), 0, 2)
    assert joined.tobytes() == left[:18] + right[:18] + left[18:] + right[18:]
    stacked = read_rows(checkpoint(left, right), TensorRef("w", PLANAR, (4, 32), spans, 0), 1, 3)
    assert stacked.tobytes() == left[18:] + right[:18]
    with pytest.raises(BlockError, match="planar"):
        read_rows(checkpoint(left, right), TensorRef("w", PLANAR, (2, 64), spans, -1), 0, 2)
    with pytest.raises(BlockError, match="strides"):
        view = TensorRef("w", Q, (2, 32), (Span(0, 0, (2, 32), (1, 2)),))
        read_rows(checkpoint(left), view, 0, 2)


@st.composite
def views(draw: st.DrawFn) -> tuple[np.ndarray, int, tuple[int, ...], tuple[int, ...]]:
    rank = draw(st.integers(0, 4))
    shape = tuple(draw(st.lists(st.integers(0, 6), min_size=rank, max_size=rank)))
    strides = tuple(draw(st.lists(st.integers(0, 40), min_size=rank, max_size=rank)))
    first = draw(st.integers(0, 9))
    size = first + sum(max(0, n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1
    return np.arange(size, dtype="<u4"), first, shape, strides


@given(views(), st.data(), st.sampled_from([(1 << 20, 4096, 16), (64, 8, 2), (4, 0, 1)]))
def test_any_view_equals_numpy(
    view: tuple[np.ndarray, int, tuple[int, ...], tuple[int, ...]], data: st.DataObject, knobs: tuple[int, int, int]
) -> None:
    store, first, shape, strides = view
    expected = np.lib.stride_tricks.as_strided(store[first:], shape, [4 * s for s in strides])
    expected = expected.reshape(-1, shape[-1] if shape else 1) if expected.size else expected
    ref = TensorRef("w", F4, shape, (Span(0, first * 4, shape, strides),))
    start = data.draw(st.integers(0, ref.rows))
    stop = data.draw(st.integers(start, ref.rows))
    old = tensor_read.SLAB, tensor_read.SEEK, tensor_read.SPARSE
    tensor_read.SLAB, tensor_read.SEEK, tensor_read.SPARSE = knobs
    try:
        held = checkpoint(store.tobytes())
        got = read_rows(held, ref, start, stop)
    finally:
        tensor_read.SLAB, tensor_read.SEEK, tensor_read.SPARSE = old
    assert got.shape == (stop - start, 4 * ref.columns)
    assert all(size <= max(knobs[0], 4) for _, size in held.files[0].reads)  # type: ignore[attr-defined]
    if expected.size:
        assert got.tobytes() == expected[start:stop].tobytes()


def test_transposed_matrix_reads_what_it_needs_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "t.bin"
    rows, columns = 3000, 4096
    values = np.arange(rows * columns, dtype="<u4").reshape(rows, columns)
    path.write_bytes(values.tobytes())
    source = LocalFile(os.fspath(path))
    held = Checkpoint("test", None, (source,), {})
    ref = TensorRef("w", F4, (columns, rows), (Span(0, 0, (columns, rows), (1, columns)),))
    read_rows(held, ref, 0, 1)
    tracemalloc.start()
    got = read_rows(held, ref, 100, 164)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.array_equal(got.view("<u4"), values[:, 100:164].T)
    assert peak < got.nbytes + 2 * tensor_read.SLAB + 100_000


def test_ranges_and_shrunken_files_are_told() -> None:
    ref = TensorRef("w", F4, (2, 2), (Span(0, 0, (2, 2)),))
    with pytest.raises(IndexError):
        read_rows(checkpoint(bytes(16)), ref, 0, 3)
    with pytest.raises(TruncatedError):
        read_rows(checkpoint(bytes(15)), ref, 0, 2)
    with pytest.raises(BlockError, match="hold 2 rows"):
        read_rows(checkpoint(bytes(16)), TensorRef("w", F4, (3, 2), ref.spans), 0, 1)
    for shape in [(), (0,), (2, 0), (0, 2)]:
        empty = TensorRef("w", F4, shape, (Span(0, 0, shape),))
        assert read_rows(checkpoint(bytes(16)), empty, 0, empty.rows).shape == (empty.rows, empty.row_bytes)
