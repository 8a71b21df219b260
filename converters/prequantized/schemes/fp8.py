"""FP8 with scales for a tensor, a row or a block: `fp8` (DeepSeek's `weight_scale_inv`, Mistral), fbgemm.

Source: transformers' `utils/quantization_config.py` and `integrations/finegrained_fp8.py`.
"""

from __future__ import annotations

from ggferry.converters.prequantized.schemes._common import FP8, Config, Found, Scheme, block_size, take_fp8
from ggferry.converters.prequantized.schemes._ranked import is_left_out, is_ranked, take_ranked
from ggferry.formats.checkpoint import Checkpoint

BLOCK = [128, 128]
"""What a configuration that states none has: `FineGrainedFP8Config`'s default."""


def find(checkpoint: Checkpoint, config: Config) -> Found:
    """Weight × scale."""
    tall, wide = block_size(checkpoint, config.get("weight_block_size", BLOCK))
    found = Found("FP8")
    for ref in checkpoint.tensors.values():
        if ref.type.name not in FP8 or is_left_out(checkpoint, ref):
            continue
        if is_ranked(checkpoint, ref):
            take_ranked(checkpoint, found, ref, tall, wide)
        else:
            take_fp8(checkpoint, found, ref, tall, wide)
    return found


SCHEME = Scheme(("fp8", "fbgemm_fp8"), find)
