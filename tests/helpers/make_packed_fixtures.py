"""Add to `fixtures/schemes` what AutoRound, compressed-tensors and bitsandbytes of 2026 pack.

Run by hand, where the library is installed (`pip install --no-deps auto-round`, …); the tests need none of them.

    python tests/helpers/make_packed_fixtures.py auto_round | compressed | bitsandbytes
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from make_scheme_fixtures import LAYER, store, weight
from torch import nn

AUTO_ROUND = {"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": False, "data_type": "int"}


def grid(values: torch.Tensor, bits: int, group: int, symmetric: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scales, which are float16 numbers, and zero points `(rows, groups)`; no zero point is 0."""
    parts, top = values.reshape(len(values), -1, group), (1 << bits) - 1
    if symmetric:
        scales = (parts.abs().amax(-1) * 2 / top).half().float()
        return scales, torch.full_like(scales, 1 << bits - 1)
    low, high = parts.amin(-1).clamp(max=0), parts.amax(-1).clamp(min=0)
    scales = ((high - low) / top).half().float()
    return scales, torch.round(-low / scales).clamp(1, top)


def auto_round() -> None:
    """Pack by AutoRound's `QuantLinear`, and compute by its forward in float32."""
    from auto_round_extension.torch import qlinear_torch, qlinear_torch_zp

    several = {".*up_proj.*": {"bits": 8, "group_size": 32}, "lm_head": {"bits": 3}}
    gptq = {"bits": 4, "group_size": 32, "sym": False, "method": "gptq", "format": "gptq_v2", "pack_dtype": "int32"}
    for name, module, bits, group, symmetric, settings in (
        ("autoround-5", qlinear_torch_zp, 5, 32, True, {"packing_format": "auto_round:auto_gptq"}),
        ("autoround-6", qlinear_torch_zp, 6, 64, False, {"packing_format": "auto_round:auto_gptq"}),
        ("autoround-7", qlinear_torch, 7, 32, False, {"packing_format": "auto_round"}),
        ("autoround-4-zeros-as-they-are", qlinear_torch, 4, 32, False, {"packing_format": "auto_round"}),
        ("autoround-3-of-gptqmodel", qlinear_torch, 3, 32, False, {"packing_format": "auto_round:gptqmodel"}),
        ("autoround-8-among-4", qlinear_torch_zp, 8, 32, True, {"extra_config": several}),
        ("gptq-4-second-format", qlinear_torch, 4, 32, False, gptq),
    ):
        linear = nn.Linear(128, 64, bias=False)
        linear.weight.data = weight(64, 128)
        scales, zeros = grid(linear.weight.data, bits, group, symmetric)
        layer = module.QuantLinear(bits, group, 128, 64, bias=False, g_idx=name.endswith("gptqmodel"))
        layer.device = "cpu"
        layer.pack(linear, scales, zeros, device="cpu")
        state = {f"{LAYER}.{key}": value.clone() for key, value in layer.state_dict().items()}
        layer.scales = layer.scales.float()
        config = settings if "method" in settings else {**AUTO_ROUND, "bits": bits, "group_size": group, **settings}
        config |= {"bits": 4, "group_size": 64} if name == "autoround-8-among-4" else {}
        store(name, "auto-round 0.16.1, QuantLinear", state, layer(torch.eye(128)).T, config)


if __name__ == "__main__":
    made: Any = {"auto_round": auto_round}
    made[sys.argv[1]]()
