"""gpt-oss' experts: MXFP4, blocks of 32 values in one tensor and their scales in another.

Source: transformers' `integrations/mxfp4.py` (`convert_moe_packed_tensors`), llama.cpp `conversion/gpt_oss.py`. GGUF
has the same values in another order of nibbles: nothing is dequantized.
"""

from __future__ import annotations

from ggferry.converters.prequantized.dequantized_rows import Mxfp4
from ggferry.converters.prequantized.schemes._common import Config, Found, Matrix, Scheme, piece
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import ShapeError

BLOCKS, SCALES = "_blocks", "_scales"


def find(checkpoint: Checkpoint, config: Config) -> Found:
    """Every `NAME_blocks` with its `NAME_scales`."""
    found = Found("MXFP4")
    for name, blocks in checkpoint.tensors.items():
        if not name.endswith(BLOCKS):
            continue
        base = name.removesuffix(BLOCKS)
        scales = piece(checkpoint, f"{base}{SCALES}", name)
        if len(blocks.shape) < 3 or blocks.shape != (*scales.shape, 16) or blocks.type.name != scales.type.name != "U8":
            raise ShapeError(
                f"{name!r} against {scales.name!r}",
                path=checkpoint.path,
                found=f"{blocks.type} {list(blocks.shape)}",
                expected=f"U8 {[*scales.shape, 16]}",
            )
        shape = (*scales.shape[:-1], scales.columns * 32)
        found.matrices[name] = Matrix(base, shape, Mxfp4(checkpoint, blocks, scales), "MXFP4")
        found.used.add(scales.name)
    return found


SCHEME = Scheme(("mxfp4",), find)
