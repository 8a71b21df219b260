"""FP8 with scales for a tensor, a row or a block: `fp8` (DeepSeek's `weight_scale_inv`, Mistral), fbgemm.

Experts may be stacked, and MXFP8, or MXFP4 in int8, may stand beside FP8 in one model.

Source: transformers' `utils/quantization_config.py` and `integrations/finegrained_fp8.py` (`Fp8Dequantize`: the grid of
scales says how large a block is; exponents in bytes; E2M1 in int8), `integrations/fbgemm_fp8.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ggferry.converters.prequantized.dequantized_rows import Scaled, reshaped
from ggferry.converters.prequantized.micro_scales import MX_GROUP, Mxfp4Blocks
from ggferry.converters.prequantized.schemes._common import (
    FP8,
    Config,
    Found,
    Matrix,
    Scheme,
    block_size,
    find_scale,
    grid,
    of_shape,
    of_type,
    scale_beside,
)
from ggferry.converters.prequantized.schemes._ranked import is_left_out, is_ranked, take_ranked
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import ShapeError, UnsupportedError
from ggferry.quant.codec import block_type
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.quant.types import Floats

BLOCK = [128, 128]
"""What a configuration that states none has: `FineGrainedFP8Config`'s default."""
FBGEMM = "fbgemm_fp8"


@dataclass(frozen=True, slots=True)
class Stack:
    """Rows of matrices of one height, one after the other."""

    matrices: tuple[Scaled, ...]
    height: int

    def __call__(self, start: int, stop: int) -> Floats:
        parts = []
        for number in range(start // self.height, -(-stop // self.height)):
            first = number * self.height
            parts.append(self.matrices[number](max(start - first, 0), min(stop - first, self.height)))
        found: Floats = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return found


def find(checkpoint: Checkpoint, config: Config) -> Found:
    """Weight × scale."""
    sizes = block_size(checkpoint, config.get("weight_block_size", BLOCK))
    by_column = config.get("quant_method") == FBGEMM
    found, kinds = Found("FP8"), set()
    for ref in checkpoint.tensors.values():
        if is_left_out(checkpoint, ref, *sizes):
            continue
        if ref.type.name in FP8 and is_ranked(checkpoint, ref):
            take_ranked(checkpoint, found, ref, *sizes)
            kinds.add("FP8")
        elif ref.type.name in FP8:
            _take(checkpoint, found, ref, sizes, by_column)
            kinds.add("FP8")
        elif ref.type.name == "I8" and (scale := find_scale(checkpoint, ref.name)) is not None:
            _four_bits(checkpoint, found, ref, scale)
            kinds.add("MXFP4")
    found.scheme = " and ".join(sorted(kinds)) or "FP8"
    return found


def _take(checkpoint: Checkpoint, found: Found, ref: TensorRef, sizes: tuple[int, int], by_column: bool) -> None:
    """Add a matrix of FP8 or a stack of them. Raises MissingError, ShapeError, UnsupportedError."""
    of_type(checkpoint, ref, *FP8)
    scale = scale_beside(checkpoint, ref)
    of_type(checkpoint, scale, "F32", "F16", "BF16", "F8_E8M0", "U8")
    if scale.type.name == "U8":  # exponents, in a type that older programs know
        scale = replace(scale, type=block_type("F8_E8M0"))
    found.used.add(scale.name)
    if len(ref.shape) != 3:
        made = _matrix(checkpoint, ref, scale, sizes)
        found.matrices[ref.name] = Matrix(ref.name, ref.shape, made, form="fp8")
        return
    experts, rows, columns = ref.shape
    if scale.elements not in (1, experts) and by_column and scale.shape == (experts, columns, 1):
        scale = reshaped(scale, (experts, 1, columns))  # fbgemm's down_proj: a scale for each output, which is a column
    if by_column and scale.shape == (experts, 1, columns):
        sizes = rows, 1
    one = scale.elements == 1
    if not one and (not scale.shape or scale.shape[0] != experts or len(scale.shape) > 3):
        raise ShapeError(
            f"{scale.name!r} beside {ref.name!r}",
            path=checkpoint.path,
            found=list(scale.shape),
            expected=f"[{experts}, …]",
        )
    parts = (_part(checkpoint, ref, n) for n in range(experts))
    scales = (scale if one else _part(checkpoint, scale, n) for n in range(experts))
    stack = tuple(_matrix(checkpoint, *pair, sizes) for pair in zip(parts, scales, strict=True))
    found.matrices[ref.name] = Matrix(ref.name, ref.shape, Stack(stack, rows), form="fp8")


def _part(checkpoint: Checkpoint, ref: TensorRef, number: int) -> TensorRef:
    """Return one of the tensors that are stacked along the first axis."""
    (span,) = ref.spans
    if span.strides:
        raise UnsupportedError(f"{ref.name!r} is a stack in another order of axes", path=checkpoint.path)
    shape = ref.shape[1:]
    size = ref.nbytes // ref.shape[0]
    return replace(ref, shape=shape, spans=(replace(span, offset=span.offset + number * size, shape=shape),))


def _matrix(checkpoint: Checkpoint, ref: TensorRef, scale: TensorRef, sizes: tuple[int, int]) -> Scaled:
    """Rows of a matrix. Blocks are those of the configuration. Exponents may be another number of them (MXFP8 beside
    FP8): then their grid says how large a block is. Of other scales that would be a guess."""
    tall, wide = sizes
    if all(sizes) and scale.type.name == "F8_E8M0" and len(ref.shape) == len(scale.shape) == 2 and scale.elements > 1:
        (rows, columns), (down, across) = ref.shape, scale.shape
        expected = (-(-rows // tall), -(-columns // wide))
        if (down, across) != expected and down and across and rows % down == columns % across == 0:
            tall, wide = rows // down, columns // across
    return Scaled(checkpoint, ref, ref.columns, grid(checkpoint, ref, scale, ref.shape, tall, wide))


def _four_bits(checkpoint: Checkpoint, found: Found, ref: TensorRef, scale: TensorRef) -> None:
    """E2M1, two in a byte, with an exponent for 32 columns: DeepSeek V4's experts (`expert_dtype` fp4)."""
    of_type(checkpoint, scale, "F8_E8M0", "U8")
    of_type(checkpoint, ref, "I8")
    columns = 2 * ref.columns
    if len(ref.shape) not in (2, 3) or columns % MX_GROUP:
        raise ShapeError(f"{ref.name!r} in groups of {MX_GROUP}", path=checkpoint.path, found=list(ref.shape))
    of_shape(checkpoint, scale, ref.name, (*ref.shape[:-1], columns // MX_GROUP))
    blocks = Mxfp4Blocks(checkpoint, ref, scale)
    found.matrices[ref.name] = Matrix(ref.name, (*ref.shape[:-1], columns), blocks, "MXFP4", form="mxfp4")
    found.used.add(scale.name)


SCHEME = Scheme(("fp8", FBGEMM), find)
