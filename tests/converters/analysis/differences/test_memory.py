"""Peak RSS of the commands on files in hand does not grow with the largest tensor."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ggferry.formats.gguf.header_layout import lay_out
from ggferry.formats.gguf.values import string
from ggferry.quant.codec import codec
from helpers.memory import peak


def sparse(path: Path, elements: int) -> Path:
    """A tensor of zeros in one long row, one in short rows, and one of blocks; takes no room on disk."""
    f32, q4 = codec("F32").type, codec("Q4_0").type
    layout = lay_out(
        {"general.architecture": string("x")},
        [("row", f32, (elements,)), ("rows", f32, (elements // 64, 64)), ("blocks", q4, (elements // 4096, 4096))],
    )
    with path.open("wb") as file:
        file.write(layout.header)
        os.ftruncate(file.fileno(), layout.size)
    return path


COMMANDS = {
    "hash": ["hash", "{}"],
    "diff": ["diff", "{}", "{}"],
    "verify": ["verify", "{}"],
    "split": ["split", "{}", "--split-max-tensors", "1", "--force"],
    "edit": ["edit", "{}", "--set", "general.name=x", "-o", "{}.out", "--force"],
    "edit in place": ["edit", "{}", "--set", "general.name=x", "--in-place"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_memory_is_flat(tmp_path: Path, name: str) -> None:
    peaks = []
    for elements in (1 << 20, 1 << 26):
        path = sparse(tmp_path / f"{elements}.gguf", elements)
        peaks.append(peak(*[part.format(path) for part in COMMANDS[name]]))
    assert peaks[1] - peaks[0] < 24 << 20, [f"{each >> 20} MiB" for each in peaks]
