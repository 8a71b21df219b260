"""GGML files are laid out as their own reader walks them, and nothing of them is a file before they are finished."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from ggferry.formats import limits
from ggferry.formats.errors import OutOfRangeError
from ggferry.formats.ggml.write import Declared, lay_out
from ggferry.formats.gguf.write import GGUFFile
from ggferry.quant.codec import block_type

F32, Q8_0 = block_type("F32"), block_type("Q8_0")


def test_every_byte_of_a_small_file(tmp_path: Path) -> None:
    """Written out by hand: magic, fields, matrix, tokens, records whose sizes stand innermost first."""
    matrix, data = struct.pack("<2f", 1, 2), bytes(range(34 * 3))
    layout = lay_out(
        struct.pack("<2i", 7, 8),
        Declared("m", "filters", F32, (1, 2)),
        [b"a", b"", b"\xff\x00"],
        [Declared("q", "some.weight", Q8_0, (3, 32)), Declared("b", "some.bias", F32, (2, 1))],
    )
    path = tmp_path / "x.bin"
    with GGUFFile(path, layout) as file:
        for key, written in (("m", matrix), ("q", data), ("b", matrix)):
            file.pwrite(key, 0, written)
        assert Path(file.partial).read_bytes()[:12] == bytes(12)
        file.finish()
        file.publish()
    assert path.read_bytes() == (
        b"lmgg" + struct.pack("<4i", 7, 8, 1, 2) + matrix
        + struct.pack("<i", 3) + b"\1\0\0\0a" + b"\0\0\0\0" + b"\2\0\0\0\xff\0"
        + struct.pack("<5i", 2, 11, 8, 32, 3) + b"some.weight" + data
        + struct.pack("<5i", 2, 9, 0, 1, 2) + b"some.bias" + matrix
    )  # fmt: skip
    assert layout.size == path.stat().st_size


@pytest.mark.parametrize(
    ("name", "shape"), [("n" * (limits.MAX_NAME + 1), (1, 2)), ("x", (1 << 31, 1)), ("ü" * limits.MAX_NAME, (1, 2))]
)
def test_what_a_record_cannot_hold(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(OutOfRangeError, match="record of tensor"):
        lay_out(b"", Declared("m", "filters", F32, (1, 2)), [], [Declared("x", name, F32, shape)])
