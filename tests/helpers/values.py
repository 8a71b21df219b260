"""Values of GGUF files by the package gguf, which shares nothing with ours, and of quantized checkpoints by us."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.model_graph.rows import values_of
from ggferry.converters.prequantized.dequantized_rows import Dequantized
from ggferry.converters.prequantized.recognize import dequantized


def decoded(path: Path) -> dict[str, tuple[str, np.ndarray]]:
    """Type and values of each tensor."""
    return {
        tensor.name: (
            tensor.tensor_type.name,
            tensor.data if tensor.tensor_type.name == "I32" else gguf.dequantize(tensor.data, tensor.tensor_type),
        )
        for tensor in gguf.GGUFReader(path).tensors
    }


def dequantized_values(source: Path, *names: str) -> dict[str, tuple[np.ndarray, str, np.ndarray | None]]:
    """Values of matrices of a quantized checkpoint as we read them, the type of blocks that hold them, and its values.

    The type is '' and the values None where no block holds them.
    """
    checkpoint = dequantized(open_checkpoint(str(source)))
    made, found = checkpoint.files[-1], {}
    assert isinstance(made, Dequantized)
    for name in names:
        ref = checkpoint.tensors[name]
        if ref.type.quantized:  # blocks of GGUF already
            stored = made.read(ref.spans[0].offset, ref.nbytes)
            data = np.frombuffer(stored, np.uint8).reshape(ref.rows, -1)
            values = gguf.dequantize(data, gguf.GGMLQuantizationType[ref.type.name])
            found[name] = values, ref.type.name, None
            continue
        values = values_of(checkpoint, ref, 0, ref.rows)
        kind = ref.derived.exact[0] if ref.derived and ref.derived.exact else ""
        blocks = made.as_blocks(ref, kind) if kind else None
        held = None
        if blocks is not None:
            data = np.frombuffer(made.read(blocks.spans[0].offset, blocks.nbytes), np.uint8).reshape(ref.rows, -1)
            held = gguf.dequantize(data, gguf.GGMLQuantizationType[kind])
            own = made.own_scale(ref)
            held = held if own is None else held * own.scales
        found[name] = values, kind, held
    checkpoint.close()
    return found
