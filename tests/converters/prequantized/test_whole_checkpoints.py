"""Checkpoints as libraries of today write them, whole: what no layer alone would show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from ggferry.converters.conversion.run import convert
from helpers.packed_fp8_gptq import BLOCKS, compressed, fp8, gptq, gptq_config, integers
from helpers.packed_further import affine
from helpers.packed_others import hqq
from helpers.quantized_llama import Quantize, Tensors, check_file, model, request, write
from helpers.tiny_models import make
from helpers.values import decoded


def int8_rows(name: str, weight: np.ndarray, rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
    """LLM.int8() as bitsandbytes saves it: `SCB` `(rows,)`, here 127 times a float16 number, so that nothing rounds."""
    scale = (np.abs(weight).max(1, keepdims=True) / 127).astype(np.float16).astype(np.float32)
    levels = np.clip(np.round(weight / scale), -127, 127).astype(np.int8)
    base = name.removesuffix("weight")
    made = {name: torch.from_numpy(levels), f"{base}SCB": torch.from_numpy(scale.reshape(-1) * 127)}
    return made | {f"{base}weight_format": torch.tensor(0, dtype=torch.uint8)}, levels * scale


def written(folder: Path, config: Any, tensors: Tensors) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.clone().contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


MLX = {"format": "mlx"}
CONV1D: dict[str, tuple[Quantize, Any, str, float]] = {
    "bitsandbytes": (int8_rows, {"quant_method": "bitsandbytes", "load_in_8bit": True}, "Q8_0", 2e-7),
    "GPTQ": (gptq(4, 32), gptq_config(4, 32), "Q5_0", 0),
}


@pytest.mark.slow
@pytest.mark.parametrize("scheme", CONV1D)
def test_a_layer_made_of_conv1d_has_a_row_for_each_output(scheme: str, tmp_path: Path) -> None:
    """`Bnb4bitQuantize` of transformers and GPTQ's `pack` transpose GPT-2's matrices, one of which is square."""
    quantize, settings, blocks, bound = CONV1D[scheme]
    make("gpt2", tmp_path / "made", n_embd=64, n_inner=96, n_head=8)
    config = json.loads((tmp_path / "made" / "config.json").read_text())
    packed: Tensors = {}
    meaning: Tensors = {}
    rng = np.random.default_rng(5)
    for name, values in load_file(tmp_path / "made" / "model.safetensors").items():
        packed[name] = meaning[name] = values
        if values.dim() == 2 and ".h." in name:
            del packed[name]
            tensors, rows = quantize(name, values.T.numpy(), rng)
            packed |= tensors
            meaning[name] = torch.from_numpy(np.ascontiguousarray(rows.T, np.float32))
    source = written(tmp_path / "packed", {**config, "quantization_config": settings}, packed)
    receipt = convert(request(source, tmp_path / "packed.gguf", "keep"))[0].receipt
    convert(request(written(tmp_path / "plain", config, meaning), tmp_path / "plain.gguf", "f32", "fast"))
    found, expected = decoded(tmp_path / "packed.gguf"), decoded(tmp_path / "plain.gguf")
    assert found.keys() == expected.keys()
    for name, (_, values) in expected.items():
        assert np.abs(found[name][1] - values).max() <= bound * np.abs(values).max(), name
    kinds = {kind for name, (kind, _) in found.items() if name.endswith(("attn_qkv.weight", "attn_output.weight"))}
    assert kinds == {blocks}
    assert receipt["logits"]["relative_rms"] < 1e-3 and receipt["second_reader"]["unread"] == ()


KIMI = {
    **compressed(4, 32, "pack-quantized"),
    "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"],
    "quantization_status": "compressed",
}
"""Of Kimi-K2-Thinking's config.json."""


def kimi(folder: Path, place: str) -> tuple[Path, Path]:
    """A folder whose experts alone are packed, among BF16, and one of the same values."""
    make("deepseek v3", folder / "made", hidden_size=64, moe_intermediate_size=64)
    config = json.loads((folder / "made" / "config.json").read_text()) | {"dtype": "bfloat16"}
    packed: Tensors = {}
    meaning: Tensors = {}
    rng, quantize = np.random.default_rng(5), integers(4, 32, packed=True)
    for name, values in load_file(folder / "made" / "model.safetensors").items():
        packed[name] = meaning[name] = values if name.endswith("bias") else values.bfloat16()
        if ".mlp.experts." in name:
            del packed[name]
            tensors, rows = quantize(name, values.numpy(), rng)
            packed |= tensors
            meaning[name] = torch.from_numpy(rows)
    plain = {**config, "model_type": "kimi_k2"}
    if place == "beside":
        return written(folder / "packed", {**plain, "quantization_config": KIMI}, packed), written(
            folder / "plain", plain, meaning
        )
    whole = {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "dtype": "bfloat16"}
    text = {**plain, "quantization_config": KIMI} if place == "within" else plain
    top = {**whole, "text_config": text} | ({"quantization_config": KIMI} if place == "above" else {})
    named = [{f"language_model.{name}": values for name, values in each.items()} for each in (packed, meaning)]
    return written(folder / "packed", top, named[0]), written(
        folder / "plain", {**whole, "text_config": plain}, named[1]
    )


