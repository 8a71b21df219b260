"""Make `fixtures/schemes`: one layer as each scheme's own library packs it, and what that library says it means.

Run by hand, where the library is installed (`pip install --no-deps hqq`, …); the tests need none of them.

    python tests/helpers/make_scheme_fixtures.py gptq GIT_DIR_OF_GPTQ_FOR_LLAMA
    python tests/helpers/make_scheme_fixtures.py hqq | torchao | quanto | aqlm
    python tests/helpers/make_scheme_fixtures.py int4 FBGEMM/fbgemm_gpu/experimental/gen_ai/gen_ai/quantize.py

A file holds the tensors under the names that the library gives them, of the layer `model.layers.0.mlp.up_proj`; its
metadata has `config` (the quantization_config, JSON), `maker`, and `meaning`: the sha256 of the matrix in float32.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

OUT = Path(__file__).parents[2] / "fixtures" / "schemes"
LAYER = "model.layers.0.mlp.up_proj"
Tensors = dict[str, torch.Tensor]


def store(name: str, maker: str, tensors: Tensors, meaning: torch.Tensor, config: Any, **more: str) -> None:
    """Write a fixture; `more` is further metadata, as the library has it."""
    values = np.ascontiguousarray(meaning.detach().float().numpy())
    metadata = {"maker": maker, "meaning": hashlib.sha256(values.tobytes()).hexdigest(), "config": json.dumps(config)}
    OUT.mkdir(exist_ok=True)
    save_file({key: value.contiguous() for key, value in tensors.items()}, OUT / f"{name}.safetensors", metadata | more)


def weight(rows: int, columns: int) -> torch.Tensor:
    """Return a matrix of the spread that trained ones have, bfloat16 numbers."""
    made = torch.randn((rows, columns), generator=torch.Generator().manual_seed(rows * columns)) * 0.05
    return made.bfloat16().float()


# --- GPTQ-for-LLaMa ----------------------------------------------------------------------------------------


def gptq(repository: str) -> None:
    """Pack by its `QuantLinear` of three days in March 2023, and dequantize by its own forward where that runs here."""
    for name, revision, bits, group, rows, columns in (
        ("gptq-20230310-4", "e000bdb", 4, 0, 16, 256),
        ("gptq-20230320-3-64", "907720a", 3, 64, 256, 256),
        ("gptq-20230328-4-32", "5b30ab3", 4, 32, 256, 64),
    ):
        source = subprocess.run(
            ["git", "--git-dir", repository, "show", f"{revision}:quant.py"], capture_output=True, text=True, check=True
        ).stdout
        code = re.search(r"class QuantLinear.*?(?=\ndef make_quant)", source, re.DOTALL)
        assert code is not None
        space: dict[str, Any] = {"np": np, "torch": torch, "nn": nn, "math": math}
        exec(code[0], space)  # its module imports CUDA kernels
        linear = nn.Linear(columns, rows, bias=False)
        linear.weight.data = weight(rows, columns)
        scales, zeros, top = _grid(linear.weight.data, bits, group or columns)
        order = torch.arange(columns) // (group or columns)
        if revision == "5b30ab3":
            order = order[torch.randperm(columns, generator=torch.Generator().manual_seed(1))]
        levels = torch.clamp(torch.round(linear.weight.data / scales[:, order]) + zeros[:, order], 0, top)
        linear.weight.data = (levels - zeros[:, order]) * scales[:, order]  # the packer rounds and does not clamp
        if revision == "e000bdb":
            layer = space["QuantLinear"](bits, columns, rows)
            layer.pack(linear, scales, zeros)
        elif revision == "907720a":
            layer = space["QuantLinear"](bits, group, columns, rows)
            layer.pack(linear, scales, zeros)
        else:
            layer = space["QuantLinear"](bits, group, columns, rows, False)
            layer.pack(linear, scales, zeros, order.int())
        state = {f"{LAYER}.{key}": value for key, value in layer.state_dict().items()}
        if revision == "5b30ab3":  # its forward is torch's; the others' is CUDA's: scale × q − zero × scale
            meaning = layer(torch.eye(columns)).T
        elif revision == "907720a":
            meaning = (levels - zeros[:, order]) * scales[:, order]
        else:
            meaning = levels * scales[:, order] - (zeros * scales)[:, order]
            state["model.layers.0.post_attention_layernorm.weight"] = torch.ones(columns)  # tells the width
        store(name, f"GPTQ-for-LLaMa {revision}, quant.py", state, meaning, None)


def _grid(values: torch.Tensor, bits: int, group: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return scales and zero points `(rows, groups)` that cover the values, as its Quantizer does, and the top level.

    No zero point is 0, which that packer stores as −1 over the neighbors' bits.
    """
    parts, top = values.reshape(len(values), -1, group), (1 << bits) - 1
    low, high = parts.amin(-1).clamp(max=0), parts.amax(-1).clamp(min=0)
    scales = (high - low) / top
    return scales, torch.round(-low / scales).clamp(1, top), top


