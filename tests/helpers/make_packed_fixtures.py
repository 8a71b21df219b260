"""Add to `fixtures/schemes` what AutoRound, compressed-tensors and bitsandbytes of 2026 pack.

Run by hand, where the library is installed (`pip install --no-deps auto-round`, …); the tests need none of them.

    python tests/helpers/make_packed_fixtures.py auto_round | micro_scales | compressed | modelopt | mlx | bitsandbytes
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


def micro_scales() -> None:
    """Pack by AutoRound's `QuantLinear` of four and eight bit floats; its own inference says what they mean.

    Zeros are kept without their sign.
    """
    from auto_round.data_type.nvfp import nv_fp4
    from auto_round.experimental.qmodules.mx import MXFP4QuantLinear, MXFP8QuantLinear
    from auto_round.experimental.qmodules.nvfp4 import NVFP4QuantLinear
    from auto_round.export.export_to_autoround.qlinear_fp import QuantLinear
    from auto_round.schemes import QuantizationScheme

    for name, reader, kind, bits, group in (
        ("autoround-mxfp4", MXFP4QuantLinear, "mx_fp", 4, 32),
        ("autoround-mxfp8", MXFP8QuantLinear, "mx_fp", 8, 32),
        ("autoround-nvfp4", NVFP4QuantLinear, "nv_fp", 4, 16),
    ):
        linear = nn.Linear(128, 64, bias=False)
        linear.weight.data = weight(64, 128)
        whole = None
        if kind == "nv_fp":
            whole = torch.tensor(2.0**13)  # a power of two: in which order is multiplied makes no difference
            scales = nv_fp4(linear.weight.data, 4, 16, global_scale=whole)[1].reshape(64, -1)
        else:
            greatest = linear.weight.data.reshape(64, -1, 32).abs().amax(-1)
            scales = torch.floor(torch.log2(greatest)) - (2 if bits == 4 else 8)
        layer = QuantLinear(bits, group, 128, 64, False, data_type=kind, act_bits=16)
        layer.pack(linear, scales, global_scale=whole, device="cpu")
        state = {f"{LAYER}.{key}": value.clone() for key, value in layer.state_dict().items()}
        config = {**AUTO_ROUND, "bits": bits, "group_size": group, "sym": True, "data_type": kind}
        config |= {"packing_format": "auto_round:llm_compressor", "act_bits": 16}
        scheme = QuantizationScheme(bits=bits, group_size=group, data_type=kind, act_group_size=group)
        inference = reader(128, 64, scheme)
        for key, value in layer.state_dict().items():
            setattr(inference, key, value)
        store(name, "auto-round 0.16.1, QuantLinear", state, inference.dequant_weight_online() + 0.0, config)


def compressed() -> None:
    """Compress by compressed-tensors, and decompress by it with the scales in float32."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    packed, plain, floats = "pack-quantized", "naive-quantized", "float-quantized"
    four = {"num_bits": 4, "strategy": "group", "group_size": 32}
    for name, form, rows, columns, own, others in (
        ("ct-3-asymmetric", packed, 70, 96, {"num_bits": 3, "strategy": "group", "group_size": 32}, ()),
        ("ct-6-asymmetric", packed, 64, 96, {"num_bits": 6, "strategy": "channel"}, ()),
        ("ct-4-of-two-groups", packed, 64, 128, {"num_bits": 4, "strategy": "group", "group_size": 64}, (four,)),
        ("ct-4-in-int8", plain, 64, 96, {"num_bits": 4, "strategy": "channel"}, ()),
        ("ct-8-beside-4", plain, 64, 96, {"num_bits": 8, "strategy": "channel"}, ({**four, "format": packed},)),
        ("ct-float8-blocks-as-text", floats, 64, 96, {"num_bits": 8, "block_structure": [32, 64]}, ()),
    ):
        kind = {"type": "float", "strategy": "block"} if form == floats else {}
        weights = QuantizationArgs(**own, **kind, symmetric="asymmetric" not in name)
        values = weight(rows, columns)
        tall, wide = weights.block_structure or (1, weights.group_size or columns)
        parts = nn.functional.pad(values, (0, -columns % wide)).reshape(rows // tall, tall, -1, wide)
        scale, zero = calculate_qparams(parts.amin((1, 3)), parts.amax((1, 3)), weights)
        scheme = QuantizationScheme(targets=["Linear"], weights=weights)
        compressor = BaseCompressor.get_value_from_registry(form)
        scale = scale.bfloat16().float()
        state = compressor.compress({"weight": values, "weight_scale": scale, "weight_zero_point": zero}, scheme)
        meaning = compressor.decompress(state, scheme)["weight"]
        state["weight_scale"] = state["weight_scale"].bfloat16()
        written = weights.model_dump(mode="json")
        written |= {"block_structure": "32x64"} if form == floats else {}
        groups = [{"targets": ["re:.*down_proj"], "weights": other, "format": other.get("format")} for other in others]
        groups.append({"targets": ["re:.*up_proj"], "weights": written, "format": form if "beside" in name else None})
        config = {
            "quant_method": "compressed-tensors",
            "format": form,
            "config_groups": {f"group_{number}": group for number, group in enumerate(groups)},
        }
        tensors = {f"{LAYER}.{key}": value for key, value in state.items()}
        store(name, "compressed-tensors 0.20.0, BaseCompressor", tensors, meaning, config)


def modelopt() -> None:
    """Quantize by ModelOpt's tensors, as its export does, and dequantize by them in float32; zeros without a sign."""
    from modelopt.torch.quantization.qtensor import MXFP4QTensor, MXFP8QTensor

    values = weight(64, 96)
    for name, kind, algorithm in (
        ("modelopt-mxfp4", MXFP4QTensor, "W4A8_MXFP4_FP8"),
        ("modelopt-mxfp8", MXFP8QTensor, "MXFP8"),
    ):
        made, scale = kind.quantize(values, 32)[:2] if kind is MXFP4QTensor else kind.quantize(values)
        meaning = made.dequantize(torch.float32, scale=scale, block_sizes={-1: 32})
        scale = scale.reshape(64, 3)
        tensors = {f"{LAYER}.weight": made._quantized_data, f"{LAYER}.weight_scale": scale}
        config = {"quant_method": "modelopt", "quant_algo": algorithm, "group_size": 32}
        store(name, "nvidia-modelopt 0.47.0, QTensor", tensors, meaning + 0.0, config)


def mlx() -> None:
    """Quantize to one bit by MLX (`pip install mlx-cpu mlx`), and dequantize with scales in float32."""
    import mlx.core as mx
    import numpy as np

    values = mx.array(weight(48, 192).numpy()).astype(mx.bfloat16)
    words, scales, biases = mx.quantize(values, group_size=64, bits=1)
    own = [torch.from_numpy(np.array(part.astype(mx.float32))) for part in (scales, biases)]
    meaning = mx.dequantize(words, *(mx.array(part.numpy()) for part in own), group_size=64, bits=1)
    tensors = dict(zip((f"{LAYER}.scales", f"{LAYER}.biases"), (part.bfloat16() for part in own), strict=True))
    tensors[f"{LAYER}.weight"] = torch.from_numpy(np.array(words))
    config = {"bits": 1, "group_size": 64, "mode": "affine"}
    store("mlx-affine-1", "mlx 0.32.4, quantize", tensors, torch.from_numpy(np.array(meaning)), config)


def bitsandbytes() -> None:
    """Quantize by bitsandbytes, and dequantize by it to float32; the codes are kept as another type, as FSDP asks.

    On a CPU it dequantizes wrongly (0.50.2) where a row is no whole number of blocks.
    """
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    for name, storage in (("bnb-nf4-as-bfloat16", torch.bfloat16), ("bnb-nf4-as-float32", torch.float32)):
        codes, state = quantize_4bit(weight(48, 128).bfloat16(), quant_type="nf4", quant_storage=storage)
        tensors = {f"{LAYER}.weight": codes}
        tensors |= {f"{LAYER}.weight.{key}": value for key, value in state.as_dict(packed=True).items()}
        state.dtype = torch.float32
        config = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_storage": str(storage)[6:]}
        store(name, "bitsandbytes 0.50.2, quantize_4bit", tensors, dequantize_4bit(codes, state), config)


if __name__ == "__main__":
    made: Any = {
        "auto_round": auto_round,
        "micro_scales": micro_scales,
        "compressed": compressed,
        "modelopt": modelopt,
        "mlx": mlx,
        "bitsandbytes": bitsandbytes,
    }
    made[sys.argv[1]]()
