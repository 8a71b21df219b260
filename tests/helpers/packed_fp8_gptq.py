"""Pack a weight as FP8 or GPTQ, element by element, from the schemes' own descriptions, and say what it means.

This shares nothing with the code that reads such weights; torch is the witness of FP8.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from helpers.quantized_llama import Quantize, Tensors

# --- FP8 ---------------------------------------------------------------------------------------------------


def fp8(
    block: tuple[int, int] | None,
    per: str = "tensor",
    kind: Any = torch.float8_e4m3fn,
    end: str = "_scale_inv",
    scales: Any = torch.float32,
) -> Quantize:
    def quantize(name: str, weight: np.ndarray, rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
        rows, columns = weight.shape
        tall, wide = block or {"tensor": (rows, columns), "row": (1, columns)}[per]
        grid = np.zeros((-(-rows // tall), -(-columns // wide)), np.float32)
        spread = np.zeros_like(weight)
        for i in range(rows):
            for j in range(columns):
                patch = i // tall, j // wide
                if not grid[patch]:
                    grid[patch] = rng.uniform(0.0005, 0.002)
                    grid[patch] = torch.tensor(grid[patch]).to(scales).float()
                spread[i, j] = grid[patch]
        levels = torch.from_numpy(weight / spread).to(kind)
        scale = torch.from_numpy(grid).to(scales)
        if block is None and per == "tensor":
            scale = scale.reshape(())
        return {name: levels, f"{name}{end}": scale}, levels.float().numpy() * spread

    return quantize


BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [40, 24], "activation_scheme": "dynamic"}
STATIC = {"quant_method": "fp8", "activation_scheme": "static"}
FLOAT8 = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "quantization_status": "compressed",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True},
        }
    },
    "ignore": ["lm_head"],
}


# --- compressed-tensors ------------------------------------------------------------------------------------


def integers(bits: int, group: int | None, *, packed: bool, symmetric: bool = True, order: bool = False) -> Quantize:
    """Signed integers with bfloat16 scales; packed ones are stored with 2^(bits − 1) added."""

    def quantize(name: str, weight: np.ndarray, rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
        rows, columns = weight.shape
        low, high = -(1 << bits - 1), (1 << bits - 1) - 1
        count = columns // group if group else 1
        owner = np.arange(columns) // (group or columns)
        if order:
            rng.shuffle(owner)
        scale = torch.from_numpy(rng.uniform(0.01, 0.03, (rows, count)).astype(np.float32)).bfloat16()
        zero = rng.integers(-3, 4, (rows, count)) if not symmetric else np.zeros((rows, count), int)
        wide = scale.float().numpy()
        levels = np.clip(np.round(weight / wide[:, owner]) + zero[:, owner], low, high).astype(int)
        meaning = (levels - zero[:, owner]).astype(np.float32) * wide[:, owner]
        made: Tensors = {f"{name}_scale": scale}
        if packed:
            made[f"{name}_packed"] = torch.from_numpy(pack_rows(levels - low, bits))
            made[f"{name}_shape"] = torch.tensor([rows, columns])
            if not symmetric:
                made[f"{name}_zero_point"] = torch.from_numpy(pack_rows((zero - low).T, bits).T.copy())
        else:
            made[name] = torch.from_numpy(levels.astype(np.int8))
            if not symmetric:
                made[f"{name}_zero_point"] = torch.from_numpy(zero.astype(np.int8))
        if order:
            made[f"{name}_g_idx"] = torch.from_numpy(owner.astype(np.int32))
        return made, meaning

    return quantize


def pack_rows(values: np.ndarray, bits: int) -> np.ndarray:
    """Unsigned integers, 32 // bits in an int32, the first in the lowest bits; rows padded with zeros."""
    per = 32 // bits
    words = np.zeros((len(values), -(-values.shape[1] // per)), np.int64)
    for i, row in enumerate(values.tolist()):
        for j, value in enumerate(row):
            words[i, j // per] |= value << bits * (j % per)
    return words.astype(np.uint32).view(np.int32)


def pack_gptq(values: np.ndarray, bits: int) -> np.ndarray:
    """As AutoGPTQ's `QuantLinear.pack` does: 3 bits run on over the ends of words, 32 values in three."""
    if bits != 3:
        return pack_rows(values, bits)
    words = np.zeros((len(values), values.shape[1] // 32, 3), np.int64)
    for i, row in enumerate(values.tolist()):
        for n in range(words.shape[1]):
            part = row[n * 32 : n * 32 + 32]
            for j in range(10):
                words[i, n, 0] |= part[j] << 3 * j
                words[i, n, 1] |= part[11 + j] << 3 * j + 1
                words[i, n, 2] |= part[22 + j] << 3 * j + 2
            words[i, n, 0] |= part[10] << 30
            words[i, n, 1] |= part[10] >> 2 & 1 | part[21] << 31
            words[i, n, 2] |= part[21] >> 1 & 3
    return (words & 0xFFFFFFFF).astype(np.uint32).view(np.int32).reshape(len(values), -1)


def compressed(bits: int, group: int | None, form: str, symmetric: bool = True) -> dict[str, Any]:
    weights = {
        "num_bits": bits,
        "type": "int",
        "symmetric": symmetric,
        "strategy": "group" if group else "channel",
        "group_size": group,
    }
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups, "ignore": ["lm_head"]}


# --- GPTQ --------------------------------------------------------------------------------------------------


def gptq(
    bits: int,
    group: int,
    *,
    order: str = "plain",
    version: int = 1,
    scales: Any = torch.float16,
    symmetric: bool = False,
) -> Quantize:
    """qweight `(in × bits / 32, out)`, qzeros `(groups, out × bits / 32)`, scales `(groups, out)`, g_idx `(in,)`."""

    def quantize(name: str, weight: np.ndarray, rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
        rows, columns = weight.shape
        size = group if group > 0 else columns
        count = -(-columns // size)
        owner = np.arange(columns) // size
        if order == "desc_act":
            rng.shuffle(owner)
        top = (1 << bits) - 1
        scale = torch.from_numpy(rng.uniform(0.01, 0.03, (count, rows)).astype(np.float32)).to(scales)
        zero = np.full((count, rows), 1 << bits - 1) if symmetric else rng.integers(0, top + 1, (count, rows))
        wide = scale.float().numpy()
        levels = np.clip(np.round(weight.T / wide[owner]) + zero[owner], 0, top).astype(int)
        stored = (zero - 1) % (top + 1) if version == 1 else zero
        made = {
            "qweight": torch.from_numpy(pack_gptq(levels.T, bits).T.copy()),
            "qzeros": torch.from_numpy(pack_gptq(stored, bits)),
            "scales": scale,
        }
        if order != "none":
            made["g_idx"] = torch.from_numpy(owner.astype(np.int32))
        meaning = (wide[owner] * (levels - zero[owner]).astype(np.float32)).T
        base = name.removesuffix("weight")
        return {base + key: value for key, value in made.items()}, meaning

    return quantize


def gptq_config(bits: int, group: int, **more: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": False, "desc_act": False, **more}


CASES: dict[str, tuple[Quantize, dict[str, Any]]] = {
    "fp8 blocks": (fp8((40, 24)), BLOCKS),
    "fp8 blocks, scales that are powers of two": (fp8((40, 24), scales=torch.float8_e8m0fnu), BLOCKS),
    "fp8 tensor": (fp8(None), STATIC),
    "fp8 tensor, e5m2": (fp8(None, kind=torch.float8_e5m2, end="_scale"), STATIC),
    "fbgemm": (fp8(None, "row", end="_scale"), {"quant_method": "fbgemm_fp8"}),
    "modelopt": (fp8(None, end="_scale"), {"quant_method": "modelopt", "quant_algo": "FP8"}),
    "ct float": (fp8(None, "row", end="_scale", scales=torch.bfloat16), FLOAT8),
    "ct int8 channel": (integers(8, None, packed=False), compressed(8, None, "int-quantized")),
    "ct int8 asymmetric": (integers(8, None, packed=False, symmetric=False), compressed(8, None, "naive-quantized")),
    "ct int4 group": (integers(4, 16, packed=True), compressed(4, 16, "pack-quantized")),
    "ct int4 asymmetric": (integers(4, 32, packed=True, symmetric=False), compressed(4, 32, "pack-quantized", False)),
    "ct int8 packed": (integers(8, 32, packed=True), compressed(8, 32, "pack-quantized")),
    "ct int4 actorder": (integers(4, 16, packed=True, order=True), compressed(4, 16, "pack-quantized")),
    "gptq 4": (gptq(4, 32), gptq_config(4, 32)),
    "gptq 2": (gptq(2, 16), gptq_config(2, 16)),
    "gptq 3": (gptq(3, 32), gptq_config(3, 32)),
    "gptq 3 desc_act, v2": (
        gptq(3, 32, order="desc_act", version=2),
        gptq_config(3, 32, desc_act=True, checkpoint_format="gptq_v2"),
    ),
    "gptq 8": (gptq(8, 32), gptq_config(8, 32)),
    "gptq 4 desc_act": (gptq(4, 16, order="desc_act"), gptq_config(4, 16, desc_act=True)),
    "gptq 4 one group": (gptq(4, -1), gptq_config(4, -1)),
    "gptq 4 no g_idx": (gptq(4, 32, order="none"), gptq_config(4, 32)),
    "gptq 4 v2": (gptq(4, 32, version=2), gptq_config(4, 32, checkpoint_format="gptq_v2")),
    "gptq 4 bf16": (gptq(4, 32, scales=torch.bfloat16), gptq_config(4, 32)),
}
