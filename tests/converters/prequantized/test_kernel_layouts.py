"""Layouts that programs made for their kernels: AWQ for GEMV, AMD Quark, ModelOpt's integers, sparse matrices, stacks
of FP8.

The packing is written element by element (`helpers/packed_kernels.py`); layers of the libraries themselves are in
`test_schemes_by_their_libraries.py`; stacks are compared with transformers' own dequantization.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.model_graph.rows import values_of
from ggferry.converters.prequantized.recognize import dequantized
from ggferry.formats.errors import (
    GgferryError,
    InconsistentError,
    MissingError,
    OutOfRangeError,
    RefusedError,
    ShapeError,
    UnsupportedError,
)
from helpers.llama_api import encoded_and_decoded
from helpers.packed_fp8_gptq import BLOCKS as FP8_BLOCKS
from helpers.packed_kernels import CASES
from helpers.quantized_llama import (
    Tensors,
    changed,
    check_file,
    gguf_name,
    in_gguf_order,
    model,
    request,
    without,
    write,
)
from helpers.third_party_fixtures import FIXTURES
from helpers.tiny_models import make
from helpers.values import decoded, dequantized_values

FF, WORDS = 128, 512
VOCABULARY = FIXTURES / "tokenizers" / "spm_bpe"
INTEGERS = [case for case in CASES if "fp8" not in case and case not in ("sparse", "quark mxfp4")]


def source(folder: Path, case: str, change: Callable[[Tensors], None] | None = None, **settings: Any) -> Path:
    quantize, config, _ = CASES[case]
    tensors, _ = model(quantize, FF, WORDS)
    if change is not None:
        change(tensors)
    return write(folder, tensors, {**config, **settings}, intermediate_size=FF, vocab_size=WORDS)


@pytest.mark.parametrize("case", CASES)
def test_any_rows_are_what_was_packed(case: str, tmp_path: Path) -> None:
    """Bit for bit, also rows that begin within a word; and the blocks are those that hold them."""
    kind, meaning = CASES[case][2], model(CASES[case][0], FF, WORDS)[1]
    path = source(tmp_path / "in", case)
    names = [f"model.layers.{n}.mlp.{part}_proj.weight" for n, part in enumerate(("up", "gate", "down"))]
    for name, (values, found, held) in dequantized_values(path, *names).items():
        assert found == kind
        for made in (values, *([] if held is None else [held])):
            assert np.array_equal(made + np.float32(0), meaning[name] + np.float32(0))
    checkpoint = dequantized(open_checkpoint(str(path)))
    for name in names:
        ref = checkpoint.tensors[name]
        for start, stop in ((5, 6), (7, 23), (63, 64)) if not ref.type.quantized else ():
            assert np.array_equal(values_of(checkpoint, ref, start, stop), meaning[name][start:stop])
    checkpoint.close()


@pytest.mark.sampled(5)
@pytest.mark.parametrize("case", CASES)
def test_a_model_is_converted_and_computed_a_second_way(case: str, tmp_path: Path) -> None:
    kind, meaning = CASES[case][2], model(CASES[case][0], FF, WORDS)[1]
    receipt = convert(request(source(tmp_path / "in", case), tmp_path / "out.gguf", "keep", "fast"))[0].receipt
    assert receipt["second_reader"]["unread"] == () and receipt["second_reader"]["matrices"] == 21
    found = decoded(tmp_path / "out.gguf")
    grades = {record["name"]: record["grade"] for record in receipt["tensors"]}
    for name, weight in meaning.items():
        type_of, values = found[gguf_name(name)]
        expected = in_gguf_order(name, weight)
        assert type_of == (kind or "BF16")
        if kind:
            assert np.array_equal(values + np.float32(0), expected + np.float32(0))
            assert grades[gguf_name(name)] == "repacked"
        else:
            rounded = torch.from_numpy(np.ascontiguousarray(expected)).bfloat16().float().numpy()
            assert np.array_equal(values, rounded)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES)
def test_llama_cpp_computes_the_same_with_the_blocks(case: str, tmp_path: Path) -> None:
    path = source(tmp_path / "in", case)
    shutil.copy(VOCABULARY / "tokenizer.model", path)
    logits, tokens = {}, [1, 17, 300, 42, 5, 99, 250, 8]
    for name, outtype in (("blocks", "keep"), ("floats", "f32")):
        out = tmp_path / f"{name}.gguf"
        convert(Request(str(path), str(out), Options(outtype=outtype), level="fast"))
        logits[name] = encoded_and_decoded(str(out), [], tokens, tmp_path)
    difference = np.linalg.norm(logits["blocks"] - logits["floats"]) / np.linalg.norm(logits["floats"])
    assert np.isfinite(logits["blocks"]).all() and difference < 0.06  # llama.cpp rounds activations to 8 bits


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", INTEGERS)
def test_integers_are_not_quantized_again_unasked(case: str, tmp_path: Path) -> None:
    path = source(tmp_path / "in", case)
    asked = request(path, tmp_path / "out.gguf", "iq4_nl", "fast")
    with pytest.raises(RefusedError, match=r"blk.*already.*--allow-requantize"):
        convert(asked)
    convert(replace(asked, options=Options(outtype="iq4_nl", allow_requantize=True)))
    plain = request(path, tmp_path / "plain.gguf", "keep", "fast")
    convert(replace(plain, options=Options(outtype="keep", dequantize=True)))
    assert {kind for name, (kind, _) in decoded(tmp_path / "plain.gguf").items() if "ffn" in name} <= {"BF16", "F32"}


def test_sparse_floats_are_floats(tmp_path: Path) -> None:
    """Nothing in them was quantized, so that they may be."""
    path = source(tmp_path / "in", "sparse")
    convert(request(path, tmp_path / "out.gguf", "q8_0", "fast"))
    convert(request(path, tmp_path / "keep.gguf", "f32", "fast"))
    check_file(tmp_path / "keep.gguf", model(CASES["sparse"][0], FF, WORDS)[1], "F32")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES)
def test_parts_of_a_matrix_may_be_in_several_files(case: str, tmp_path: Path) -> None:
    path = source(tmp_path / "in", case)
    convert(request(path, tmp_path / "one.gguf", "keep", "none"))
    tensors, _ = model(CASES[case][0], FF, WORDS)
    (path / "model.safetensors").unlink()
    files = {}
    for number in range(3):
        name = f"model-0000{number + 1}-of-00003.safetensors"
        part = {key: tensors[key].contiguous() for key in sorted(tensors)[number::3]}
        save_file(part, path / name)
        files |= dict.fromkeys(part, name)
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    convert(request(path, tmp_path / "several.gguf", "keep", "fast"))
    assert (tmp_path / "one.gguf").read_bytes() == (tmp_path / "several.gguf").read_bytes()


STACKS: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
    "blocks": ((4, 2, 3), torch.float32),
    "exponents": ((4, 2, 3), torch.float8_e8m0fnu),
    "bytes": ((4, 2, 3), torch.uint8),
    "rows": ((4, 64, 1), torch.float32),
    "experts": ((4, 1, 1), torch.bfloat16),
    "all": ((1, 1, 1), torch.float32),
}


@pytest.mark.parametrize("case", STACKS)
def test_a_stack_of_fp8_is_what_transformers_makes_of_it(case: str, tmp_path: Path) -> None:
    """Experts of Qwen 3 VL and others: `gate_up_proj` and `gate_up_proj_scale_inv`."""
    shape, kind = STACKS[case]
    random = torch.Generator().manual_seed(2)
    levels = torch.randn((4, 64, 96), generator=random).to(torch.float8_e4m3fn)
    scale = torch.exp2(torch.randint(-8, 0, shape, generator=random).float())
    stored = (scale.log2() + 127).to(torch.uint8) if kind == torch.uint8 else scale.to(kind)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    save(tmp_path, {name: levels, f"{name}_scale_inv": stored}, {**FP8_BLOCKS, "weight_block_size": [32, 32]})
    own = Fp8Dequantize(None)  # type: ignore[no-untyped-call]
    wide = stored.expand(4, 1, 1) if case == "all" else stored
    expected = torch.stack(
        [own._dequantize_one(one, two, torch.float32) for one, two in zip(levels, wide, strict=True)]
    )
    values, _, _ = dequantized_values(tmp_path, name)[name]
    assert np.array_equal(values.reshape(4, 64, 96), expected.numpy())


def test_a_stack_of_fbgemm_has_a_scale_for_each_output(tmp_path: Path) -> None:
    """Llama 4 keeps experts as inputs × outputs: transformers' `FbgemmFp8Llama4TextExperts`."""
    random = torch.Generator().manual_seed(3)
    up = torch.randn((2, 16, 24), generator=random).to(torch.float8_e4m3fn)
    down = torch.randn((2, 24, 24), generator=random).to(torch.float8_e4m3fn)
    scales = torch.rand((2, 1, 24), generator=random), torch.rand((2, 24, 1), generator=random)
    base = "model.layers.0.feed_forward.experts"
    tensors = {f"{base}.gate_up_proj": up, f"{base}.gate_up_proj_scale": scales[0]}
    tensors |= {f"{base}.down_proj": down, f"{base}.down_proj_scale": scales[1]}
    save(tmp_path, tensors, {"quant_method": "fbgemm_fp8"})
    found = dequantized_values(tmp_path, f"{base}.gate_up_proj", f"{base}.down_proj")
    for name, levels, scale in (("gate_up", up, scales[0]), ("down", down, scales[1].mT)):
        expected = (levels.float() * scale).numpy()
        assert np.array_equal(found[f"{base}.{name}_proj"][0].reshape(levels.shape), expected)


