"""Pack a weight as GPTQ of March 2023, HQQ, torchao, Quanto and EXL2 do, element by element, and say what it means.

This shares nothing with the code that reads such weights.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from helpers.packed_fp8_gptq import pack_gptq
from helpers.quantized_llama import Quantize, Tensors

# --- GPTQ of March 2023 ------------------------------------------------------------------------------------


def products(bits: int, group: int | None = None, scales: Any = torch.float32) -> Quantize:
    """qweight `(in × bits / 32, out)`, and zero point × scale `(out, 1)`, or of groups `(groups, out)`."""

    def quantize(name: str, weight: np.ndarray, rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
        rows, columns = weight.shape
        top, owner = (1 << bits) - 1, np.arange(columns) // (group or columns)
        scale = rng.uniform(0.01, 0.03, (rows, columns // (group or columns))).astype(np.float32)
        scale = torch.from_numpy(scale).to(scales).float().numpy()
        product = torch.from_numpy((top / 2 * scale).astype(np.float32)).to(scales).float().numpy()
        levels = np.clip(np.round((weight + product[:, owner]) / scale[:, owner]), 0, top).astype(int)
        base = name.removesuffix("weight")
        turned = (lambda x: x.T.copy()) if group else (lambda x: x)
        made = {
            f"{base}qweight": torch.from_numpy(pack_gptq(levels, bits).T.copy()),
            f"{base}scales": torch.from_numpy(turned(scale)).to(scales),
            f"{base}zeros": torch.from_numpy(turned(product)).to(scales),
            f"{base}bias": torch.zeros(rows),
        }
        return made, levels.astype(np.float32) * scale[:, owner] - product[:, owner]

    return quantize
