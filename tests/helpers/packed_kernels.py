"""Pack a weight as AWQ for GEMV, AMD Quark, ModelOpt or a sparse matrix, and say what it means.

This shares nothing with the code that reads such weights; the libraries' own layers are in `fixtures/schemes`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from helpers.packed_fp8_gptq import BLOCKS as FP8_BLOCKS
from helpers.packed_further import E2M1
from helpers.quantized_llama import Quantize, Tensors

GEMM = (0, 2, 4, 6, 1, 3, 5, 7)
F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32


def words(values: np.ndarray, order: tuple[int, ...] = tuple(range(8))) -> torch.Tensor:
    """Eight neighbors along the last axis in an int32, four bits each."""
    packed = np.zeros((*values.shape[:-1], values.shape[-1] // 8), np.int64)
    for i, place in enumerate(order):
        packed |= (values[..., place::8].astype(np.int64) & 15) << 4 * i
    return torch.from_numpy(packed.astype(np.uint32).view(np.int32))


def numbers(rng: np.random.Generator, shape: tuple[int, ...], kind: torch.dtype = BF16) -> torch.Tensor:
    return torch.from_numpy(rng.uniform(0.01, 0.03, shape).astype(np.float32)).to(kind)


def gemv(group: int) -> Quantize:
    """AutoAWQ's `WQLinear_GEMV`: words along the row; zero points and scales beside it, padded to 32 groups here."""

    def quantize(name: str, weight: np.ndarray, rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
        rows, columns = weight.shape
        levels, zeros = rng.integers(0, 16, weight.shape), rng.integers(0, 16, (rows, columns // group))
        scale = numbers(rng, zeros.shape, F16)
        room = {32: 32, 64: 16}.get(group, 8)
        wide = np.zeros((rows, room), int)
        wide[:, : zeros.shape[1]] = zeros
        padded = torch.zeros(rows, room, dtype=F16)
        padded[:, : zeros.shape[1]] = scale
        base, spread = name.removesuffix("weight"), np.arange(columns) // group
        made = {f"{base}qweight": words(levels), f"{base}qzeros": words(wide), f"{base}scales": padded}
        return made, (levels - zeros[:, spread]).astype(np.float32) * scale.float().numpy()[:, spread]

    return quantize


def gemv_fast(group: int) -> Quantize:
    """AutoAWQ's `WQLinear_GEMVFast`, element by element: of four rows 64 columns each in turn, four to an int16."""

    def quantize(name: str, weight: np.ndarray, rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
        rows, columns = weight.shape
        levels = rng.integers(0, 16, weight.shape)
        packed = np.zeros((rows // 4, columns), np.int64)
        for row in range(rows):
            for column in range(columns):
                b, rest = divmod(column % 32, 8)
                a, c = divmod(rest, 2)
                at = column // 64 * 256 + row % 4 * 64 + column % 64 // 32 * 32 + 8 * a + 4 * c + b
                packed[row // 4, at // 4] |= int(levels[row, column]) << 4 * (at % 4)
        room = {32: 32, 64: 16}.get(group, 8)
        count, base, spread = columns // group, name.removesuffix("weight"), np.arange(columns) // group
        scale, low = torch.zeros(room, rows, dtype=F16), torch.zeros(room, rows, dtype=F16)
        scale[:count] = numbers(rng, (count, rows), F16)
        low[:count] = -numbers(rng, (count, rows), F16) * 8
        made = {
            f"{base}qweight": torch.from_numpy(packed.astype(np.uint16).view(np.int16)),
            f"{base}qzeros": low,
            f"{base}scales": scale,
        }
        wide, least = (part.float().numpy()[spread].T for part in (scale, low))
        return made, levels.astype(np.float32) * wide + least

    return quantize


def quark(kind: str, group: int = 0) -> Quantize:
    """Quark's integers: of groups, all lies as columns × rows."""

    def quantize(name: str, weight: np.ndarray, rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
        rows, columns = weight.shape
        low, high = {"int4": (-8, 8), "uint4": (0, 16), "int8": (-128, 128)}[kind]
        count = columns // group if group else 1
        levels, spread = rng.integers(low, high, weight.shape), np.arange(columns) // (group or columns)
        zeros = rng.integers(0, 16, (rows, count)) if kind == "uint4" else np.zeros((rows, count), int)
        scale = numbers(rng, (rows, count)) / (16 if kind == "int8" else 1)
        meaning = (levels - zeros[:, spread]).astype(np.float32) * scale.float().numpy()[:, spread]

        def stored(values: np.ndarray) -> torch.Tensor:
            return words(values, GEMM) if "int4" in kind else torch.from_numpy(values.astype(np.int8))

        if group:
            made = {name: stored(levels.T), f"{name}_zero_point": stored(zeros.T), f"{name}_scale": scale.T}
        else:
            made = {name: stored(levels), f"{name}_zero_point": stored(zeros[:, 0]), f"{name}_scale": scale[:, 0]}
        return made, meaning

    return quantize


def quark_mxfp4(name: str, weight: np.ndarray, rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
    """Two neighbors in a byte, and an exponent for 32 columns."""
    codes = rng.integers(0, 16, weight.shape)
    exponents = rng.integers(120, 125, (len(weight), weight.shape[1] // 32))
    packed = torch.from_numpy((codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8))
    made = {name: packed, f"{name}_scale": torch.from_numpy(exponents.astype(np.uint8))}
    wide = np.repeat(2.0 ** (exponents - 127), 32, 1).astype(np.float32)
    return made, np.array(E2M1, np.float32)[codes] * wide + np.float32(0)


def modelopt_int4(columns_scaled: bool) -> Quantize:
    """Two neighboring rows in a byte; `pre_quant_scale` multiplies what comes in, and so the columns."""

    def quantize(name: str, weight: np.ndarray, rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
        rows, columns = weight.shape
        levels, scale = rng.integers(-8, 8, weight.shape), numbers(rng, (rows, columns // 32))
        packed = (levels[::2] & 15 | (levels[1::2] & 15) << 4).astype(np.uint8)
        made = {name: torch.from_numpy(packed), f"{name}_scale": scale}
        meaning = levels.astype(np.float32) * np.repeat(scale.float().numpy(), 32, 1)
        if columns_scaled:
            factors = numbers(rng, (columns,)) * 50
            made[name.removesuffix("weight") + "pre_quant_scale"] = factors
            meaning = meaning * factors.float().numpy()
        return made, meaning

    return quantize


def sparse24(name: str, weight: np.ndarray, rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
    """Two of four neighbors, and a bit for each place."""
    rows, columns = weight.shape
    order = np.argsort(rng.random((rows, columns // 4, 4)), -1)
    mask = (order < 2).reshape(rows, columns)
    values = torch.from_numpy(weight[mask].reshape(rows, -1)).bfloat16()
    meaning = np.zeros_like(weight)
    meaning[mask] = values.float().numpy().reshape(-1)
    base = name.removesuffix("weight")
    made = {
        f"{base}compressed": values,
        f"{base}bitmask": torch.from_numpy(np.packbits(mask, axis=1, bitorder="little")),
        f"{base}shape": torch.tensor([[rows], [columns]]),
    }
    return made, meaning


def exponents_in_bytes(name: str, weight: np.ndarray, rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
    """FP8 in blocks of 32 rows and 32 columns, whose scales are bytes: MXFP8 beside FP8, as transformers reads it."""
    exponents = rng.integers(110, 118, (-(-len(weight) // 32), weight.shape[1] // 32))
    wide = np.repeat(np.repeat(2.0 ** (exponents - 127), 32, 0)[: len(weight)], 32, 1).astype(np.float32)
    levels = torch.from_numpy(weight / wide).clamp(-448, 448).to(torch.float8_e4m3fn)
    made = {name: levels, f"{name}_scale_inv": torch.from_numpy(exponents.astype(np.uint8))}
    return made, levels.float().numpy() * wide


def four_bits_in_int8(name: str, weight: np.ndarray, rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
    """MXFP4 among FP8, as DeepSeek V4 has it."""
    made, meaning = quark_mxfp4(name, weight, rng)
    scale = made[f"{name}_scale"].view(torch.float8_e8m0fnu)
    return {name: made[name].view(torch.int8), f"{name}_scale_inv": scale}, meaning


def awq_config(version: str, group: int) -> dict[str, Any]:
    return {"quant_method": "awq", "bits": 4, "group_size": group, "version": version, "zero_point": True}


def quark_config(dtype: str, scheme: str, **more: Any) -> dict[str, Any]:
    weight = {"dtype": dtype, "qscheme": scheme, "symmetric": True, **more}
    return {
        "quant_method": "quark",
        "global_quant_config": {"weight": {"dtype": "fp8_e5m2", "qscheme": "per_tensor"}},
        "layer_quant_config": {"*.mlp.*": {"weight": weight}, "model.*_proj": {"weight": weight}},
        "export": {"weight_format": "real_quantized", "pack_method": "reorder"},
        "exclude": ["lm_head"],
    }


def modelopt(algorithm: str) -> dict[str, Any]:
    return {"quant_method": "modelopt", "quant_algo": algorithm, "ignore": ["lm_head"]}


CASES: dict[str, tuple[Quantize, dict[str, Any], str]] = {
    "awq gemv": (gemv(32), awq_config("gemv", 32), "Q5_0"),
    "awq gemv, 64": (gemv(64), awq_config("GEMV", 64), "Q5_0"),
    "awq gemv_fast": (gemv_fast(64), awq_config("gemv_fast", 64), "Q4_1"),
    "quark int4": (quark("int4", 32), quark_config("int4", "per_group", ch_axis=1, group_size=32), "Q4_0"),
    "quark uint4": (quark("uint4", 64), quark_config("uint4", "per_group", ch_axis=1, group_size=64), "Q5_0"),
    "quark int4, rows": (quark("int4"), quark_config("int4", "per_channel", ch_axis=0), "Q4_0"),
    "quark int8, rows": (quark("int8"), quark_config("int8", "per_channel", ch_axis=0), "Q8_0"),
    "quark int8": (quark("int8", 32), quark_config("int8", "per_group", ch_axis=1, group_size=32), "Q8_0"),
    "quark mxfp4": (quark_mxfp4, quark_config("fp4", "per_group", group_size=32, scale_format="e8m0"), "MXFP4"),
    "modelopt int4": (modelopt_int4(False), modelopt("W4A16_AWQ"), "Q4_0"),
    "modelopt int4, columns": (modelopt_int4(True), modelopt("W4A16_AWQ"), ""),
    "sparse": (
        sparse24,
        {"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24-bitmask"}},
        "",
    ),
    "fp8, exponents": (exponents_in_bytes, FP8_BLOCKS, ""),
    "mxfp4 among fp8": (four_bits_in_int8, FP8_BLOCKS, "MXFP4"),
}
"""How a model of widths 64 and 128 is packed, its configuration, and the blocks that hold it; '' for none."""