def save(folder: Path, tensors: Tensors, settings: dict[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "quantization_config": settings}))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")


BROKEN: list[tuple[str, Callable[[Tensors], None], type[GgferryError]]] = [
    ("awq gemv", without(".qzeros"), MissingError),
    ("awq gemv", changed(".scales", lambda t: t[:, :-1]), ShapeError),
    ("awq gemv", changed(".qzeros", lambda t: t[:-1]), ShapeError),
    ("awq gemv_fast", without(".scales"), MissingError),
    ("awq gemv_fast", changed(".qzeros", lambda t: t.int()), UnsupportedError),
    ("awq gemv_fast", changed(".qweight", lambda t: t[:, :-32]), ShapeError),
    ("awq gemv_fast", changed(".scales", lambda t: t[:-1]), ShapeError),
    ("quark int4", changed("weight_scale", lambda t: t[:-1]), ShapeError),
    ("quark int4", changed("weight_zero_point", lambda t: t[:-1]), ShapeError),
    ("quark int4", changed("weight_scale", lambda t: t.double()), UnsupportedError),
    ("quark int4", changed(".up_proj.weight", lambda t: t.byte()), UnsupportedError),
    ("quark int4, rows", changed("weight_zero_point", lambda t: t[:-1]), ShapeError),
    ("quark int8, rows", changed("weight_scale", lambda t: t[:-1]), ShapeError),
    ("quark mxfp4", changed("weight_scale", lambda t: t[:, :-1]), ShapeError),
    ("modelopt int4", without("weight_scale"), MissingError),
    ("modelopt int4", changed("weight_scale", lambda t: t[:-1]), ShapeError),
    ("modelopt int4, columns", changed("pre_quant_scale", lambda t: t[:-1]), ShapeError),
    ("sparse", without(".bitmask"), MissingError),
    ("sparse", without(".shape"), MissingError),
    ("sparse", changed(".bitmask", lambda t: t[:, :-1]), ShapeError),
    ("sparse", changed(".bitmask", lambda t: t | 255), InconsistentError),
    ("sparse", changed(".shape", lambda t: -t), InconsistentError),
    ("sparse", changed(".compressed", lambda t: t[:, :-1]), ShapeError),
    ("mxfp4 among fp8", changed("_scale_inv", lambda t: t[:-1]), ShapeError),
    ("mxfp4 among fp8", changed("_scale_inv", lambda t: t.float()), UnsupportedError),
]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("number", range(len(BROKEN)))
def test_what_contradicts_itself_is_refused(number: int, tmp_path: Path) -> None:
    case, change, error = BROKEN[number]
    with pytest.raises(error):
        convert(request(source(tmp_path / "in", case, change), tmp_path / "out.gguf", level="fast"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


@pytest.mark.parametrize(
    ("case", "settings", "error"),
    [
        ("awq gemv", {"group_size": 16}, OutOfRangeError),
        ("awq gemv", {"version": "marlin"}, UnsupportedError),
        ("quark int4", {"layer_quant_config": {}, "global_quant_config": {}}, UnsupportedError),
        ("quark int4", {"layer_quant_config": {}}, UnsupportedError),
        ("quark int4", {"layer_quant_config": {f"*{n}": {} for n in range(65)}}, UnsupportedError),
        ("quark int4", {"algo_config": [{"name": "rotation", "r4": True}]}, UnsupportedError),
        ("quark int4", {"algo_config": [{"name": "quarot"}]}, UnsupportedError),
        ("quark int4", {"export": {"weight_format": "fake_quantized"}}, UnsupportedError),
        ("modelopt int4", {"quant_algo": "W4A8_AWQ"}, UnsupportedError),
    ],
)
def test_other_variants_are_refused(
    case: str, settings: dict[str, Any], error: type[GgferryError], tmp_path: Path
) -> None:
    with pytest.raises(error):
        convert(request(source(tmp_path / "in", case, **settings), tmp_path / "out.gguf", level="fast"))


def in_blocks(weight: torch.Tensor, ends: tuple[str, str], four: bool) -> tuple[Tensors, torch.Tensor]:
    """FP8 in blocks of 8 × 8 with exponents, or MXFP4 in int8 where `four`; by the ends of their names, and their
    meaning as transformers has it."""
    rows, columns = weight.shape[-2:]
    tall, wide = (1, 32) if four else (8, 8)
    blocks = weight.reshape(-1, rows // tall, tall, columns // wide, wide)
    scale = torch.exp2(torch.ceil(torch.log2(blocks.abs().amax((2, 4)) / (6 if four else 448))))
    if four:
        codes = torch.randint(
            0, 256, (*weight.shape[:-1], columns // 2), generator=torch.Generator().manual_seed(columns)
        )
        levels = codes.to(torch.uint8).view(torch.int8)
    else:
        levels = (blocks / scale[:, :, None, :, None]).reshape(weight.shape).to(torch.float8_e4m3fn)
    scale = scale.reshape(*weight.shape[:-2], rows // tall, columns // wide)
    own = Fp8Dequantize(None)  # type: ignore[no-untyped-call]
    parts = zip(levels.reshape(-1, *levels.shape[-2:]), scale.reshape(-1, *scale.shape[-2:]), strict=True)
    meaning = torch.stack([own._dequantize_one(one, two, torch.float32) for one, two in parts]).reshape(weight.shape)
    return {ends[0]: levels, ends[1]: scale.to(torch.float8_e8m0fnu)}, meaning


def floats(path: Path) -> dict[str, tuple[str, np.ndarray]]:
    """Type and values of each tensor but those of whole numbers."""
    return {
        tensor.name: (tensor.tensor_type.name, gguf.dequantize(tensor.data, tensor.tensor_type))
        for tensor in gguf.GGUFReader(path).tensors
        if tensor.tensor_type.name != "I32"
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3vlmoe", "deepseek v4"])
def test_models_of_stacked_and_of_mixed_experts_are_what_transformers_makes_of_them(name: str, tmp_path: Path) -> None:
    """Qwen 3 VL's stacks, and DeepSeek V4's own names: `.scale`, and experts of four bits."""
    v4 = name == "deepseek v4"
    make(name, tmp_path / "in", **({"hidden_size": 64, "moe_intermediate_size": 64} if v4 else {}))
    config = json.loads((tmp_path / "in" / "config.json").read_text())
    plain, packed, count = {}, {}, 0
    for key, value in load_file(tmp_path / "in" / "model.safetensors").items():
        expert = ".experts." in key and "shared" not in key
        fits = value.dim() > 1 and value.shape[-1] % 8 == value.shape[-2] % 8 == 0
        if not fits or not (expert or ".attn.w" in key):
            plain[key] = packed[key] = value
            continue
        base, four = key.removesuffix(".weight"), expert and v4
        ends = (key, f"{base}.scale") if v4 else (key, f"{key}_scale_inv")
        made, plain[key] = in_blocks(value.float(), ends, four)
        packed |= made
        count += 1
    assert count > 3
    for folder, tensors in (("plain", plain), ("packed", packed)):
        (tmp_path / folder / "m").mkdir(parents=True)
        own = {"quant_method": "fp8", "weight_block_size": [8, 8]}
        text = json.dumps({**config, **({"quantization_config": own} if folder == "packed" else {})})
        (tmp_path / folder / "m" / "config.json").write_text(text)
        save_file(
            {key: value.contiguous() for key, value in tensors.items()}, tmp_path / folder / "m" / "model.safetensors"
        )
        convert(request(tmp_path / folder / "m", tmp_path / f"{folder}.gguf", "f32", "fast"))
    expected, found = (floats(tmp_path / f"{folder}.gguf") for folder in ("plain", "packed"))
    assert expected.keys() == found.keys()
    for key, (_, values) in expected.items():
        assert np.array_equal(found[key][1] + np.float32(0), values + np.float32(0)), key
    convert(request(tmp_path / "packed" / "m", tmp_path / "keep.gguf", "keep", "fast"))
    kinds = {kind for key, (kind, _) in floats(tmp_path / "keep.gguf").items() if "_exps" in key}
    assert kinds == ({"MXFP4"} if v4 else {"F32"})