# --- HQQ ---------------------------------------------------------------------------------------------------


def hqq() -> None:
    """Quantize by hqq on the CPU, and dequantize by it in float32: its own type, float16, would round twice."""
    from hqq.core.quantize import BaseQuantizeConfig, HQQLinear, Quantizer

    settings = {"quant_method": "hqq", "quant_config": {}, "skip_modules": ["lm_head"]}
    for name, bits, group, axis, dtype, more in (
        ("hqq-8", 8, 64, 1, torch.bfloat16, {}),
        ("hqq-4", 4, 64, 1, torch.float16, {}),
        ("hqq-4-axis0", 4, 64, 0, torch.float16, {}),
        ("hqq-4-whole-zeros", 4, 32, 1, torch.float16, {"round_zero": True}),
        ("hqq-4-as-float", 4, 64, 1, torch.bfloat16, {"view_as_float": True}),
        ("hqq-3", 3, 64, 1, torch.float16, {}),
        ("hqq-3-axis0", 3, 32, 0, torch.float16, {}),
        ("hqq-2", 2, 16, 1, torch.float16, {}),
        ("hqq-1", 1, 32, 1, torch.float16, {}),
        ("hqq-1.58", 1.58, 32, 1, torch.float16, {}),
    ):
        chosen = BaseQuantizeConfig(nbits=bits, group_size=group, axis=axis, view_as_float="view_as_float" in more)
        chosen["weight_quant_params"] |= {"round_zero": "round_zero" in more, "optimize": "round_zero" not in more}
        linear = nn.Linear(128, 96, bias=False)
        linear.weight.data = weight(96, 128)
        layer = HQQLinear(linear, quant_config=chosen, compute_dtype=dtype, device="cpu")
        meta = {**layer.meta, "compute_dtype": torch.float32}
        meta |= {key: meta[key].float() for key in ("scale", "zero")}
        meaning = Quantizer.dequantize(layer.W_q, meta)
        state = {f"{LAYER}.{key}": value for key, value in layer.state_dict().items() if value is not None}
        store(name, "hqq 0.2.8.post1, HQQLinear.state_dict", state, meaning, settings)
        if name == "hqq-3":  # as its own save_quantized does
            layer.encoded_state_dict = False
            torch.save({LAYER: dict(layer.state_dict())}, OUT / f"{name}.pt")


# --- torchao -----------------------------------------------------------------------------------------------


