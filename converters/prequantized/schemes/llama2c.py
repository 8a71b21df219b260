"""llama2.c's version 2: int8 with a float32 scale for each group of neighbors in a row.

Source: karpathy/llama2.c `export.py` (`quantize_q80`), `runq.c` (`matmul`).
"""

from __future__ import annotations

from ggferry.converters.prequantized.schemes._common import Config, Found, Scheme, grid, piece, take
from ggferry.formats.checkpoint import Checkpoint


def find(checkpoint: Checkpoint, config: Config) -> Found:
    """Weight × scale."""
    found = Found("int8 of llama2.c")
    for name, ref in checkpoint.tensors.items():
        if ref.type.name == "I8":
            scales = piece(checkpoint, f"{name}.scales", name)
            take(checkpoint, found, ref, grid(checkpoint, ref, scales, ref.shape, 1, ref.columns // scales.columns))
    return found


SCHEME = Scheme(("llama2.c",), find)