@pytest.mark.slow
@pytest.mark.parametrize("place", ["beside", "within", "above"])
def test_kimis_experts_become_q4_0(place: str, tmp_path: Path) -> None:
    """K2's configuration, and K2.5's, which may stand within `text_config`: every value, whatever `ignore` lists."""
    source, plain = kimi(tmp_path, place)
    receipt = convert(request(source, tmp_path / "packed.gguf", "keep"))[0].receipt
    convert(request(plain, tmp_path / "plain.gguf", "f32", "fast"))
    found, expected = decoded(tmp_path / "packed.gguf"), decoded(tmp_path / "plain.gguf")
    assert found.keys() == expected.keys()
    for name, (_, values) in expected.items():
        assert np.array_equal(found[name][1] + np.float32(0), values + np.float32(0)), name
    assert {kind for name, (kind, _) in found.items() if "_exps.weight" in name} == {"Q4_0"}
    assert {kind for name, (kind, _) in found.items() if "_shexp.weight" in name} == {"BF16"}
    assert receipt["second_reader"]["unread"] == ()


LISTS: dict[str, Any] = {
    "names with and without prefixes": {"modules_to_not_convert": ["lm_head", "model.layers.0.mlp", "q_proj"]},
    "regular expressions": {"ignored_layers": ["re:.*lm_head", "re:.*self_attn.*"]},
    "globs": {"ignored_layers": ["*self_attn*", "language_model.*"]},
    "what is no pattern": {"modules_to_not_convert": ["(((", 3, None]},
    "no list": {"modules_to_not_convert": "lm_head"},
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", LISTS)
def test_tensors_say_what_is_quantized_and_lists_do_not(case: str, tmp_path: Path) -> None:
    """Attention is BF16, the rest FP8 with its scales, also where a list names it: without its scale a weight of FP8
    means nothing. Programs that load such a model disagree: transformers makes a plain layer of it and leaves the scale
    out, with a warning, vLLM ends."""
    quantize = fp8((40, 24))

    def only_feed_forward(name: str, values: np.ndarray, rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
        if ".mlp." in name:
            return quantize(name, values, rng)
        plain = torch.from_numpy(values).bfloat16()
        return {name: plain}, plain.float().numpy()

    tensors, meaning = model(only_feed_forward)
    source = write(tmp_path / "in", tensors, {**BLOCKS, **LISTS[case]})
    receipt = convert(request(source, tmp_path / "out.gguf", "f32", "fast"))[0].receipt
    check_file(tmp_path / "out.gguf", meaning, "F32")
    assert receipt["second_reader"]["unread"] == ()


def in_blocks(form: str) -> Quantize:
    """FP8, or packed integers of four bits, with a scale for 128 × 128, or 32 × 32: `(rows, 1)` of a narrow matrix."""
    tall, wide = (128, 128) if form == "float" else (32, 32)

    def quantize(name: str, values: np.ndarray, rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
        rows, columns = values.shape
        down, across = -(-rows // tall), -(-columns // wide)
        scale = torch.from_numpy(rng.uniform(0.01, 0.03, (down, across)).astype(np.float32)).bfloat16()
        spread = scale.float().repeat_interleave(tall, 0)[:rows].repeat_interleave(wide, 1)[:, :columns].numpy()
        if form == "float":
            codes = torch.from_numpy(values / spread).to(torch.float8_e4m3fn)
            return {name: codes, f"{name}_scale": scale}, codes.float().numpy() * spread
        levels = np.clip(np.round(values / spread), -8, 7).astype(np.int64)
        words = ((levels + 8).reshape(rows, -1, 8) << 4 * np.arange(8)).sum(-1).astype(np.uint32).view(np.int32)
        made = {f"{name}_packed": torch.from_numpy(words), f"{name}_shape": torch.tensor([rows, columns])}
        return made | {f"{name}_scale": scale}, (levels * spread).astype(np.float32)

    return quantize


@pytest.mark.parametrize("form", ["float", "int"])
def test_blocks_wider_than_a_matrix_are_read_a_second_time(form: str, tmp_path: Path) -> None:
    """compressed-tensors' strategy 'block', of floats and of packed integers."""
    size, bits, layout = (128, 8, "float-quantized") if form == "float" else (32, 4, "pack-quantized")
    weights = {"num_bits": bits, "type": form, "strategy": "block", "block_structure": [size, size]}
    settings = compressed(bits, None, layout)
    settings["config_groups"]["group_0"]["weights"] = weights
    tensors, meaning = model(in_blocks(form), ff=160)
    source = write(tmp_path / "in", tensors, settings, intermediate_size=160)
    receipt = convert(request(source, tmp_path / "out.gguf", "f32", "fast"))[0].receipt
    check_file(tmp_path / "out.gguf", meaning, "F32")
    assert receipt["second_reader"]["unread"] == ()


MODELOPT = {"quant_algo": "FP8_PB_WO", "kv_cache_quant_algo": None, "exclude_modules": ["lm_head", "*self_attn*"]}
PLACES: dict[str, tuple[Any, Any]] = {
    "hf_quant_config.json alone": (None, {"producer": {"name": "modelopt"}, "quantization": MODELOPT}),
    "its text in config.json": ({"producer": {"name": "modelopt"}, "quantization": MODELOPT}, None),
    "vLLM's name": ({"quant_method": "modelopt_mixed", **MODELOPT}, None),
    "today's": ({"quant_method": "modelopt", **MODELOPT}, None),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", PLACES)
def test_modelopts_settings_are_found_where_they_stand(case: str, tmp_path: Path) -> None:
    """vLLM reads all of these; blocks of 128 are wider than the matrices."""
    settings, beside = PLACES[case]
    tensors, meaning = model(in_blocks("float"), ff=160)
    source = write(tmp_path / "in", tensors, settings, intermediate_size=160)
    if beside is not None:
        (source / "hf_quant_config.json").write_text(json.dumps(beside))
    receipt = convert(request(source, tmp_path / "out.gguf", "f32", "fast"))[0].receipt
    check_file(tmp_path / "out.gguf", meaning, "F32")
    assert receipt["second_reader"]["unread"] == ()


def test_compressed_tensors_with_an_underscore_is_the_same(tmp_path: Path) -> None:
    """As vLLM normalizes the name."""
    tensors, meaning = model(integers(4, 32, packed=True))
    settings = {**compressed(4, 32, "pack-quantized"), "quant_method": "compressed_tensors"}
    convert(request(write(tmp_path / "in", tensors, settings), tmp_path / "out.gguf", "f32", "fast"))
    check_file(tmp_path / "out.gguf", meaning, "F32")


def test_a_pt_file_of_modules_is_read_a_second_time(tmp_path: Path) -> None:
    """hqq's `qmodel.pt` has a dictionary for each module, whose settings are values."""
    tensors, meaning = model(hqq(4, 32))
    source = write(tmp_path / "in", tensors, None)
    (source / "model.safetensors").unlink()
    modules: dict[str, dict[str, Any]] = {}
    for name, values in tensors.items():
        base, _, last = name.rpartition(".")
        plain = values.tolist() if last in ("nbits", "group_size", "axis") else values
        modules.setdefault(base, {})[last] = torch.Size(values.tolist()) if last == "shape" else plain
    torch.save(modules, source / "qmodel.pt")
    receipt = convert(request(source, tmp_path / "out.gguf", "f32", "fast"))[0].receipt
    check_file(tmp_path / "out.gguf", meaning, "F32")
    assert receipt["second_reader"]["unread"] == () and receipt["second_reader"]["matrices"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True])
def test_gpt_2_of_mlx_lm_has_its_matrices_transposed(packed: bool, tmp_path: Path) -> None:
    """As `sanitize` of mlx-lm 0.32.2, `models/gpt2.py`, writes it, in floats and in groups, embeddings, too."""
    make("gpt2", tmp_path / "made", n_embd=64, n_inner=256, n_head=8)
    config = json.loads((tmp_path / "made" / "config.json").read_text())
    tensors: Tensors = {}
    meaning: Tensors = {}
    rng, quantize = np.random.default_rng(5), affine(4, 32)
    for name, values in load_file(tmp_path / "made" / "model.safetensors").items():
        meaning[name] = values
        theirs, linear = name.replace("transformer.", "model."), values.dim() == 2 and ".h." in name
        own = values.T if linear else values
        tensors[theirs] = own
        if packed and values.dim() == 2:
            del tensors[theirs]
            made, rows = quantize(theirs, own.numpy(), rng)
            tensors |= made
            found = torch.from_numpy(rows)
            meaning[name] = found.T if linear else found
    settings = {"quantization": {"group_size": 32, "bits": 4}} if packed else {}
    folder = written(tmp_path / "mlx", {**config, **settings}, tensors)
    save_file({key: one.clone().contiguous() for key, one in tensors.items()}, folder / "model.safetensors", MLX)
    receipt = convert(request(folder, tmp_path / "mlx.gguf", "f32"))[0].receipt
    convert(request(written(tmp_path / "plain", config, meaning), tmp_path / "plain.gguf", "f32", "fast"))
    got, expected = decoded(tmp_path / "mlx.gguf"), decoded(tmp_path / "plain.gguf")
    assert got.keys() == expected.keys()
    for name, (_, values) in expected.items():
        assert np.array_equal(got[name][1], values), name
    assert receipt["logits"]["relative_rms"] < 2e-6 and receipt["second_reader"]["unread"] == ()
    convert(request(folder, tmp_path / "keep.gguf", "keep", "fast"))
    kinds = {kind for name, (kind, _) in decoded(tmp_path / "keep.gguf").items() if name.endswith("attn_qkv.weight")}
    assert kinds == ({"Q4_1"} if packed else {"F32"})