def torchao() -> None:
    """Quantize by torchao on the CPU, flatten as transformers does, and dequantize by torchao's formula in float32."""
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
    from torchao.quantization import (
        Float8WeightOnlyConfig,
        Int8DynamicActivationInt8WeightConfig,
        Int8DynamicActivationIntxWeightConfig,
        Int8WeightOnlyConfig,
        IntxWeightOnlyConfig,
        quantize_,
    )
    from torchao.quantization.granularity import PerAxis, PerGroup
    from torchao.quantization.quant_primitives import MappingType, _dequantize_affine_float8, dequantize_affine

    settings = {"quant_method": "torchao", "quant_type": {"default": {"_type": "of this fixture"}}}
    for name, config in (
        ("torchao-int8-weight-only", Int8WeightOnlyConfig(version=2)),
        ("torchao-int8-groups", Int8WeightOnlyConfig(version=2, granularity=PerGroup(32))),
        ("torchao-int8-dynamic", Int8DynamicActivationInt8WeightConfig(version=2)),
        ("torchao-float8-weight-only", Float8WeightOnlyConfig()),
        ("torchao-8da4w", Int8DynamicActivationIntxWeightConfig(torch.int4, PerGroup(32))),
        (
            "torchao-int4-asymmetric",
            IntxWeightOnlyConfig(torch.int4, PerGroup(32), mapping_type=MappingType.ASYMMETRIC),
        ),
        ("torchao-int2", IntxWeightOnlyConfig(torch.int2, PerGroup(64))),
        ("torchao-int6-rows", IntxWeightOnlyConfig(torch.int6, PerAxis(0))),
    ):
        model = nn.Sequential(nn.Linear(128, 96, bias=False)).bfloat16()
        model[0].weight.data = weight(96, 128).bfloat16()
        quantize_(model, config)
        made = model[0].weight
        if made.qdata.dtype == torch.int8:
            meaning = dequantize_affine(
                made.qdata, tuple(made.block_size), made.scale.float(), made.zero_point, torch.int8
            )
        else:
            meaning = _dequantize_affine_float8(made.qdata, made.scale)
        tensors, metadata = flatten_tensor_state_dict({f"{LAYER}.weight": made})
        store(name, "torchao 0.18.0, flatten_tensor_state_dict", tensors, meaning, settings, **metadata)
        if name in (
            "torchao-int8-groups",
            "torchao-8da4w",
            "torchao-float8-weight-only",
        ):  # pytorch_model.bin
            torch.save({f"{LAYER}.weight": made}, OUT / f"{name}.pt")


def torchao_int4(source: str) -> None:
    """Quantize by FBGEMM's `quantize.py`, whose kernel alone, for a GPU, dequantizes: level × scale + zero.

    That this is what it means is seen from the weights, which lie within half a step of it.
    """
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
    from torchao.quantization import Int4Tensor

    code = re.search(r"def pack_int4.*?(?=\ndef (?!pack|int4))", Path(source).read_text(), re.DOTALL)
    assert code is not None
    space: dict[str, Any] = {"torch": torch}
    exec(code[0], space)  # its module imports Triton
    for name, symmetric in (("torchao-int4-fbgemm", False), ("torchao-int4-fbgemm-symmetric", True)):
        values = weight(96, 128)
        levels, scale, *zero = space["int4_row_quantize" if symmetric else "int4_row_quantize_zp"](values, 64)
        middle = zero[0] if zero else torch.zeros_like(scale)
        made = Int4Tensor(space["pack_int4"](levels), scale.bfloat16(), middle.bfloat16(), [1, 64], values.shape)
        step, shift = (number.bfloat16().float().repeat_interleave(64, 0).T for number in (scale, middle))
        meaning = levels.float() * step + shift
        assert ((meaning - values).abs() <= (1.05 if symmetric else 0.55) * step).all()  # the top level is clamped
        tensors, metadata = flatten_tensor_state_dict({f"{LAYER}.weight": made})
        settings = {"quant_method": "torchao", "quant_type": {"default": {"_type": "Int4WeightOnlyConfig"}}}
        store(name, "FBGEMM quantize.py, torchao 0.18.0 Int4Tensor", tensors, meaning, settings, **metadata)


# --- Quanto ------------------------------------------------------------------------------------------------


