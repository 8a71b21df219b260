"""Pack a weight as AWQ, bitsandbytes, compressed-tensors, BitNet, MLX or NVFP4, and say what it means.

This shares nothing with the code that reads such weights.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
from transformers.integrations.bitnet import unpack_weights

from helpers.quantized_llama import Quantize, Tensors

# --- AWQ ---------------------------------------------------------------------------------------------------


def awq(group: int, scales: torch.dtype = torch.float16, symmetric: bool = False) -> Quantize:
    """`qweight` (in, out / 8), `qzeros` (groups, out / 8): AutoAWQ's `WQLinear_GEMM.from_linear`, `order_map`."""
    order_map = [0, 2, 4, 6, 1, 3, 5, 7]

    def pack(values: np.ndarray) -> torch.Tensor:
        words = np.zeros((len(values), values.shape[1] // 8), np.int64)
        for row, line in enumerate(values.tolist()):
            for word in range(words.shape[1]):
                for i, place in enumerate(order_map):
                    words[row, word] |= line[word * 8 + place] << i * 4
        return torch.from_numpy(words.astype(np.uint32).view(np.int32))

    def quantize(name: str, weight: np.ndarray, rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
        rows, columns = weight.shape
        owner = np.arange(columns) // (group if group > 0 else columns)
        count = int(owner[-1]) + 1
        scale = torch.from_numpy(rng.uniform(0.01, 0.03, (count, rows)).astype(np.float32)).to(scales)
        zero = np.full((count, rows), 8) if symmetric else rng.integers(0, 16, (count, rows))
        wide = scale.float().numpy()
        levels = np.clip(np.round(weight.T / wide[owner]) + zero[owner], 0, 15).astype(int)
        base = name.removesuffix("weight")
        made = {f"{base}qweight": pack(levels), f"{base}qzeros": pack(zero), f"{base}scales": scale}
        return made, (wide[owner] * (levels - zero[owner]).astype(np.float32)).T

    return quantize


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}

# --- bitsandbytes ------------------------------------------------------------------------------------------

NF4 = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
FP4 = tuple(value / 12 for value in (0, 0.0625, 8, 12, 4, 6, 2, 3, 0, -0.0625, -8, -12, -4, -6, -2, -3))


def four_bits(kind: str, block: int, nested: int = 0) -> Quantize:
    """bitsandbytes' `QuantState.as_dict(packed=True)`: the first of two elements in the upper half of a byte."""
    levels = np.array({"nf4": NF4, "fp4": FP4}[kind], np.float32)

    def quantize(name: str, weight: np.ndarray, rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
        flat = weight.reshape(-1)
        blocks = -(-len(flat) // block)
        scale = np.array([np.abs(flat[i * block : (i + 1) * block]).max() for i in range(blocks)], np.float32)
        state: dict[str, Any] = {"quant_type": kind, "blocksize": block, "dtype": "bfloat16", "shape": weight.shape}
        made: Tensors = {}
        if nested:
            table = np.sort(rng.uniform(-1, 1, 256)).astype(np.float32)
            codes = rng.integers(0, 256, blocks)
            outer = rng.uniform(0.01, 0.1, -(-blocks // nested)).astype(np.float32)
            scale = np.array([table[c] * outer[i // nested] for i, c in enumerate(codes)], np.float32) + np.float32(0.2)
            state |= {"nested_blocksize": nested, "nested_dtype": "float32", "nested_offset": 0.2}
            made[f"{name}.absmax"] = torch.from_numpy(codes.astype(np.uint8))
            made[f"{name}.nested_absmax"] = torch.from_numpy(outer)
            made[f"{name}.nested_quant_map"] = torch.from_numpy(table)
        else:
            made[f"{name}.absmax"] = torch.from_numpy(scale)
        codes4 = [int(np.abs(levels - flat[i] / scale[i // block]).argmin()) for i in range(len(flat))]
        packed = [high << 4 | low for high, low in zip(codes4[::2], codes4[1::2], strict=True)]
        made[name] = torch.tensor(packed, dtype=torch.uint8).reshape(-1, 1)
        made[f"{name}.quant_map"] = torch.tensor(levels)
        text = json.dumps(state).encode()
        made[f"{name}.quant_state.bitsandbytes__{kind}"] = torch.tensor(list(text), dtype=torch.uint8)
        meaning = np.array([levels[c] * scale[i // block] for i, c in enumerate(codes4)], np.float32)
        return made, meaning.reshape(weight.shape)

    return quantize


def int8(name: str, weight: np.ndarray, rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
    """`int8_vectorwise_quant`: a row's greatest is 127."""
    greatest = np.abs(weight).max(1).astype(np.float32)
    levels = np.round(weight * (127 / greatest[:, None])).astype(np.int8)
    base = name.removesuffix("weight")
    made = {
        name: torch.from_numpy(levels),
        f"{base}SCB": torch.from_numpy(greatest),
        f"{base}weight_format": torch.tensor(0, dtype=torch.uint8),
    }
    return made, (torch.from_numpy(levels) * torch.from_numpy(greatest).view(-1, 1) * 7.874015718698502e-3).numpy()


BNB4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
BNB8 = {"quant_method": "bitsandbytes", "load_in_8bit": True}

# --- small groups of floats --------------------------------------------------------------------------------

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def _pairs(codes: np.ndarray) -> np.ndarray:
    """Two neighbors a byte, the first in the lower half."""
    return np.array([[low | high << 4 for low, high in zip(r[::2], r[1::2], strict=True)] for r in codes.tolist()])


def nvfp4(form: str) -> Quantize:
    """Levels × E4M3 scale of 16 columns × (ModelOpt), / (compressed-tensors) or without (MLX) a scale of the whole."""

    def quantize(name: str, weight: np.ndarray, rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
        rows, columns = weight.shape
        codes = rng.integers(0, 16, weight.shape)
        scale = torch.from_numpy(rng.uniform(0.02, 0.4, (rows, columns // 16)).astype(np.float32)).to(
            torch.float8_e4m3fn
        )
        whole = np.float32(rng.uniform(0.1, 0.3))
        wide = scale.float().numpy()
        base = name.removesuffix("weight")
        packed = torch.from_numpy(_pairs(codes).astype(np.uint8))
        if form == "modelopt":
            wide = wide * whole
            made = {name: packed, f"{name}_scale": scale, f"{name}_scale_2": torch.tensor(whole)}
            made[f"{base}input_scale"] = torch.tensor(0.5)
        elif form == "ct":
            wide = wide / whole
            made = {f"{name}_packed": packed, f"{name}_scale": scale, f"{name}_global_scale": torch.tensor([whole])}
            made[f"{base}input_global_scale"] = torch.tensor([0.5])
        else:
            made = {name: packed.view(torch.uint32), f"{base}scales": scale.view(torch.uint8)}
        meaning = np.array(E2M1, np.float32)[codes] * np.repeat(wide, 16, 1)
        return made, meaning + np.float32(0)  # no negative zero, which GGUF's levels do not have

    return quantize


def mx(form: str, bits: int) -> Quantize:
    """Levels, or E4M3, × 2^(e − 127) of 32 columns."""

    def quantize(name: str, weight: np.ndarray, rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
        exponents = rng.integers(120, 125, (len(weight), weight.shape[1] // 32))
        wide = np.repeat(2.0 ** (exponents - 127), 32, 1).astype(np.float32)
        scale = torch.from_numpy(exponents.astype(np.uint8))
        base = name.removesuffix("weight")
        if bits == 8:
            levels = torch.from_numpy(weight / wide).to(torch.float8_e4m3fn)
            packed, meaning = levels, levels.float().numpy() * wide
        else:
            codes = rng.integers(0, 16, weight.shape)
            packed = torch.from_numpy(_pairs(codes).astype(np.uint8))
            meaning = np.array(E2M1, np.float32)[codes] * wide + np.float32(0)
        if form == "mlx":
            return {name: packed.view(torch.uint8).view(torch.uint32), f"{base}scales": scale}, meaning
        return {name if bits == 8 else f"{name}_packed": packed, f"{name}_scale": scale}, meaning

    return quantize


def compressed(form: str, bits: int, kind: str, group: int) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": kind, "symmetric": True, "strategy": "group", "group_size": group}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups}


def streams(levels: np.ndarray, bits: int) -> list[list[int]]:
    """A number of all bits a row, cut into words."""
    count = -(-levels.shape[1] * bits // 32)
    rows = (sum(value << bits * j for j, value in enumerate(row)) for row in levels.tolist())
    return [[stream >> 32 * j & 0xFFFFFFFF for j in range(count)] for stream in rows]


def packed_integers(bits: int, group: int, *, dense: bool) -> Quantize:
    """compressed-tensors' `pack_to_int32`: 32 // bits in a word, which the rest of it pads, or a stream of bits."""

    def quantize(name: str, weight: np.ndarray, rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
        rows, columns = weight.shape
        levels = rng.integers(-(1 << bits - 1), 1 << bits - 1, weight.shape)
        scale = torch.from_numpy(rng.uniform(0.01, 0.03, (rows, columns // group)).astype(np.float32)).bfloat16()
        per = 32 // bits
        words = np.zeros((rows, -(-columns // per)), np.int64)
        if dense:
            words = np.array(streams(levels + (1 << bits - 1), bits))
        for i, row in enumerate([] if dense else levels.tolist()):
            for j, value in enumerate(row):
                words[i, j // per] |= value + (1 << bits - 1) << bits * (j % per)
        made = {
            f"{name}_packed": torch.from_numpy(words.astype(np.uint32).view(np.int32)),
            f"{name}_scale": scale,
            f"{name}_shape": torch.tensor([rows, columns]),
        }
        return made, levels.astype(np.float32) * np.repeat(scale.float().numpy(), group, 1)

    return quantize


# --- BitNet and MLX ----------------------------------------------------------------------------------------


def trained(name: str, weight: np.ndarray, rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
    """BF16 that `AutoBitLinear` makes ternary as it computes: transformers' `WeightQuant.forward`, uncompiled."""
    stored = torch.from_numpy(weight).bfloat16()
    factor = 1.0 / stored.float().abs().mean().clamp_(min=1e-5)
    meaning = (stored.float() * factor).round().clamp(-1, 1) / factor
    return {name: stored}, meaning.bfloat16().float().numpy()


def ternary(multiplies: bool) -> Quantize:
    """The witness is transformers' own `unpack_weights`; `BitLinear` divides by the scale, `AutoBitLinear` does not."""

    def quantize(name: str, weight: np.ndarray, rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
        codes = rng.integers(0, 3, weight.shape).reshape(4, -1, weight.shape[1])
        packed = torch.from_numpy((codes[0] | codes[1] << 2 | codes[2] << 4 | codes[3] << 6).astype(np.uint8))
        scale = torch.tensor([rng.uniform(0.05, 0.2) if multiplies else rng.uniform(5, 20)]).bfloat16()
        unpacked = unpack_weights(packed, torch.float32).numpy()
        wide = scale.float().numpy()
        return {name: packed, f"{name}_scale": scale}, unpacked * wide if multiplies else unpacked / wide

    return quantize


def affine(bits: int, group: int, scales: torch.dtype = torch.bfloat16) -> Quantize:
    """MLX: a stream of bits along the row, whole words; q × scale + bias."""

    def quantize(name: str, weight: np.ndarray, rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
        rows, columns = weight.shape
        levels = rng.integers(0, 1 << bits, weight.shape)
        words = streams(levels, bits)
        scale, bias = (
            torch.from_numpy(rng.uniform(low, high, (rows, columns // group)).astype(np.float32)).to(scales)
            for low, high in ((0.01, 0.03), (-0.3, 0.0))
        )
        base = name.removesuffix("weight")
        made = {name: torch.from_numpy(np.array(words, np.uint32)), f"{base}scales": scale, f"{base}biases": bias}
        wide, low = (np.repeat(part.float().numpy(), group, 1) for part in (scale, bias))
        return made, levels.astype(np.float32) * wide + low

    return quantize


def mlx(bits: int, group: int, **more: Any) -> dict[str, Any]:
    return {"group_size": group, "bits": bits, **more}


BLOCKS: dict[str, tuple[Quantize, dict[str, Any], dict[str, str]]] = {
    "mxfp4 of compressed-tensors": (mx("ct", 4), compressed("mxfp4-pack-quantized", 4, "float", 32), {"": "MXFP4"}),
    "mxfp4 of mlx": (mx("mlx", 4), mlx(4, 32, mode="mxfp4"), {"": "MXFP4"}),
    "nvfp4 of mlx": (nvfp4("mlx"), mlx(4, 16, mode="nvfp4"), {"": "NVFP4", "ffn_down": "F32"}),
}
"""Those that GGUF has blocks for; the type of each tensor, by a part of its name."""


CASES: dict[str, tuple[Quantize, dict[str, Any]]] = {
    "awq": (awq(32), AWQ),
    "awq bf16, one group": (awq(-1, torch.bfloat16), {**AWQ, "group_size": -1}),
    "awq of llm-awq's keys": (awq(16), {"w_bit": 4, "q_group_size": 16, "version": "GEMM"}),
    "bnb nf4": (four_bits("nf4", 64), BNB4),
    "bnb fp4": (four_bits("fp4", 128), BNB4),
    "bnb nested nf4": (four_bits("nf4", 64, 16), BNB4),
    "bnb nested, blocks over the ends of rows": (four_bits("nf4", 40, 7), BNB4),
    "bnb int8": (int8, BNB8),
    "modelopt nvfp4": (nvfp4("modelopt"), {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
    "ct nvfp4": (nvfp4("ct"), compressed("nvfp4-pack-quantized", 4, "float", 16)),
    "ct mxfp8": (mx("ct", 8), compressed("mxfp8-quantized", 8, "float", 32)),
    "ct packed int3": (packed_integers(3, 16, dense=False), compressed("pack-quantized", 3, "int", 16)),
    "ct packed int6": (packed_integers(6, 32, dense=False), compressed("pack-quantized", 6, "int", 32)),
    "ct packed int3, dense": (packed_integers(3, 16, dense=True), compressed("pack-quantized", 3, "int", 16)),
    "ct packed int5, dense": (packed_integers(5, 32, dense=True), compressed("pack-quantized", 5, "int", 32)),
    "bitnet": (ternary(False), {"quant_method": "bitnet"}),
    "bitnet, auto": (ternary(True), {"quant_method": "bitnet", "linear_class": "autobitlinear"}),
    "bitnet, online": (
        trained,
        {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online"},
    ),
    "mlx 4": (affine(4, 32), mlx(4, 32)),
    "mlx 4 f16": (affine(4, 16, torch.float16), mlx(4, 16, mode="affine")),
    "mlx 3": (affine(3, 32), mlx(3, 32)),
    "mlx 6": (affine(6, 32), mlx(6, 32)),
    "mlx 8, named by layer": (
        affine(8, 32),
        mlx(4, 64)
        | {
            f"model.layers.{n}.{part}": mlx(8, 32)
            for n in range(3)
            for part in (
                "self_attn.q_proj",
                "self_attn.k_proj",
                "self_attn.v_proj",
                "self_attn.o_proj",
                "mlp.gate_proj",
                "mlp.up_proj",
                "mlp.down_proj",
            )
        },
    ),
    "mlx mxfp8": (mx("mlx", 8), mlx(8, 32, mode="mxfp8")),
}
