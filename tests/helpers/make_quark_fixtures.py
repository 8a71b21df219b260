"""Add to `fixtures/schemes` what AMD Quark, AutoAWQ's other kernels, compressed-tensors and ModelOpt pack besides.

Run by hand, where the library is installed (`pip install --no-deps amd-quark`, …); the tests need none of them.

    python tests/helpers/make_quark_fixtures.py quark | quark_blocks | awq AUTOAWQ/awq/modules/linear | mxfp6
    python tests/helpers/make_quark_fixtures.py modelopt | stacks
    python tests/helpers/make_quark_fixtures.py sparse    (compressed-tensors 0.11.0, the last that has it)
"""

from __future__ import annotations

import sys
import types
from typing import Any

import torch
from make_packed_fixtures import grid
from make_scheme_fixtures import LAYER, store, weight
from torch import nn


def quark() -> None:
    """Quantize, pack and dequantize by the module that Quark exports and imports layers with."""
    from quark.torch.export.nn.modules.realquantizer import StaticScaledRealQuantizer
    from quark.torch.quantization.config.config import QTensorConfig
    from quark.torch.quantization.config.type import Dtype, QSchemeType, RoundType, ScaleType
    from quark.torch.quantization.observer import (
        PerChannelMinMaxObserver,
        PerGroupMinMaxObserver,
        PerTensorMinMaxObserver,
    )

    observers = {
        "per_tensor": PerTensorMinMaxObserver,
        "per_channel": PerChannelMinMaxObserver,
        "per_group": PerGroupMinMaxObserver,
    }

    rows, columns, cpu = 64, 128, torch.device("cpu")
    for name, dtype, scheme, more, in_order in (
        ("quark-fp8", "fp8_e4m3", "per_tensor", {}, False),
        ("quark-fp8-rows", "fp8_e4m3", "per_channel", {"ch_axis": 0}, False),
        ("quark-int8-rows", "int8", "per_channel", {"ch_axis": 0}, False),
        ("quark-int8-groups", "int8", "per_group", {"group_size": 32}, False),
        ("quark-uint8", "uint8", "per_tensor", {}, False),
        ("quark-int4", "int4", "per_group", {"group_size": 32}, False),
        ("quark-int4-rows", "int4", "per_channel", {"ch_axis": 0}, False),
        ("quark-uint4", "uint4", "per_group", {"group_size": 64}, False),
        ("quark-uint4-in-order", "uint4", "per_group", {"group_size": 32}, True),
        ("quark-uint4-rows", "uint4", "per_channel", {"ch_axis": 0}, False),
        ("quark-mxfp4", "fp4", "per_group", {"group_size": 32, "scale_format": "e8m0"}, False),
        ("quark-fp4", "fp4", "per_group", {"group_size": 16}, False),
        ("quark-mxfp6-e2m3", "fp6_e2m3", "per_group", {"group_size": 32, "scale_format": "e8m0"}, False),
        ("quark-mxfp6-e3m2", "fp6_e3m2", "per_group", {"group_size": 32, "scale_format": "e8m0"}, False),
    ):
        settings = QTensorConfig(
            dtype=Dtype(dtype),
            observer_cls=observers[scheme],
            is_dynamic=False,
            qscheme=QSchemeType(scheme),
            symmetric=not dtype.startswith("uint"),
            round_method=RoundType.half_even,
            scale_type=ScaleType.float,
            **{"ch_axis": 1 if scheme == "per_group" else None, **more},
        )
        layer = StaticScaledRealQuantizer(settings, None, not in_order, True, torch.float32, cpu)
        values = weight(rows, columns)
        layer.scale, zero = _scales(values, dtype, scheme, more)
        if "int" in dtype:
            layer.zero_point = zero
        packed = layer.to_real_quantize_params(values)
        layer.pack_zero_point()
        layer.maybe_convert_and_transpose_scale()
        tensors = {f"{LAYER}.weight": packed, f"{LAYER}.weight_scale": layer.scale}
        if "int" in dtype:
            tensors[f"{LAYER}.weight_zero_point"] = layer.zero_point
        own: dict[str, Any] = {
            "dtype": dtype,
            "qscheme": scheme,
            "ch_axis": settings.ch_axis,
            "is_dynamic": False,
            **more,
        }
        config = {
            "quant_method": "quark",
            "global_quant_config": {"weight": own, "input_tensors": None, "bias": None, "output_tensors": None},
            "layer_quant_config": {},
            "layer_type_quant_config": {},
            "exclude": ["lm_head"],
            "export": {"weight_format": "real_quantized", "pack_method": "order" if in_order else "reorder"},
        }
        store(name, "amd-quark 0.13, StaticScaledRealQuantizer", tensors, layer(packed) + 0.0, config)


