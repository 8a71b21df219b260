"""Peak RSS does not grow with the model or with its largest tensor."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from helpers.builders import Llama, record
from helpers.memory import peak


def sparse_model(path: Path, n_vocab: int, n_embd: int) -> Path:
    """Zeros: an F32 embedding of n_vocab × n_embd, everything else small or Q4_0. Takes no room on disk."""
    model = Llama(n_vocab=n_vocab, n_embd=n_embd, n_head=8, n_head_kv=2, n_layer=1, n_ff=256)
    with path.open("wb") as file:
        file.write(model.prelude())
        for name, shape in model.tensors():
            plain = len(shape) == 1 or name == "tok_embeddings.weight"
            file.write(record(name, 0 if plain else 2, shape, b"", 32, file.tell()))
            rows = shape[0] if len(shape) > 1 else 1
            size = rows * (shape[-1] * 4 if plain else shape[-1] // 32 * 18)
            os.ftruncate(file.fileno(), file.tell() + size)
            file.seek(size, os.SEEK_CUR)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("level", ["fast", "full"])
def test_memory_is_flat(tmp_path: Path, level: str) -> None:
    """A tensor of 2 MiB and one of 320 MiB: the same peak but for the vocabulary's own few megabytes."""
    small = sparse_model(tmp_path / "small.bin", 2000, 256)
    large = sparse_model(tmp_path / "large.bin", 20000, 4096)
    peaks = [
        peak("convert", str(file), "-o", str(tmp_path / "out.gguf"), "--force", "--verify", level)
        for file in (small, large)
    ]
    assert peaks[1] - peaks[0] < 96 << 20, [f"{p >> 20} MiB" for p in peaks]


@pytest.mark.slow
def test_a_tensor_of_four_gib(tmp_path: Path) -> None:
    """With everything on: conversion, verification by both forward passes."""
    large = sparse_model(tmp_path / "large.bin", 262144, 4096)
    assert large.stat().st_size > 4 << 30
    used = peak("convert", str(large), "-o", str(tmp_path / "out.gguf"))
    small = sparse_model(tmp_path / "small.bin", 2000, 256)
    base = peak("convert", str(small), "-o", str(tmp_path / "small.gguf"))
    # 262144 tokens as Python objects, twice, and 16 × 262144 logits, four times in float64, are not tensors.
    assert used - base < 600 << 20, (used >> 20, base >> 20)