def quanto() -> None:
    """Quantize by optimum-quanto, and dequantize by it with the scales in float32: their own type would round."""
    from optimum.quanto import (
        MaxOptimizer,
        WeightQBitsTensor,
        freeze,
        qfloat8_e4m3fn,
        qfloat8_e5m2,
        qint2,
        qint4,
        qint8,
        quantize,
    )

    for name, kind in (("qint8", qint8), ("qfloat8_e4m3fn", qfloat8_e4m3fn), ("qfloat8_e5m2", qfloat8_e5m2)):
        model = nn.Sequential(nn.Linear(128, 96, bias=False)).bfloat16()
        model[0].weight.data = weight(96, 128).bfloat16()
        quantize(model, weights=kind)
        freeze(model)
        state = {f"{LAYER}.{key.removeprefix('0.')}": value for key, value in model.state_dict().items()}
        made = model[0].weight
        made._scale = made._scale.float()
        store(f"quanto-{name}", "optimum-quanto 0.2.7, QLinear.state_dict", state, made.dequantize(), None)
    for name, kind, rows, columns, whole in (
        ("qint4", qint4, 96, 256, False),  # groups of 128
        ("qint4-32", qint4, 97, 160, False),  # of 32: 128 to 64 do not divide it; an odd number of rows to pack
        ("qint4-rows", qint4, 96, 64, False),  # none
        ("qint4-whole", qint4, 96, 256, True),
        ("qint2", qint2, 98, 192, False),  # of 96
    ):
        model = nn.Sequential(nn.Linear(columns, rows, bias=False)).half()
        model[0].weight.data = weight(rows, columns).half()
        quantize(model, weights=kind, optimizer=MaxOptimizer())
        if whole:
            own = model[0]
            scale, shift = own.optimizer(own.weight, kind, 0, own.weight_group_size, zeropoint=True)
            own.weight = nn.Parameter(
                WeightQBitsTensor.quantize(own.weight, kind, 0, own.weight_group_size, scale, shift), False
            )
        freeze(model)
        state = {f"{LAYER}.{key.removeprefix('0.')}": value for key, value in model.state_dict().items()}
        made = model[0].weight
        made._scale = made._scale.float()
        made._shift = made._shift if whole else made._shift.float()
        store(f"quanto-{name}", "optimum-quanto 0.2.7, QLinear.state_dict", state, made.dequantize(), None)


# --- AQLM --------------------------------------------------------------------------------------------------


def aqlm() -> None:
    """Random codes and codebooks in aqlm's own layer, packed and dequantized by it, in float32."""
    import aqlm
    from aqlm.utils import _dequantize_weight, pack_int_data, unpack_int_data

    for count, bits, wide, tall in ((1, 12, 8, 1), (2, 8, 8, 1), (4, 8, 16, 1), (2, 5, 4, 2)):
        torch.manual_seed(count * bits)
        layer = aqlm.QuantizedLinear(128, 96, wide, tall, count, bits, bias=False, dtype=torch.float16)
        layer.codebooks.data = torch.randn(layer.codebooks.shape).half() * 0.05
        layer.scales.data = (torch.rand(layer.scales.shape) + 0.5).half()
        layer.codes.data = pack_int_data(torch.randint(0, 2**bits, layer.codes.shape), bits)
        state = {f"{LAYER}.{key}": value for key, value in layer.state_dict().items()}
        meaning = _dequantize_weight(unpack_int_data(layer.codes, bits), layer.codebooks.float(), layer.scales.float())
        config = {"in_group_size": wide, "out_group_size": tall, "num_codebooks": count, "nbits_per_codebook": bits}
        store(f"aqlm-{count}x{bits}", "aqlm 1.1.7, QuantizedLinear", state, meaning, {"quant_method": "aqlm", **config})


MAKERS = {"aqlm": aqlm, "gptq": gptq, "hqq": hqq, "torchao": torchao, "int4": torchao_int4, "quanto": quanto}

if __name__ == "__main__":
    MAKERS[sys.argv[1]](*sys.argv[2:])
