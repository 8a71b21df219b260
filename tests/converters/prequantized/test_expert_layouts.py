"""Experts as programs that quantize lay them out, one by one or in stacks, mean what transformers' stacks do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from ggferry.converters.conversion.run import convert
from ggferry.formats.errors import MissingError, ShapeError, UnexpectedTensorError
from helpers.quantized_llama import Tensors, request
from helpers.tiny_models import make
from helpers.values import decoded

LEVELS = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
SIZES = {"hidden_size": 64, "intermediate_size": 64}
MATRICES = ("down_proj", "gate_up_proj")


def mxfp4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows as bytes of two codes, exponents of 32 columns, and what they mean."""
    groups = weight.reshape(*weight.shape[:-1], -1, 32)
    exponents = torch.ceil(torch.log2(groups.abs().amax(-1) / 6))
    codes = (groups / torch.exp2(exponents)[..., None]).unsqueeze(-1).sub(LEVELS).abs().argmin(-1)
    meaning = (LEVELS[codes] * torch.exp2(exponents)[..., None]).reshape(weight.shape)
    packed = codes.reshape(*weight.shape[:-1], -1, 2)
    return (packed[..., 0] | packed[..., 1] << 4).to(torch.uint8), (exponents + 127).to(torch.uint8), meaning


def one_by_one(stacks: Tensors, name: Callable[[str, int], str], apart: str | None) -> Tensors:
    """A linear layer for each expert; `apart`: how gate and up lie in what is split into them, None for not at all."""
    found = {}
    for key, stack in stacks.items():
        before, _, last = key.rpartition(".")
        if ".experts" not in key:
            found[key] = stack
            continue
        kind, matrix = ("bias" if last.endswith("_bias") else "weight"), last.removesuffix("_bias")
        for number, one in enumerate(stack):
            rows, place = (one if kind == "bias" else one.T), f"{before}.{name(matrix, number)}.{kind}"
            if matrix != "gate_up_proj" or apart is None:
                found[place] = rows
                continue
            half = len(rows) // 2
            parts = (rows[0::2], rows[1::2]) if apart == "alternating" else (rows[:half], rows[half:])
            for part, values in zip(("gate_proj", "up_proj"), parts, strict=True):
                found[place.replace("gate_up_proj", part)] = values
    return found


def written(folder: Path, config: Any, tensors: Tensors) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.clone().contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def floats(path: Path, source: Path, outtype: str = "f32") -> tuple[dict[str, tuple[str, np.ndarray]], Any]:
    receipt = convert(request(source, path, outtype, "fast"))[0].receipt
    return decoded(path), receipt


def same(found: dict[str, tuple[str, np.ndarray]], expected: dict[str, tuple[str, np.ndarray]]) -> None:
    assert found.keys() == expected.keys()
    for name, (_, values) in expected.items():
        assert np.array_equal(found[name][1] + np.float32(0), values + np.float32(0)), name


