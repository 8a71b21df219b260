"""A scheme of quantized checkpoints of another distribution: bytes beside one scale a row, NAME_toy."""

from __future__ import annotations

from ggferry.converters.prequantized.schemes._common import Config, Found, Scheme, grid, piece, take
from ggferry.formats.checkpoint import Checkpoint


def find(checkpoint: Checkpoint, config: Config) -> Found:
    """Weight × scale."""
    found = Found("toy bytes")
    for name, ref in checkpoint.tensors.items():
        if ref.type.name == "I8":
            scale = piece(checkpoint, f"{name}_toy", name)
            take(checkpoint, found, ref, grid(checkpoint, ref, scale, ref.shape, 0, 0))
    return found


SCHEME = Scheme(("toy",), find)
