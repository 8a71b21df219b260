"""Pack a weight as GPTQ of March 2023, HQQ, torchao, Quanto and EXL2 do, element by element, and say what it means.

This shares nothing with the code that reads such weights.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch

from helpers.packed_fp8_gptq import pack_gptq, pack_rows
from helpers.quantized_llama import LINE, Quantize, Tensors

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


# --- HQQ ---------------------------------------------------------------------------------------------------

HQQ = {"quant_method": "hqq", "quant_config": {}, "skip_modules": ["lm_head"]}
HQQ_WORDS = {8: ("8bit_u8", 1), 4: ("4bit_u8", 2), 2: ("2bit_u8", 4), 1: ("1bit_u8", 8), 3: ("3bit_32", 10)}


def hqq(bits: int, group: int, axis: int = 1, *, whole: bool = False, as_float: bool = False) -> Quantize:
    """W_q: of the matrix as (groups × columns) or, for axis 0, (rows × groups), rows far apart in one byte."""

    def quantize(name: str, weight: np.ndarray, rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
        laid = weight.reshape(-1, group) if axis == 1 else weight.reshape(group, -1)
        top, count = (1 << bits) - 1, weight.size // group
        form = (count, 1) if axis == 1 else (1, count)
        scale = rng.uniform(0.01, 0.03, form).astype(np.float16)
        zero = np.full(form, top / 2) + rng.uniform(-0.4, 0.4, form)
        zero = (np.round(zero) if whole else zero).astype(np.float16)
        wide, middle = scale.astype(np.float32), zero.astype(np.float32)
        levels = np.clip(np.round(laid / wide + middle), 0, top).astype(int)
        word, per = HQQ_WORDS[bits]
        step = -(-len(levels) // per)
        packed = np.zeros((step, levels.shape[1]), np.int64)
        for row in range(len(levels)):
            part, place = divmod(row, step)
            packed[place] |= levels[row] << bits * (per - 1 - part)
        stored = torch.from_numpy(packed.astype(np.int32 if bits == 3 else np.uint8))
        base = name.removesuffix("weight")
        made = {
            "W_q": stored.view(torch.float16) if as_float else stored,
            "scale": torch.from_numpy(scale),
            "zero": torch.from_numpy(zero),
            "nbits": torch.tensor(bits, dtype=torch.int32),
            "group_size": torch.tensor(group, dtype=torch.int32),
            "axis": torch.tensor(axis, dtype=torch.int32),
            "shape": torch.tensor(weight.shape),
            "packing": torch.tensor([ord(letter) for letter in word], dtype=torch.uint8),
            "view_as_float": torch.tensor(int(as_float), dtype=torch.uint8),
            "quant_zero": torch.tensor(0, dtype=torch.uint8),
            "quant_scale": torch.tensor(0, dtype=torch.uint8),
        }
        meaning = ((levels.astype(np.float32) - middle) * wide).reshape(weight.shape)
        return {base + key: value for key, value in made.items()}, meaning

    return quantize


# --- torchao -----------------------------------------------------------------------------------------------

TORCHAO = {"quant_method": "torchao", "quant_type": {"default": {"_type": "IntxWeightOnlyConfig", "_data": {}}}}


def line(name: str, kind: str, **data: Any) -> Tensors:
    """What the file's metadata say of a tensor."""
    return {LINE + name: torch.tensor(list(json.dumps({"_type": kind, "_data": data}).encode()), dtype=torch.uint8)}


