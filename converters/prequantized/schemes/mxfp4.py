"""gpt-oss' experts: MXFP4, blocks of 32 values in one tensor and their scales in another.

Source: transformers' `integrations/mxfp4.py` (`convert_moe_packed_tensors`), llama.cpp `conversion/gpt_oss.py`. GGUF
has the same values in another order of nibbles: nothing is dequantized.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ggferry.converters.model_graph.rows import raw_rows
from ggferry.converters.prequantized.schemes._common import Config, Found, Matrix, Scheme, piece
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import ShapeError
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.quant.types import Bytes

BLOCKS, SCALES = "_blocks", "_scales"


@dataclass(frozen=True, slots=True)
class Mxfp4:
    """Make GGUF's blocks of MXFP4 from the two tensors of gpt-oss.

    GGUF's byte holds one value of each half of the 32 in a block.

    Attributes:
        checkpoint: Where the tensors are.
        blocks: `(…, groups, 16)`, two neighboring values in a byte.
        scales: `(…, groups)`.
    """

    checkpoint: Checkpoint
    blocks: TensorRef
    scales: TensorRef

    def __call__(self, start: int, stop: int) -> Bytes:
        groups = self.scales.columns
        pairs = raw_rows(self.checkpoint, self.blocks, start * groups, stop * groups)
        values = np.stack((pairs & 15, pairs >> 4), -1).reshape(len(pairs), 32)
        scale = raw_rows(self.checkpoint, self.scales, start, stop).reshape(-1, 1)
        found: Bytes = np.concatenate((scale, values[:, :16] | values[:, 16:] << 4), 1).reshape(stop - start, -1)
        return found


def find(checkpoint: Checkpoint, config: Config) -> Found:
    """Every `NAME_blocks` with its `NAME_scales`."""
    found = Found("MXFP4")
    for name, blocks in checkpoint.tensors.items():
        if not name.endswith(BLOCKS):
            continue
        base = name.removesuffix(BLOCKS)
        scales = piece(checkpoint, f"{base}{SCALES}", name)
        if (
            len(blocks.shape) < 3
            or blocks.shape != (*scales.shape, 16)
            or {blocks.type.name, scales.type.name} != {"U8"}
        ):
            raise ShapeError(
                f"{name!r} against {scales.name!r}",
                path=checkpoint.path,
                found=f"{blocks.type} {list(blocks.shape)}",
                expected=f"U8 {[*scales.shape, 16]}",
            )
        shape = (*scales.shape[:-1], scales.columns * 32)
        found.matrices[name] = Matrix(base, shape, Mxfp4(checkpoint, blocks, scales), "MXFP4", form="mxfp4")
        found.used.add(scales.name)
    return found


SCHEME = Scheme(("mxfp4",), find)