LAYOUTS: dict[str, tuple[str, Callable[[str, int], str], str | None]] = {
    "gpt-oss of llm-compressor": ("gpt-oss", lambda matrix, n: f"{n}.{matrix}", "alternating"),
    "gpt-oss of Quark": ("gpt-oss", lambda matrix, n: f"{n}.{matrix}", None),
    "gpt-oss of unsloth": ("gpt-oss", lambda matrix, n: f"{matrix}s.{n}", None),
    "gpt-oss of unsloth, its router plain": ("gpt-oss", lambda matrix, n: f"{matrix}s.{n}", None),
    "Llama 4 of transformers": ("llama4", lambda matrix, n: f"{n}.{matrix}", "halves"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", LAYOUTS)
def test_experts_one_by_one_are_those_of_the_stack(case: str, tmp_path: Path) -> None:
    """In floats, where the proof computes logits, and packed as MXFP4."""
    model, name, apart = LAYOUTS[case]
    make(model, tmp_path / "made", **SIZES)
    config = json.loads((tmp_path / "made" / "config.json").read_text())
    stacks, meaning = load_file(tmp_path / "made" / "model.safetensors"), {}
    for key, stack in stacks.items():
        expert = key.endswith(MATRICES)
        meaning[key] = mxfp4(stack.transpose(1, 2))[2].transpose(1, 2) if expert else stack
    expected, _ = floats(tmp_path / "stacks.gguf", written(tmp_path / "stacks", config, meaning))
    apart_tensors = one_by_one(meaning, name, apart)
    if case.endswith("unsloth"):
        apart_tensors = {key.replace(".router.", ".router.linear."): one for key, one in apart_tensors.items()}
    plain = written(tmp_path / "plain", config, apart_tensors)
    receipt = convert(request(plain, tmp_path / "plain.gguf", "f32", "full"))[0].receipt
    assert receipt["logits"]["max_error"] < receipt["logits"]["limit"]
    same(decoded(tmp_path / "plain.gguf"), expected)
    packed = {}
    for key, one in apart_tensors.items():
        if ".experts." in key and key.endswith(".weight"):
            packed[key], packed[f"{key}_scale"], _ = mxfp4(one)
        else:
            packed[key] = one
    own = {"weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}}
    settings = {"quant_method": "quark", "global_quant_config": own, "exclude": ["*router*", "lm_head"]}
    source = written(tmp_path / "packed", {**config, "quantization_config": settings}, packed)
    found, receipt = floats(tmp_path / "packed.gguf", source, "keep")
    same(found, expected)
    assert {kind for key, (kind, _) in found.items() if "_exps.weight" in key} == {"MXFP4"}
    assert receipt["second_reader"]["unread"] == ()


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gpt-oss", "llama4"])
@pytest.mark.parametrize("form", ["fp8", "fp8 of outputs", "nvfp4"])
def test_stacks_of_modelopt_are_computed_a_second_way(model: str, form: str, tmp_path: Path) -> None:
    """What ModelOpt makes of such stacks is compared in `test_schemes_by_their_libraries.py`."""
    make(model, tmp_path / "made", **SIZES)
    config = json.loads((tmp_path / "made" / "config.json").read_text())
    packed, meaning, generator = {}, {}, torch.Generator().manual_seed(4)
    for key, stack in load_file(tmp_path / "made" / "model.safetensors").items():
        packed[key] = meaning[key] = stack
        if not key.endswith(MATRICES) or stack.dim() != 3:
            continue
        packed[f"{key}_input_scale"] = torch.tensor(0.25)
        experts, inputs, outputs = stack.shape
        if form == "nvfp4":
            codes = torch.randint(0, 16, stack.shape, generator=generator)
            scale = torch.rand((experts, inputs // 16, outputs), generator=generator).to(torch.float8_e4m3fn)
            whole = torch.tensor(0.03)
            packed[key] = (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8)
            packed[f"{key}_weight_scale"], packed[f"{key}_weight_scale_2"] = scale, whole
            meaning[key] = LEVELS[codes] * (scale.float() * whole).repeat_interleave(16, 1)
            continue
        scale = stack.abs().amax(1) / 448 if "outputs" in form else stack.abs().amax() / 448
        spread = scale[:, None] if "outputs" in form else scale
        packed[key], packed[f"{key}_weight_scale"] = (stack / spread).to(torch.float8_e4m3fn), scale
        meaning[key] = packed[key].float() * spread
    settings = {"quant_method": "modelopt", "quant_algo": "NVFP4" if form == "nvfp4" else "FP8"}
    source = written(tmp_path / "packed", {**config, "quantization_config": settings}, packed)
    found, receipt = floats(tmp_path / "packed.gguf", source)
    same(found, floats(tmp_path / "plain.gguf", written(tmp_path / "plain", config, meaning))[0])
    assert receipt["second_reader"]["unread"] == () and receipt["second_reader"]["matrices"] >= 4
    broken = next(key for key in packed if key.endswith("proj_weight_scale"))
    packed[broken] = torch.ones(3, 3, 3).to(packed[broken].dtype)
    with pytest.raises(ShapeError):
        floats(tmp_path / "no.gguf", written(tmp_path / "broken", {**config, "quantization_config": settings}, packed))


@pytest.mark.parametrize("stated", [True, False])
def test_experts_in_blocks_say_themselves_what_they_are(stated: bool, tmp_path: Path) -> None:
    """gpt-oss with and without `quantization_config`."""
    make("gpt-oss", tmp_path / "made", **SIZES)
    config = json.loads((tmp_path / "made" / "config.json").read_text())
    packed, meaning = {}, {}
    for key, stack in load_file(tmp_path / "made" / "model.safetensors").items():
        packed[key] = meaning[key] = stack
        if key.endswith(MATRICES):
            codes, exponents, rows = mxfp4(stack.transpose(1, 2))
            del packed[key]
            packed[f"{key}_blocks"] = codes.reshape(*exponents.shape, 16)
            packed[f"{key}_scales"], meaning[key] = exponents, rows.transpose(1, 2)
    settings = {"quantization_config": {"quant_method": "mxfp4"}} if stated else {}
    found, _ = floats(tmp_path / "out.gguf", written(tmp_path / "packed", {**config, **settings}, packed), "keep")
    same(found, floats(tmp_path / "plain.gguf", written(tmp_path / "plain", config, meaning))[0])
    assert {kind for key, (kind, _) in found.items() if "_exps.weight" in key} == {"MXFP4"}
    packed["model.layers.0.mlp.experts.down_proj_blocks"] = packed["model.layers.0.mlp.experts.down_proj_blocks"].to(
        torch.int16
    )
    packed["model.layers.0.mlp.experts.down_proj_scales"] = packed["model.layers.0.mlp.experts.down_proj_scales"].to(
        torch.int16
    )
    with pytest.raises(ShapeError):
        floats(tmp_path / "no.gguf", written(tmp_path / "broken", {**config, **settings}, packed))


OF_OPENAI = {
    "input_layernorm.weight": "attn.norm.scale",
    "post_attention_layernorm.weight": "mlp.norm.scale",
    "self_attn.o_proj.": "attn.out.",
    "self_attn.sinks": "attn.sinks",
    "mlp.router.": "mlp.gate.",
    "mlp.experts.gate_up_proj_bias": "mlp.mlp1_bias",
    "mlp.experts.down_proj_bias": "mlp.mlp2_bias",
    "mlp.experts.gate_up_proj": "mlp.mlp1_weight",
    "mlp.experts.down_proj": "mlp.mlp2_weight",
    "model.layers.": "block.",
    "model.embed_tokens.weight": "embedding.weight",
    "model.norm.weight": "norm.scale",
    "lm_head.weight": "unembedding.weight",
}
"""Parts of transformers' names, and OpenAI's (openai/gpt-oss 0568dfc9, `gpt_oss/torch/model.py`)."""


def as_openai(tensors: Tensors, config: Any) -> tuple[Tensors, Any]:
    """A gpt-oss of transformers as OpenAI keeps it, its experts a row an output, and the configuration."""
    found: Tensors = {}
    for key, tensor in tensors.items():
        name = key
        for theirs, own in OF_OPENAI.items():
            name = name.replace(theirs, own)
        if key.endswith(MATRICES):
            tensor = tensor.transpose(1, 2)
        found[name] = tensor
    for layer in range(config["num_hidden_layers"]):
        for end in ("weight", "bias"):
            parts = [found.pop(f"block.{layer}.self_attn.{part}_proj.{end}") for part in "qkv"]
            found[f"block.{layer}.attn.qkv.{end}"] = torch.cat(parts)
    same_keys = ("num_hidden_layers", "vocab_size", "hidden_size", "intermediate_size", "head_dim", "sliding_window")
    own = {key: config[key] for key in (*same_keys, "num_attention_heads", "num_key_value_heads")}
    rotary = config["rope_parameters"]
    own |= {"num_experts": config["num_local_experts"], "experts_per_token": config["num_experts_per_tok"]}
    own |= {"swiglu_limit": 7.0, "rope_theta": rotary["rope_theta"], "rope_scaling_factor": rotary["factor"]}
    own |= {"rope_ntk_alpha": rotary["beta_slow"], "rope_ntk_beta": rotary["beta_fast"]}
    return found, own | {"initial_context_length": rotary["original_max_position_embeddings"]}


@pytest.mark.parametrize("quantized", [True, False])
def test_openai_s_own_layout_of_gpt_oss_is_read(quantized: bool, tmp_path: Path) -> None:
    """`original/`: the tensors and the keys are those of the file made of transformers' checkpoint."""
    make("gpt-oss", tmp_path / "made", **SIZES)
    config = json.loads((tmp_path / "made" / "config.json").read_text())
    stacks = load_file(tmp_path / "made" / "model.safetensors")
    context = config["rope_parameters"]["original_max_position_embeddings"] * config["rope_parameters"]["factor"]
    config |= {"max_position_embeddings": int(context), "rms_norm_eps": 1e-5}
    tensors, own = as_openai(stacks, config)
    for key in [key for key in tensors if quantized and key.endswith(("mlp1_weight", "mlp2_weight"))]:
        codes, exponents, rows = mxfp4(tensors.pop(key))
        tensors[f"{key}.blocks"], tensors[f"{key}.scales"] = codes.reshape(*exponents.shape, 16), exponents
        theirs = key.replace("block.", "model.layers.").replace("mlp1_weight", "experts.gate_up_proj")
        stacks[theirs.replace("mlp2_weight", "experts.down_proj")] = rows.transpose(1, 2)
    source = written(tmp_path / "original", own, tensors)
    found, receipt = floats(tmp_path / "out.gguf", source, "keep" if quantized else "f32")
    same(found, floats(tmp_path / "plain.gguf", written(tmp_path / "plain", config, stacks))[0])
    assert {kind for key, (kind, _) in found.items() if "exps.weight" in key} == {"MXFP4" if quantized else "F32"}
    assert receipt["second_reader"]["unread"] == ()
    keys = [
        {
            key: field.contents()
            for key, field in gguf.GGUFReader(tmp_path / f"{name}.gguf").fields.items()
            if key.startswith("gpt-oss.")
        }
        for name in ("out", "plain")
    ]
    assert keys[0] == keys[1]
    del own["num_experts"]
    with pytest.raises(MissingError, match="sizes"):
        floats(tmp_path / "no.gguf", written(tmp_path / "less", own, tensors))
    with pytest.raises(UnexpectedTensorError):
        floats(
            tmp_path / "no.gguf",
            written(tmp_path / "more", own | {"num_experts": 5}, tensors | {"block.0.x": stacks["lm_head.weight"]}),
        )
