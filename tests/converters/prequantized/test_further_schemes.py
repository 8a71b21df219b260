"""Schemes of AWQ, bitsandbytes and others. The packing is written here element by element from the schemes' own
descriptions and shares nothing with the code that reads it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.convert import convert
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.model_graph.rows import values_of
from ggferry.converters.understand import understand
from ggferry.formats.errors import (
    BadValueError,
    GgferryError,
    InconsistentError,
    MissingError,
    OutOfRangeError,
    RefusedError,
    ShapeError,
    UnsupportedError,
)
from ggferry.formats.readers.gguf import open_gguf
from helpers.quantized_llama import Quantize, Tensors, check_file, gguf_name, model, request, write

# --- AWQ ---------------------------------------------------------------------------------------------------


def awq(group: int, scales: torch.dtype = torch.float16) -> Quantize:
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
        zero = rng.integers(0, 16, (count, rows))
        wide = scale.float().numpy()
        levels = np.clip(np.round(weight.T / wide[owner]) + zero[owner], 0, 15).astype(int)
        base = name.removesuffix("weight")
        made = {f"{base}qweight": pack(levels), f"{base}qzeros": pack(zero), f"{base}scales": scale}
        return made, (wide[owner] * (levels - zero[owner]).astype(np.float32)).T

    return quantize


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}

# --- bitsandbytes ------------------------------------------------------------------------------------------

NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
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
        name: torch.from_numpy(levels), f"{base}SCB": torch.from_numpy(greatest),
        f"{base}weight_format": torch.tensor(0, dtype=torch.uint8),
    }  # fmt: skip
    return made, (torch.from_numpy(levels) * torch.from_numpy(greatest).view(-1, 1) * 7.874015718698502e-3).numpy()


BNB4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
BNB8 = {"quant_method": "bitsandbytes", "load_in_8bit": True}

CASES: dict[str, tuple[Quantize, dict[str, Any]]] = {
    "awq": (awq(32), AWQ),
    "awq bf16, one group": (awq(-1, torch.bfloat16), {**AWQ, "group_size": -1}),
    "awq of llm-awq's keys": (awq(16), {"w_bit": 4, "q_group_size": 16, "version": "GEMM"}),
    "bnb nf4": (four_bits("nf4", 64), BNB4),
    "bnb fp4": (four_bits("fp4", 128), BNB4),
    "bnb nested nf4": (four_bits("nf4", 64, 16), BNB4),
    "bnb nested, blocks over the ends of rows": (four_bits("nf4", 40, 7), BNB4),
    "bnb int8": (int8, BNB8),
}


@pytest.mark.parametrize("case", CASES)
def test_f32_is_what_the_scheme_means(case: str, tmp_path: Path) -> None:
    """Bit for bit, through the layouts, and the forward pass of both sides agrees."""
    quantize, config = CASES[case]
    tensors, meaning = model(quantize)
    result = convert(request(write(tmp_path / "in", tensors, config), tmp_path / "out.gguf"))
    check_file(tmp_path / "out.gguf", meaning, "F32")
    assert result.receipt["logits"]["relative_rms"] < 2e-6
    records = {record["name"]: record for record in result.receipt["tensors"]}
    for name in meaning:
        record = records[gguf_name(name)]
        assert record["grade"] == "repacked" and record["max_error"] == 0 and record["dequantized_from"]
    assert any("quantized already" in note for note in result.receipt["notes"])


@pytest.mark.parametrize("case", ["awq", "bnb nested nf4", "bnb int8"])
def test_integers_are_not_quantized_again_unasked(case: str, tmp_path: Path) -> None:
    quantize, config = CASES[case]
    asked = request(write(tmp_path / "in", model(quantize)[0], config), tmp_path / "out.gguf", "q8_0", "fast")
    with pytest.raises(RefusedError, match=r"blk.*already.*--allow-requantize"):
        convert(asked)
    convert(replace(asked, options=Options(outtype="q8_0", allow_requantize=True)))
    assert open_gguf(str(tmp_path / "out.gguf")).tensors["blk.0.attn_q.weight"].type.name == "Q8_0"


@pytest.mark.parametrize("case", CASES)
def test_any_rows_are_the_same_rows(case: str, tmp_path: Path) -> None:
    """Pieces that begin and end anywhere: within words, bytes and blocks."""
    quantize, config = CASES[case]
    tensors, meaning = model(quantize)
    checkpoint = open_checkpoint(str(write(tmp_path / "in", tensors, config)))
    graph = understand(checkpoint)
    for name in ("model.layers.1.mlp.up_proj.weight", "model.layers.2.mlp.down_proj.weight"):
        ref = graph.checkpoint.tensors[name]
        for start, stop in ((0, 1), (5, 6), (7, 23), (63, 64), (0, 64)):
            assert np.array_equal(values_of(graph.checkpoint, ref, start, stop), meaning[name][start:stop])
    checkpoint.close()


def _without(end: str) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        del tensors[next(name for name in tensors if name.endswith(end))]

    return change


def _with(end: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        name = next(name for name in tensors if name.endswith(end))
        tensors[name] = make(tensors[name].clone())

    return change


def _nan(tensor: torch.Tensor) -> torch.Tensor:
    tensor.view(-1)[0] = torch.nan
    return tensor


def _text(old: str, new: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """A tensor of bytes with another text."""
    return lambda tensor: torch.tensor(list(bytes(tensor.tolist()).replace(old.encode(), new.encode()))).byte()


STATE = "bitsandbytes__nf4"
BROKEN: list[tuple[str, Callable[[Tensors], None], type[GgferryError]]] = [
    ("awq", _without(".qzeros"), MissingError),
    ("awq", _without(".scales"), MissingError),
    ("awq", _with(".qzeros", lambda t: t[:, :-1]), ShapeError),
    ("awq", _with(".scales", lambda t: t[:-1]), ShapeError),
    ("awq", _with(".qweight", lambda t: t.long()), UnsupportedError),
    ("awq", _with(".scales", _nan), BadValueError),
    ("bnb nf4", _without("absmax"), MissingError),
    ("bnb nf4", _without("quant_map"), MissingError),
    ("bnb nf4", _without(".down_proj.weight"), MissingError),
    ("bnb nf4", _with("absmax", lambda t: t[:-1]), ShapeError),
    ("bnb nf4", _with("absmax", lambda t: t.byte()), UnsupportedError),
    ("bnb nf4", _with("quant_map", lambda t: t[:-1]), ShapeError),
    ("bnb nf4", _with("quant_map", _nan), BadValueError),
    ("bnb nf4", _with(".down_proj.weight", lambda t: t[1:]), ShapeError),
    ("bnb nf4", _with(STATE, _text("{", "[")), InconsistentError),
    ("bnb nf4", _with(STATE, lambda t: torch.tensor(list(b"[" * 60000)).byte()), InconsistentError),
    ("bnb nf4", _with(STATE, lambda t: torch.zeros(1 << 17).byte()), ShapeError),
    ("bnb nf4", _with(STATE, _text('"blocksize": 64', '"blocksize": 0')), InconsistentError),
    ("bnb nf4", _with(STATE, _text("[64, 64]", "[64, -64]")), InconsistentError),
    ("bnb nf4", _with(STATE, _text("[64, 64]", "[64, 66]")), ShapeError),
    ("bnb nested nf4", _without("nested_quant_map"), MissingError),
    ("bnb nested nf4", _with("nested_absmax", lambda t: t[:-1]), ShapeError),
    ("bnb nested nf4", _with(STATE, _text("nested_offset", "offset")), InconsistentError),
    ("bnb int8", _without("SCB"), MissingError),
    ("bnb int8", _with("SCB", lambda t: t[:-1]), ShapeError),
    ("bnb int8", _with("weight_format", lambda t: t + 1), UnsupportedError),
]


@pytest.mark.parametrize("number", range(len(BROKEN)))
def test_what_contradicts_itself_is_refused(number: int, tmp_path: Path) -> None:
    case, change, error = BROKEN[number]
    quantize, config = CASES[case]
    tensors, _ = model(quantize)
    change(tensors)
    with pytest.raises(error):
        convert(request(write(tmp_path / "in", tensors, config), tmp_path / "out.gguf", level="fast"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


@pytest.mark.parametrize(
    ("case", "changes", "error"),
    [
        ("awq", {"version": "gemv"}, UnsupportedError),
        ("awq", {"version": "llm-awq"}, UnsupportedError),
        ("awq", {"bits": 3}, UnsupportedError),
        ("awq", {"group_size": 0}, OutOfRangeError),
        ("awq", {"group_size": "32"}, OutOfRangeError),
        ("awq", {"group_size": 64}, ShapeError),
    ],
)
def test_other_variants_are_refused(
    case: str, changes: dict[str, Any], error: type[GgferryError], tmp_path: Path
) -> None:
    quantize, config = CASES[case]
    source = write(tmp_path / "in", model(quantize)[0], config | changes)
    with pytest.raises(error):
        convert(request(source, tmp_path / "out.gguf", level="fast"))
