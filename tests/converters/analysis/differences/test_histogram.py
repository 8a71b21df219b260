"""The distribution of a tensor's values is numpy's, and what is not finite is counted apart."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from ggferry.converters.analysis.differences.histogram import BINS, histogram
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.formats.errors import NotFoundError


def written(path: Path, **tensors: np.ndarray) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_histogram_is_numpys(tmp_path: Path) -> None:
    values = np.random.default_rng(1).normal(0.5, 2, (700, 512)).astype(np.float32)
    values[3, :7] = 0
    checkpoint = open_checkpoint(str(written(tmp_path / "a.gguf", w=values)))
    try:
        found = histogram(checkpoint, "w")
        counts, _ = np.histogram(values.astype(np.float64), BINS)
        assert np.abs(np.array(found.counts) - counts).max() <= 1  # a value on an edge may fall to either side
        assert sum(found.counts) == found.elements == values.size
        assert (found.smallest, found.largest) == (values.min(), values.max())
        assert found.mean == pytest.approx(values.mean(dtype=np.float64))
        assert found.deviation == pytest.approx(values.std(dtype=np.float64))
        assert (found.zeros, found.not_finite, found.shape, found.type) == (7, 0, (700, 512), "F32")
        with pytest.raises(NotFoundError):
            histogram(checkpoint, "x")
    finally:
        checkpoint.close()


def test_what_is_not_finite_is_counted_apart(tmp_path: Path) -> None:
    odd = np.full((2, 32), 3, np.float32)
    odd[0, :3] = np.nan, np.inf, -np.inf
    none = np.full((1, 32), np.nan, np.float32)
    checkpoint = open_checkpoint(str(written(tmp_path / "a.gguf", odd=odd, none=none)))
    try:
        found = histogram(checkpoint, "odd")
        assert (found.not_finite, sum(found.counts), found.smallest, found.largest) == (3, 61, 3.0, 3.0)
        assert histogram(checkpoint, "none").counts == ()
    finally:
        checkpoint.close()
