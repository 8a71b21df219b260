"""FP8 with scales for a tensor, a row or a block: `fp8` (DeepSeek's `weight_scale_inv`, Mistral), fbgemm, ModelOpt.

Source: transformers' `utils/quantization_config.py` and `integrations/finegrained_fp8.py`.
"""

from __future__ import annotations

from ggferry.converters.prequantized.schemes._common import (
    DEQUANTIZE,
    FP8,
    Config,
    Found,
    Scheme,
    block_size,
    grid,
    take,
)
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import MissingError, UnsupportedError


def find(checkpoint: Checkpoint, config: Config) -> Found:
    """Weight × scale."""
    algorithm = config.get("quant_algo", "FP8")
    if algorithm != "FP8":
        raise UnsupportedError(
            "a scheme of ModelOpt", path=checkpoint.path, found=algorithm, expected="FP8", hint=DEQUANTIZE
        )
    tall, wide = block_size(checkpoint, config.get("weight_block_size"))
    found = Found("FP8")
    for name, ref in checkpoint.tensors.items():
        if ref.type.name not in FP8:
            continue
        scale = checkpoint.tensors.get(f"{name}_scale_inv") or checkpoint.tensors.get(f"{name}_scale")
        if scale is None:
            raise MissingError(f"{name!r} is FP8 and has no scale", path=checkpoint.path, expected=f"{name}_scale_inv")
        take(checkpoint, found, ref, grid(checkpoint, ref, scale, ref.shape, tall, wide))
    return found


SCHEME = Scheme(("fp8", "fbgemm_fp8", "modelopt"), find)
