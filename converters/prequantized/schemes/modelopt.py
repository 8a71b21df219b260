"""NVIDIA ModelOpt: FP8, MXFP8, MXFP4, NVFP4, integers of 8 and 4 bits, or several in one model; the tensors say which.

Source: ModelOpt `torch/quantization/qtensor/` (`nvfp4_tensor.py`, `mxfp4_tensor.py`, `mxfp8_tensor.py`,
`fp8_tensor.py`: `dequantize`), `torch/export/quant_utils.py` (`to_quantized_weight`, `pack_int4_in_uint8`),
`torch/quantization/nn/modules/tensor_quantizer.py` (`pre_quant_scale`); transformers' and vLLM's readers of
hf_quant_config.json.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ggferry.converters.model_graph.rows import raw_rows, values_of
from ggferry.converters.prequantized.dequantized_rows import Rows, reshaped
from ggferry.converters.prequantized.micro_scales import GROUP, Nvfp4Values, scaled_blocks
from ggferry.converters.prequantized.schemes._common import (
    DEQUANTIZE,
    FP8,
    Config,
    Found,
    Matrix,
    Scheme,
    grid,
    matrix,
    of_shape,
    of_type,
    piece,
    take,
    take_fp8,
    take_micro_scales,
)
from ggferry.converters.prequantized.schemes._integers import Integers, NumbersOfRows, signed
from ggferry.converters.prequantized.schemes._modelopt_stacks import find_stacks
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import MissingError, ShapeError, UnsupportedError
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.quant.types import Floats

INT4 = "W4A16_AWQ"
BLOCKS = "FP8_PB_WO"
BLOCK = 128
"""Rows and columns of a block of FP8_PB_WO without a group_size: vLLM's `ModelOptFp8PbWoLinearMethod`."""
ALGORITHMS = (
    *("FP8", "MXFP8", "NVFP4", "W4A16_NVFP4", "W4A8_NVFP4_FP8", "W4A8_MXFP4_FP8", "FP8_PER_CHANNEL_PER_TOKEN"),
    *(BLOCKS, "NVFP4_AWQ", INT4, "W8A16", "W8A8_SQ_PER_CHANNEL", "MIXED_PRECISION"),
)
FACTORS = ".pre_quant_scale"
WHY = f"its columns have factors of their own ({FACTORS[1:]})"


@dataclass(frozen=True, slots=True)
class ColumnsScaled:
    """Rows whose columns are multiplied by factors: what a layer does with its input, `(x × s) Wᵀ = x (W × s)ᵀ`."""

    checkpoint: Checkpoint
    rows: Rows
    factors: TensorRef

    def __call__(self, start: int, stop: int) -> Floats:
        factors = values_of(self.checkpoint, self.factors, 0, 1).reshape(1, -1)
        found: Floats = np.multiply(self.rows(start, stop), factors, dtype=np.float32)
        return found