def quark_blocks() -> None:
    """Numbers in blocks, as Quark exports those that other programs made, dequantized by its emulation of kernels."""
    from quark.torch.kernel.hw_emulation.hw_emulation_interface import dequantize_fp8_per_block

    values = nn.functional.pad(weight(70, 96), (0, 32, 0, 26)).reshape(3, 32, 2, 64)
    scale = (values.abs().amax((1, 3)) / 448).bfloat16().float()
    codes = (values / scale[:, None, :, None]).reshape(96, 128)[:70, :96].to(torch.float8_e4m3fn)
    own = {"dtype": "fp8_e4m3", "qscheme": "per_block", "is_dynamic": False, "block_size": [32, 64]}
    config = {"quant_method": "quark", "global_quant_config": {"weight": own}, "export": {"pack_method": "reorder"}}
    tensors = {f"{LAYER}.weight": codes, f"{LAYER}.weight_scale": scale}
    meaning = dequantize_fp8_per_block(codes, scale, (32, 64))
    store("quark-fp8-blocks", "amd-quark 0.13, dequantize_fp8_per_block", tensors, meaning, config)


def _scales(values: torch.Tensor, dtype: str, scheme: str, more: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scales and zero points that cover the values, as its observers do."""
    size = more.get("group_size", values.shape[1])
    parts = values.reshape(len(values), -1, size)
    if scheme == "per_tensor":
        parts = values.reshape(1, 1, -1)
    top = {"fp8_e4m3": 448, "int8": 127, "int4": 7, "fp4": 6, "fp6_e2m3": 7.5, "fp6_e3m2": 28}.get(dtype)
    if top is None:
        low, high = parts.amin(-1).clamp(max=0), parts.amax(-1).clamp(min=0)
        most = (1 << int(dtype[4:])) - 1
        scale = ((high - low) / most).bfloat16().float()
        zero = torch.round(-low / scale).clamp(0, most).int()
    else:
        scale = (parts.abs().amax(-1) / top).bfloat16().float()
        zero = torch.zeros_like(scale).int()
    if more.get("scale_format") == "e8m0":
        scale = torch.exp2(torch.ceil(torch.log2(scale)))
    if scheme == "per_group":
        return scale, zero
    return (scale.reshape(()), zero.reshape(())) if scheme == "per_tensor" else (scale.reshape(-1), zero.reshape(-1))


def awq(folder: str) -> None:
    """Pack by AutoAWQ's modules. Their kernels are CUDA's: they compute (q − z) × scale, or q × scale + zero."""
    for name, file, form, group, columns in (
        ("awq-gemv", "gemv", "gemv", 128, 256),
        ("awq-gemv-32", "gemv", "gemv", 32, 192),
        ("awq-gemv-fast", "gemv_fast", "gemv_fast", 128, 256),
        ("awq-gemv-fast-64", "gemv_fast", "gemv_fast", 64, 192),
    ):
        with open(f"{folder}/{file}.py") as source:
            code = source.read().replace(
                "from awq.utils.module import try_import", "try_import = lambda name: (None, '')"
            )
        module = types.ModuleType(file)
        exec(code, module.__dict__)
        linear = nn.Linear(columns, 64, bias=False)
        linear.weight.data = weight(64, columns)
        scales, zeros = grid(linear.weight.data, 4, group, False)
        order = torch.arange(columns) // group
        levels = torch.clamp(torch.round(linear.weight.data / scales[:, order]) + zeros[:, order], 0, 15)
        linear.weight.data = (levels - zeros[:, order]) * scales[:, order]
        maker = module.WQLinear_GEMV if form == "gemv" else module.WQLinear_GEMVFast
        layer = maker.from_linear(linear, 4, group, scales=scales, zeros=zeros)
        meaning = (levels - zeros[:, order]) * scales[:, order]
        if form == "gemv_fast":
            meaning = levels * scales[:, order] + layer.qzeros.float().T[:, order]
        state = {f"{LAYER}.{key}": value for key, value in layer.state_dict().items()}
        config = {"quant_method": "awq", "bits": 4, "group_size": group, "version": form, "zero_point": True}
        store(name, f"autoawq 0.2.9, {maker.__name__}", state, meaning, config)


def mxfp6() -> None:
    """Compress and decompress by compressed-tensors."""
    from compressed_tensors.compressors.mxfp6.base import MXFP6PackedCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    args = QuantizationArgs(num_bits=6, type="float", strategy="group", group_size=32, symmetric=True)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    values = weight(48, 128)
    scale = torch.exp2(torch.ceil(torch.log2(values.reshape(48, -1, 32).abs().amax(-1) / 7.5)))
    made = MXFP6PackedCompressor.compress({"weight": values, "weight_scale": scale}, scheme)
    meaning = MXFP6PackedCompressor.decompress(made, scheme)["weight"]
    weights = {"num_bits": 6, "type": "float", "strategy": "group", "group_size": 32, "symmetric": True}
    config = {
        "quant_method": "compressed-tensors",
        "format": "mxfp6-pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "format": "mxfp6-pack-quantized"}},
    }
    tensors = {f"{LAYER}.{key}": value for key, value in made.items()}
    store("ct-mxfp6", "compressed-tensors 0.20.0, MXFP6PackedCompressor", tensors, meaning + 0.0, config)


def modelopt() -> None:
    """Quantize by `to_quantized_weight`, and dequantize by its QTensor where it has one."""
    from modelopt.torch.export.quant_utils import to_quantized_weight
    from modelopt.torch.quantization.qtensor import FP8QTensor

    values = weight(160, 192)
    blocks = torch.zeros(256, 256)
    blocks[:160, :192] = values.abs()
    scale = blocks.reshape(2, 128, 2, 128).amax((1, 3)) / 448
    packed = to_quantized_weight(values, scale, "fp8_pb_wo", None, 128)
    made = FP8QTensor(values.shape, torch.float32, packed)
    meaning = made.dequantize(torch.float32, scale=scale, block_sizes={-1: 128, -2: 128})
    tensors = {f"{LAYER}.weight": packed, f"{LAYER}.weight_scale": scale.reshape(2, 1, 2, 1)}
    config: dict[str, Any] = {"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}
    store("modelopt-fp8-blocks", "nvidia-modelopt 0.47.0, FP8QTensor", tensors, meaning, config)

    values = weight(48, 128)
    scale = (values.reshape(48, -1, 32).abs().amax(-1) / 7).bfloat16().float()
    packed = to_quantized_weight(values, scale, "int4_awq", None, 32)
    spread = scale.repeat_interleave(32, 1)
    levels = torch.clamp(torch.round(values / spread), -8, 7)
    tensors = {f"{LAYER}.weight": packed, f"{LAYER}.weight_scale": scale}
    config = {"quant_method": "modelopt", "quant_algo": "W4A16_AWQ", "group_size": 32}
    store("modelopt-int4", "nvidia-modelopt 0.47.0, to_quantized_weight", tensors, levels * spread + 0.0, config)
    factors = (torch.rand(128, generator=torch.Generator().manual_seed(4)) + 0.5).bfloat16()
    tensors[f"{LAYER}.pre_quant_scale"] = factors
    folded = (levels * spread) * factors.float()
    store("modelopt-int4-columns", "nvidia-modelopt 0.47.0, to_quantized_weight", tensors, folded + 0.0, config)

    scale = values.abs().amax(-1) / 127
    packed = to_quantized_weight(values, scale, "int8_wo")
    tensors = {f"{LAYER}.weight": packed, f"{LAYER}.weight_scale": scale}
    config = {"quant_method": "modelopt", "quant_algo": "W8A16"}
    meaning = packed.float() * scale[:, None]
    store("modelopt-int8", "nvidia-modelopt 0.47.0, to_quantized_weight", tensors, meaning, config)


def stacks() -> None:
    """Quantize stacks of experts as `_export_quantized_weight` does, and dequantize by ModelOpt's QTensor."""
    from modelopt.torch.export.quant_utils import maybe_transpose_expert_weight_dimensions, to_quantized_weight
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    layer = "model.layers.0.mlp.experts.down_proj"
    values = weight(3 * 64, 48).reshape(3, 64, 48)  # (experts, in, out)
    turned = values.transpose(1, 2)
    whole = NVFP4QTensor.get_weights_scaling_factor_2(turned)
    scale = NVFP4QTensor.get_weights_scaling_factor(turned, 16, whole)[0]
    packed = to_quantized_weight(turned, scale, "nvfp4", whole, 16)
    made = NVFP4QTensor(turned.shape, torch.float32, packed)
    meaning = made.dequantize(dtype=torch.float32, scale=scale, double_scale=whole, block_sizes={-1: 16})
    stored = maybe_transpose_expert_weight_dimensions(packed, scale)
    tensors = dict(zip((layer, f"{layer}_weight_scale"), stored, strict=True))
    tensors |= {f"{layer}_weight_scale_2": whole, f"{layer}_input_scale": torch.tensor(0.5)}
    config = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    maker = "nvidia-modelopt 0.47.0, NVFP4QTensor"
    store("modelopt-nvfp4-stack", maker, tensors, meaning.transpose(1, 2), config, layer=layer)

    config = {"quant_method": "modelopt", "quant_algo": "FP8"}
    for name, form, scale in (
        ("modelopt-fp8-stack", "fp8", values.abs().amax() / 448),
        ("modelopt-fp8-stack-outputs", "fp8_pc_pt", values.abs().amax(1) / 448),
    ):
        made = values.transpose(1, 2) if form == "fp8_pc_pt" else values
        packed = to_quantized_weight(made, scale, form)
        packed = packed.transpose(1, 2) if form == "fp8_pc_pt" else packed
        tensors = {layer: packed, f"{layer}_weight_scale": scale}
        meaning = packed.float() * (scale[:, None] if scale.dim() else scale)
        store(name, "nvidia-modelopt 0.47.0, to_quantized_weight", tensors, meaning, config, layer=layer)


def sparse() -> None:
    """Compress and decompress by compressed-tensors' compressors of sparse matrices, the numbers quantized or not."""
    from compressed_tensors.compressors.sparse_compressors.sparse_24_bitmask import Sparse24BitMaskTensor
    from compressed_tensors.compressors.sparse_compressors.sparse_bitmask import BitmaskTensor

    values = weight(48, 136).bfloat16()
    for name, form, made in (
        ("ct-sparse-24", "sparse-24-bitmask", Sparse24BitMaskTensor.from_dense(values)),
        ("ct-sparse", "sparse-bitmask", BitmaskTensor.from_dense(values * (values > 0.02))),
    ):
        config = {"quant_method": "compressed-tensors", "sparsity_config": {"format": form}}
        tensors = made.dict(LAYER, "cpu")
        store(name, f"compressed-tensors 0.11.0, {type(made).__name__}", tensors, made.decompress(), config)
    scale = values.float().abs().amax(1, keepdim=True) / 448
    levels = Sparse24BitMaskTensor.from_dense((values.float() / scale).to(torch.float8_e4m3fn))
    weights = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
    config = {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "sparsity_config": {"format": "sparse-24-bitmask", "sparsity_structure": "2:4"},
    }
    tensors = {**levels.dict(LAYER, "cpu"), f"{LAYER}.weight_scale": scale}
    meaning = levels.decompress().float() * scale
    store("ct-sparse-24-float8", "compressed-tensors 0.11.0, Sparse24BitMaskTensor", tensors, meaning + 0.0, config)


if __name__ == "__main__":
    made: Any = {
        "quark": quark,
        "quark_blocks": quark_blocks,
        "awq": awq,
        "mxfp6": mxfp6,
        "sparse": sparse,
        "modelopt": modelopt,
        "stacks": stacks,
    }
    made[sys.argv[1]](*sys.argv[2:])
