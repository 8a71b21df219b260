"""NVIDIA ModelOpt: FP8, MXFP8, MXFP4 and NVFP4, or several in one model, told by the tensors.

Source: ModelOpt `torch/quantization/qtensor/` (`nvfp4_tensor.py`, `mxfp4_tensor.py`, `mxfp8_tensor.py`: `dequantize`),
`torch/export/quant_utils.py`; transformers' and vLLM's readers of hf_quant_config.json.
"""

from __future__ import annotations

from ggferry.converters.prequantized.micro_scales import GROUP, Nvfp4Values, scaled_blocks
from ggferry.converters.prequantized.schemes._common import (
    DEQUANTIZE,
    FP8,
    Config,
    Found,
    Matrix,
    Scheme,
    matrix,
    of_shape,
    of_type,
    piece,
    take_fp8,
    take_micro_scales,
)
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import ShapeError, UnsupportedError

ALGORITHMS = (
    *("FP8", "MXFP8", "NVFP4", "W4A16_NVFP4", "W4A8_NVFP4_FP8", "W4A8_MXFP4_FP8", "FP8_PER_CHANNEL_PER_TOKEN"),
    "MIXED_PRECISION",
)


def find(checkpoint: Checkpoint, config: Config) -> Found:
    """FP8 × scale, or × 2^(e − 127); level × (scale of 16 columns × weight_scale_2), or × 2^(e − 127)."""
    algorithm = config.get("quant_algo", "FP8")
    odd = next((name for name in checkpoint.tensors if name.endswith(".pre_quant_scale")), None)
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
        if not name.endswith(".weight") or ref.type.name not in FP8 | {"U8"}:
            continue
        scale = checkpoint.tensors.get(f"{name}_scale")
        if scale is not None and scale.type.name == "U8":
            kinds.add(take_micro_scales(checkpoint, found, ref, ref.name, scale))
        elif ref.type.name in FP8:
            take_fp8(checkpoint, found, ref, 0, 0)
            kinds.add("FP8")
        else:
            _four_bits(checkpoint, found, ref)
            kinds.add("NVFP4")
    found.scheme = " and ".join(sorted(kinds))
    return found


def _four_bits(checkpoint: Checkpoint, found: Found, ref: TensorRef) -> None:
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


SCHEME = Scheme(("modelopt",), find)