@dataclass(frozen=True, slots=True)
class NibblesOfPairs:
    """Numbers from −8 to 7 of which two neighboring rows share a byte, the first in its lower half."""

    checkpoint: Checkpoint
    ref: TensorRef

    def __call__(self, start: int, stop: int) -> Any:
        packed = raw_rows(self.checkpoint, self.ref, start // 2, -(-stop // 2))
        codes = np.stack((packed & 15, packed >> 4), 1).reshape(-1, self.ref.columns).astype(np.int16)
        return signed(codes[start % 2 :][: stop - start])


def find(checkpoint: Checkpoint, config: Config) -> Found:
    """FP8 × scale, or × 2^(e − 127); level × (scale of 16 columns × weight_scale_2), or × 2^(e − 127); q × scale."""
    algorithm = config.get("quant_algo", "FP8")
    odd = next((name for name in checkpoint.tensors if ".svdquant_lora_" in name), None)
    if algorithm not in ALGORITHMS or odd is not None:
        raise UnsupportedError(
            "a scheme of ModelOpt",
            path=checkpoint.path,
            found=odd or algorithm,
            expected=", ".join(ALGORITHMS),
            hint=DEQUANTIZE,
        )
    found, kinds = Found("ModelOpt"), set()
    for name, ref in checkpoint.tensors.items():
        if name.endswith(".weight") and ref.type.name in FP8 | {"U8", "I8"}:
            kinds.add(_take(checkpoint, config, found, ref))
    kinds.update(find_stacks(checkpoint, found))
    for name, ref in checkpoint.tensors.items():
        if name.endswith(FACTORS):
            _fold(checkpoint, found, ref)
    found.scheme = " and ".join(sorted(kinds))
    return found


def _take(checkpoint: Checkpoint, config: Config, found: Found, ref: TensorRef) -> str:
    scale = checkpoint.tensors.get(f"{ref.name}_scale")
    if scale is not None and scale.type.name == "U8":
        return take_micro_scales(checkpoint, found, ref, ref.name, scale)
    if ref.type.name in FP8 and scale is not None and _in_blocks(ref, scale):
        size = config.get("group_size") or BLOCK
        tall, wide = (size, size) if type(size) is int and size > 0 else (0, 0)
        of_type(checkpoint, scale, "F32", "F16", "BF16")
        if len(scale.shape) == 4:  # (rows, 1, columns, 1)
            scale = reshaped(scale, (scale.shape[0] * scale.shape[1], scale.shape[2] * scale.shape[3]))
        take(checkpoint, found, ref, grid(checkpoint, ref, scale, ref.shape, tall, wide))
        return f"FP8 in blocks of {size}"
    if ref.type.name in FP8:
        take_fp8(checkpoint, found, ref, 0, 0)
        return "FP8"
    if scale is None:
        raise MissingError(f"tensor {ref.name + '_scale'!r} missing beside {ref.name!r}", path=checkpoint.path)
    if ref.type.name == "I8":
        rows, _ = matrix(checkpoint, ref)
        of_shape(checkpoint, of_type(checkpoint, scale, "F32", "F16", "BF16"), ref.name, (rows,), (rows, 1))
        take(checkpoint, found, ref, grid(checkpoint, ref, scale, ref.shape, 1, 0))
        return "INT8"
    if scale.type.name == "F8_E4M3":
        _nvfp4(checkpoint, found, ref)
        return "NVFP4"
    _int4(checkpoint, found, ref, scale)
    return "INT4"


def _in_blocks(ref: TensorRef, scale: TensorRef) -> bool:
    """Return whether numbers are scales of blocks; also of a matrix that is no wider than one, where they are fewer
    than its rows."""
    return len(scale.shape) == 4 or (
        len(scale.shape) == 2 and (scale.shape[1] > 1 or scale.shape[0] not in (1, ref.shape[0]))
    )


def _nvfp4(checkpoint: Checkpoint, found: Found, ref: TensorRef) -> None:
    rows, pairs = matrix(checkpoint, of_type(checkpoint, ref, "U8"))
    columns = pairs * 2
    if columns % GROUP:
        raise ShapeError(f"{ref.name!r} in groups of {GROUP}", path=checkpoint.path, found=list(ref.shape))
    scale = of_type(checkpoint, piece(checkpoint, f"{ref.name}_scale", ref.name), "F8_E4M3")
    of_shape(checkpoint, scale, ref.name, (rows, columns // GROUP))
    whole = of_type(checkpoint, piece(checkpoint, f"{ref.name}_scale_2", ref.name), "F32")
    of_shape(checkpoint, whole, ref.name, (), (1,))
    values = Nvfp4Values(checkpoint, ref, scale, by=whole)
    given = checkpoint.tensors.get(f"{ref.name.removesuffix('weight')}input_scale")
    blocks = scaled_blocks(checkpoint, ref, scale, whole, given)
    found.matrices[ref.name] = Matrix(ref.name, (rows, columns), values, groups=blocks, form="nvfp4")
    found.used |= {given.name} if given is not None else set()
    found.used |= {scale.name, whole.name}


def _int4(checkpoint: Checkpoint, found: Found, ref: TensorRef, scale: TensorRef) -> None:
    """q × scale of the group; `W` U8 `(rows / 2, columns)`, scales `(rows, groups)`."""
    height, columns = matrix(checkpoint, of_type(checkpoint, ref, "U8"))
    of_type(checkpoint, scale, "F32", "F16", "BF16")
    groups = scale.columns if len(scale.shape) == 2 else 0
    if f"{ref.name}_scale_2" in checkpoint.tensors:
        raise UnsupportedError(
            f"{ref.name!r}: integers that are made FP8 once more", path=checkpoint.path, found="weight_scale_2"
        )
    if not groups or columns % groups or scale.shape[0] != 2 * height:
        raise ShapeError(
            f"{scale.name!r} beside {ref.name!r} of {2 * height} × {columns}",
            path=checkpoint.path,
            found=list(scale.shape),
            expected=f"[{2 * height}, groups]",
        )
    shape = 2 * height, columns
    levels, scales = NibblesOfPairs(checkpoint, ref), NumbersOfRows(checkpoint, scale)
    made = Integers(shape, columns // groups, -8, 7, levels, scales)
    found.matrices[ref.name] = Matrix(ref.name, shape, made, groups=made.groups(), form="int4")
    found.used.add(scale.name)


def _fold(checkpoint: Checkpoint, found: Found, factors: TensorRef) -> None:
    """Multiply the columns of a matrix by what its layer multiplies its input by."""
    name = factors.name.removesuffix(FACTORS) + ".weight"
    made = found.matrices.get(name)
    if made is None or made.kind != "F32":
        raise UnsupportedError(
            f"{factors.name!r} beside a weight of another form", path=checkpoint.path, found=name, hint=DEQUANTIZE
        )
    of_type(checkpoint, factors, "F32", "F16", "BF16")
    of_shape(checkpoint, factors, name, made.shape[1:])
    rows = ColumnsScaled(checkpoint, made.rows, factors)
    found.matrices[name] = replace(made, rows=rows, groups=None, why=WHY)
    found.used.add(factors.name)


SCHEME = Scheme(("modelopt",), find)
