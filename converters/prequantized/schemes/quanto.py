"""Quanto of 8 bits, as optimum-quanto saves it: integers and floats with a scale for each row.

Source: optimum-quanto `tensor/qbytes.py` (`QBytesDequantizer`), `tensor/qbits.py`, `tensor/grouped.py`,
`nn/qmodule.py`. Of 4 and 2 bits, rows are cut into groups before they are packed, and nothing in the file says how many
groups a row has: a matrix of 4096 × 11008 and one of 11008 × 4096 are stored alike.
"""

from __future__ import annotations

from ggferry.converters.prequantized.schemes._common import (
    FP8,
    Config,
    Found,
    Scheme,
    grid,
    matrix,
    of_type,
    piece,
    take,
)
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import UnsupportedError


def find(checkpoint: Checkpoint, config: Config) -> Found:
    """Value × scale."""
    found, kinds = Found("Quanto"), set()
    for name, data in checkpoint.tensors.items():
        if name.endswith("._data._data"):
            raise UnsupportedError(
                f"{name!r}: integers of 4 or 2 bits, of which the file does not say how long a row is",
                path=checkpoint.path,
                found=list(data.shape),
                expected="8 bits",
                hint="load it with optimum-quanto, which makes the model first, and save what dequantize() returns",
            )
        if not name.endswith("._data"):
            continue
        target = name.removesuffix("._data")
        shape = matrix(checkpoint, of_type(checkpoint, data, "I8", *FP8))
        scale = of_type(checkpoint, piece(checkpoint, f"{target}._scale", name), "F16", "BF16", "F32")
        take(checkpoint, found, data, grid(checkpoint, data, scale, shape, 0, 0), target=target)
        kinds.add("float8" if data.type.name in FP8 else "int8")
    found.scheme = f"Quanto, {' and '.join(sorted(kinds))}"
    return found


SCHEME = Scheme(("quanto",), find)