def torchao(bits: int, group: int, *, zeros: bool = False) -> Quantize:
    """`_weight_qdata` in int8, `_weight_scale` and `_weight_zero_point` (rows × groups)."""

    def quantize(name: str, weight: np.ndarray, rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
        columns = weight.shape[1]
        low, high, owner = -(1 << bits - 1), (1 << bits - 1) - 1, np.arange(columns) // group
        scale = torch.from_numpy(rng.uniform(0.01, 0.03, (len(weight), columns // group))).bfloat16()
        zero = rng.integers(low // 2, high // 2 + 1, scale.shape) if zeros else np.zeros(scale.shape, int)
        wide = scale.float().numpy()
        levels = np.clip(np.round(weight / wide[:, owner]) + zero[:, owner], low, high).astype(int)
        base = name.removesuffix("weight")
        made = {
            f"{base}_weight_qdata": torch.from_numpy(levels.astype(np.int8)),
            f"{base}_weight_scale": scale,
            f"{base}_weight_zero_point": torch.from_numpy(zero.astype(np.int8)),
        }
        own = {"target_dtype": {"_type": "torch.dtype", "_data": f"int{bits}"}, "block_size": [1, group]}
        meaning = (levels - zero[:, owner]).astype(np.float32) * wide[:, owner]
        return made | line(name, "IntxUnpackedToInt8Tensor", **own), meaning

    return quantize


def torchao_int4(group: int, *, zeros: bool = True) -> Quantize:
    """`_weight_qdata` two in a byte, the first in the lower half; scales and zeros (groups × rows), bfloat16."""

    def quantize(name: str, weight: np.ndarray, rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
        rows, columns = weight.shape
        owner = np.arange(columns) // group
        scale = torch.from_numpy(rng.uniform(0.02, 0.03, (columns // group, rows))).bfloat16()
        zero = torch.from_numpy(rng.uniform(-0.02, 0.02, scale.shape) * zeros).bfloat16()
        wide, middle = scale.float().numpy()[owner].T, zero.float().numpy()[owner].T
        levels = np.clip(np.round((weight - middle) / wide), -8, 7).astype(int)
        packed = np.zeros((rows, columns // 2), np.uint8)
        for i in range(rows):
            for j in range(columns):
                packed[i, j // 2] |= (levels[i, j] & 15) << 4 * (j % 2)
        base = name.removesuffix("weight")
        made = {
            f"{base}_weight_qdata": torch.from_numpy(packed.view(np.int8)),
            f"{base}_weight_scale": scale,
            f"{base}_weight_zero_point": zero,
        }
        own = {"block_size": [1, group], "shape": [rows, columns]}
        return made | line(name, "Int4Tensor", **own), levels.astype(np.float32) * wide + middle

    return quantize


# --- Quanto ------------------------------------------------------------------------------------------------


def quanto(name: str, weight: np.ndarray, rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
    """`weight._data` int8, `weight._scale` (rows × 1), and two scales for activations."""
    scale = torch.from_numpy(rng.uniform(0.001, 0.003, (len(weight), 1))).bfloat16()
    wide = scale.float().numpy()
    levels = np.clip(np.round(weight / wide), -128, 127)
    base = name.removesuffix("weight")
    made = {
        f"{name}._data": torch.from_numpy(levels.astype(np.int8)),
        f"{name}._scale": scale,
        f"{base}input_scale": torch.tensor(1.0),
        f"{base}output_scale": torch.tensor(1.0),
    }
    return made, levels.astype(np.float32) * wide


def quanto_groups(bits: int, size: int, *, whole: bool = False) -> Quantize:
    """`weight._data._data` (groups / levels in a byte × size), `weight._scale`, `weight._shift` (groups × 1)."""

    def quantize(name: str, weight: np.ndarray, rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
        laid, top = weight.reshape(-1, size), (1 << bits) - 1
        scale = torch.from_numpy(rng.uniform(0.01, 0.02, (len(laid), 1))).half()
        shift = torch.from_numpy(rng.integers(0, top + 1, (len(laid), 1)).astype(np.uint8))
        shift = shift if whole else scale * shift
        wide, moved = scale.float().numpy(), shift.float().numpy()
        levels = np.clip(np.round(laid / wide + (moved if whole else moved / wide)), 0, top)
        per = 8 // bits
        high = -(-len(laid) // per)
        packed = np.zeros((high, size), np.uint8)
        for number, row in enumerate(levels.astype(np.uint8)):
            packed[number % high] |= row << number // high * bits
        made = {f"{name}._data._data": torch.from_numpy(packed), f"{name}._scale": scale, f"{name}._shift": shift}
        levels = levels.astype(np.float32)
        return made, (wide * (levels - moved) if whole else wide * levels - moved).reshape(weight.shape)

    return quantize


# --- EXL2 --------------------------------------------------------------------------------------------------


def exl2(groups: tuple[tuple[int, int], ...], *, shuffled: bool = True) -> Quantize:
    """q_weight `(words, out)` in groups of (bits, columns), of which the last takes what is left."""

    def quantize(name: str, weight: np.ndarray, rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
        rows, columns = weight.shape
        order = rng.permutation(columns) if shuffled else np.arange(columns)
        inverse = np.argsort(order)
        meaning, done, stated, words, codes, greatest = np.empty_like(weight), 0, [], [], [], []
        for bits, size in (*groups, groups[-1], groups[-1]):
            own = order[done : done + size]
            if not len(own):
                break
            code = rng.integers(0, 16, rows)
            largest = np.float16(rng.uniform(0.2, 0.4))
            scale = ((code + 1) ** 2).astype(np.float16) * (largest / np.float16(256))
            half = 1 << bits - 1
            levels = np.clip(np.round(weight[:, own] / scale[:, None].astype(np.float32)), -half, half - 1)
            meaning[:, own] = levels.astype(np.float32) * scale[:, None].astype(np.float32)
            packed = np.zeros((rows, -(-len(own) * bits // 32)), np.uint64)
            for j in range(len(own)):
                value = (levels[:, j] + half).astype(np.uint64) << np.uint64(j * bits % 32)
                packed[:, j * bits // 32] |= value & np.uint64(0xFFFFFFFF)
                if j * bits % 32 + bits > 32:
                    packed[:, j * bits // 32 + 1] |= value >> np.uint64(32)
            stated += [bits, sum(len(part) for part in words)]
            words.append(packed.T)
            codes.append(pack_rows(code[None], 4)[0])
            greatest.append(largest)
            done += len(own)
        base = name.removesuffix("weight")
        made = {
            "q_weight": torch.from_numpy(np.concatenate(words).astype(np.uint32).view(np.int32)),
            "q_scale": torch.from_numpy(np.stack(codes)),
            "q_scale_max": torch.tensor(np.array(greatest)),
            "q_groups": torch.tensor(stated, dtype=torch.int16),
            "q_invperm": torch.from_numpy(inverse.astype(np.int32)),
        }
        return {base + key: value for key, value in made.items()}, meaning

    return quantize


# --- AQLM --------------------------------------------------------------------------------------------------


def aqlm(count: int, bits: int, wide: int = 8, tall: int = 1) -> Quantize:
    """codes `(out groups, in groups, codebooks)`, codebooks of random vectors, scales of a group of rows."""

    def quantize(name: str, weight: np.ndarray, rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
        down, across, base = len(weight) // tall, weight.shape[1] // wide, name.removesuffix("weight")
        books = rng.normal(0, 0.5, (count, 1 << bits, tall, wide)).astype(np.float16)
        codes = rng.integers(0, 1 << bits, (down, across, count))
        scales = rng.uniform(0.05, 0.1, (down, 1, 1, 1)).astype(np.float16)
        meaning = np.zeros_like(weight)
        for i, j in np.ndindex(down, across):
            group = sum(books[k, codes[i, j, k]].astype(np.float32) for k in range(count))
            meaning[i * tall :, j * wide :][:tall, :wide] = group * np.float32(scales[i, 0, 0, 0])
        signed = np.where(codes >= 1 << bits - 1, codes - (1 << bits), codes)
        made = {
            f"{base}codes": torch.from_numpy(signed.astype(np.int8 if bits <= 8 else np.int16)),
            f"{base}codebooks": torch.from_numpy(books),
            f"{base}scales": torch.from_numpy(scales),
        }
        return made, meaning

    return quantize


def _aqlm_config(count: int, bits: int, wide: int, tall: int) -> dict[str, Any]:
    sizes = {"in_group_size": wide, "out_group_size": tall, "num_codebooks": count, "nbits_per_codebook": bits}
    return {"quant_method": "aqlm", **sizes, "linear_weights_not_to_quantize": []}


CASES: dict[str, tuple[Quantize, dict[str, Any] | None, str]] = {
    "gptq of March 2023": (products(4, scales=torch.float16), None, "Q4_1"),
    "hqq 4": (hqq(4, 32), HQQ, "Q4_1"),
    "hqq 4, whole zeros": (hqq(4, 32, whole=True), HQQ, "Q5_0"),
    "hqq 4, axis 0": (hqq(4, 32, 0), HQQ, ""),
    "hqq 4, as float": (hqq(4, 32, as_float=True), HQQ, "Q4_1"),
    "hqq 3": (hqq(3, 32), HQQ, "Q4_1"),
    "hqq 3, axis 0": (hqq(3, 64, 0), HQQ, ""),
    "hqq 8": (hqq(8, 64), HQQ, ""),
    "hqq 1, groups beyond a row": (hqq(1, 128), HQQ, ""),
    "exl2": (exl2(((6, 32), (4, 32), (3, 32))), {"quant_method": "exl2"}, ""),
    "exl2 2, 5, 8": (exl2(((8, 32), (5, 32), (2, 32))), None, ""),
    "exl2 in order": (exl2(((5, 32), (3, 32)), shuffled=False), None, "Q5_0"),
    "aqlm 1x11": (aqlm(1, 11), _aqlm_config(1, 11, 8, 1), ""),
    "aqlm 2x8": (aqlm(2, 8), _aqlm_config(2, 8, 8, 1), ""),
    "aqlm 3x5, groups of rows": (aqlm(3, 5, 4, 2), _aqlm_config(3, 5, 4, 2), ""),
    "quanto": (quanto, None, "Q8_0"),
    "quanto 4": (quanto_groups(4, 32), None, "Q4_1"),
    "quanto 4, whole shifts": (quanto_groups(4, 32, whole=True), {"quant_method": "quanto"}, "Q5_0"),
    "quanto 2": (quanto_groups(2, 16), None, ""),
    "torchao 4": (torchao(4, 32), TORCHAO, "Q4_0"),
    "torchao 4 with zeros": (torchao(4, 32, zeros=True), TORCHAO, "Q5_0"),
    "torchao 8": (torchao(8, 32), TORCHAO, "Q8_0"),
    "torchao int4": (torchao_int4(32), TORCHAO, "Q4_1"),
    "torchao int4, symmetric": (torchao_int4(32, zeros=False), TORCHAO, "Q4_0"),
}
"""How it is packed, its configuration, and the type of the blocks that hold it, '' where none does."""
