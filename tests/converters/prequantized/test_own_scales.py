"""NVFP4 with a scale of the whole matrix: blocks of GGUF, and llama.cpp's '.scale' and '.input_scale' beside them.

llama.cpp itself says where it multiplies by such a scale: its logits on the blocks are those on the floats.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion.verify import reverify
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.prequantized.own_scales import APPLIED
from ggferry.formats.errors import ShapeError, VerificationError
from ggferry.support.progress import silent
from helpers.llama_api import encoded_and_decoded
from helpers.packed_further import compressed, nvfp4
from helpers.quantized_llama import Tensors, gguf_name, in_gguf_order, model, request, write
from helpers.third_party_fixtures import FIXTURES

MODELOPT = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
COMPRESSED = compressed("nvfp4-pack-quantized", 4, "float", 16)
FF, VOCAB = 128, 512
CLOSE = 0.06
TOKENS = [1, 17, 300, 42, 5, 99, 250, 8]

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 16},
    "mistral3": {
        "architectures": ["Ministral3ForCausalLM"],
        "model_type": "ministral3",
        "head_dim": 16,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 2.0,
            "original_max_position_embeddings": 64,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.1,
        },
    },
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
}
"""What each architecture's config.json says; the tensors are those of LLaMA."""


def checkpoint(folder: Path, family: str, form: str = "modelopt") -> tuple[Path, dict[str, np.ndarray]]:
    tensors, meaning = model(nvfp4(form), FF, VOCAB)
    rng = np.random.default_rng(2)
    for n in range(3):
        own = f"model.layers.{n}.self_attn"
        if family == "qwen3":
            tensors |= {f"{own}.{name}_norm.weight": torch.ones(16).bfloat16() for name in "qk"}
        if family == "qwen2":
            for name, rows in {"q": 64, "k": 32, "v": 32}.items():
                tensors[f"{own}.{name}_proj.bias"] = torch.tensor(rng.normal(0, 0.1, rows)).bfloat16()
    head = tensors.pop("lm_head.weight").float().numpy()
    made, meaning["lm_head.weight"] = nvfp4(form)("lm_head.weight", head, rng)
    settings = MODELOPT if form == "modelopt" else COMPRESSED
    more = {"vocab_size": VOCAB, "intermediate_size": FF, **FAMILIES[family]}
    source = write(folder, tensors | made, settings, **more)
    shutil.copy(FIXTURES / "tokenizers" / "spm_bpe" / "tokenizer.model", source)
    return source, meaning


def converted(source: Path, out: Path, outtype: str = "keep", level: str = "fast", **more: Any) -> Any:
    return convert(Request(str(source), str(out), Options(outtype=outtype, **more), level=level))[0]


def tensors_of(path: Path) -> dict[str, Any]:
    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


def logits(path: Path, folder: Path) -> np.ndarray:
    return encoded_and_decoded(str(path), [], TOKENS, folder)


def apart(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("form", ["modelopt", "ct"])
def test_blocks_and_scales_are_those_of_the_source(form: str, tmp_path: Path) -> None:
    source, meaning = checkpoint(tmp_path / "in", "llama", form)
    result = converted(source, tmp_path / "out.gguf", level="full")
    found = tensors_of(tmp_path / "out.gguf")
    for name, weight in meaning.items():
        own = "output.weight" if name.startswith("lm_head") else gguf_name(name)
        scale, given = (found[own.replace("weight", end)].data for end in ("scale", "input_scale"))
        assert found[own].tensor_type.name == "NVFP4" and scale.shape == given.shape == (1,)
        assert given[0] == np.float32(0.5 if form == "modelopt" else 2.0)
        values = gguf.dequantize(found[own].data, found[own].tensor_type).reshape(weight.shape) * scale
        assert np.allclose(values, in_gguf_order(name, weight), rtol=2**-21, atol=0)
    assert found["token_embd.weight"].tensor_type.name == "BF16"
    records = {record["name"]: record for record in result.receipt["tensors"]}
    grades = {records[gguf_name(name)]["grade"] for name in meaning if not name.startswith("lm_head")}
    assert grades == {"repacked"} if form == "modelopt" else grades <= {"repacked", "rescaled"}
    assert max(record["relative_rms"] or 0 for record in records.values() if "relative_rms" in record) < 2**-21
    assert not result.receipt["dropped"] and result.receipt["logits"]["relative_rms"] < 2e-6
    again = reverify(Request(str(source)), result.path, silent)
    assert {proof.type for proof in again.proof.tensors if proof.name.startswith("blk.0.ffn_up")} == {"NVFP4"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral3", "qwen2"])
def test_llama_cpp_multiplies_by_the_scales(family: str, tmp_path: Path) -> None:
    """Where it would not (the FFN of Qwen 2, whose graph does not hand its scales on), there are no blocks."""
    source, _ = checkpoint(tmp_path / "in", family)
    result = converted(source, tmp_path / "blocks.gguf")
    converted(source, tmp_path / "floats.gguf", "f32")
    found = tensors_of(tmp_path / "blocks.gguf")
    kind = found["blk.0.ffn_up.weight"].tensor_type.name
    assert kind == ("BF16" if family == "qwen2" else "NVFP4")
    assert found["blk.0.attn_v.weight"].tensor_type.name == kind
    if family == "qwen2":
        why = next(record["why"] for record in result.receipt["tensors"] if record["name"] == "blk.0.ffn_up.weight")
        assert "llama.cpp does not multiply" in why
    ours, theirs = (logits(tmp_path / f"{name}.gguf", tmp_path) for name in ("blocks", "floats"))
    assert apart(ours, theirs) < CLOSE


def doubled(path: Path, out: Path, stem: str) -> Path:
    """The file with every scale of one kind of matrix doubled."""
    data = bytearray(path.read_bytes())
    for tensor in gguf.GGUFReader(path).tensors:
        if tensor.name.endswith(f"{stem}.scale"):
            start, size = int(tensor.data_offset), int(tensor.n_bytes)
            data[start : start + size] = (np.frombuffer(data[start : start + size], np.float32) * 2).tobytes()
    out.write_bytes(data)
    return out


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral3"])
def test_every_scale_that_is_called_applied_is(family: str, tmp_path: Path) -> None:
    source, _ = checkpoint(tmp_path / "in", family)
    converted(source, tmp_path / "out.gguf")
    before = logits(tmp_path / "out.gguf", tmp_path)
    normed = {"attn_q", "attn_k"} if family == "qwen3" else set()  # a norm takes their scale away
    for stem in sorted(APPLIED[family] - normed - {"ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"}):
        after = logits(doubled(tmp_path / "out.gguf", tmp_path / "other.gguf", stem), tmp_path)
        assert apart(after, before) > 0.02, stem


NAMES = {
    "qwen3moe": ("mlp.gate", "mlp.experts", {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}),
    "llama": ("block_sparse_moe.gate", "block_sparse_moe.experts", {"gate": "w1", "up": "w3", "down": "w2"}),
}


def experts(folder: Path, family: str) -> dict[str, list[np.ndarray]]:
    """Write a tiny Qwen 3 MoE or Mixtral of four experts; return what the experts of each matrix mean."""
    rng, wide, (router, block_of, names) = np.random.default_rng(11), 64, NAMES[family]
    mixtral = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 4}
    qwen = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_experts": 4,
        "moe_intermediate_size": FF,
        "head_dim": 16,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }
    tensors: Tensors = {}
    meaning: dict[str, list[np.ndarray]] = {}

    def plain(name: str, *shape: int) -> None:
        tensors[name] = torch.tensor(rng.normal(len(shape) == 1, 0.1, shape)).bfloat16()

    plain("model.embed_tokens.weight", VOCAB, wide)
    plain("lm_head.weight", VOCAB, wide)
    plain("model.norm.weight", wide)
    for n in range(2):
        block = f"model.layers.{n}"
        for name, rows in (("q_proj", 64), ("k_proj", 32), ("v_proj", 32), ("o_proj", 64)):
            plain(f"{block}.self_attn.{name}.weight", rows, wide)
        for name in ("q_norm", "k_norm") if family == "qwen3moe" else ():
            plain(f"{block}.self_attn.{name}.weight", 16)
        for name in ("input_layernorm", "post_attention_layernorm"):
            plain(f"{block}.{name}.weight", wide)
        plain(f"{block}.{router}.weight", 4, wide)
        for expert in range(4):
            for name, shape in {"gate": (FF, wide), "up": (FF, wide), "down": (wide, FF)}.items():
                weight = f"{block}.{block_of}.{expert}.{names[name]}.weight"
                made, meant = nvfp4("modelopt")(weight, rng.normal(0, 0.1, shape).astype(np.float32), rng)
                tensors.update(made)
                meaning.setdefault(f"blk.{n}.ffn_{name}_exps", []).append(meant)
    more = mixtral if family == "llama" else qwen
    write(folder, tensors, MODELOPT, vocab_size=VOCAB, intermediate_size=FF, num_experts_per_tok=2, **more)
    settings = json.loads((folder / "config.json").read_text()) | {"num_hidden_layers": 2}
    (folder / "config.json").write_text(json.dumps(settings))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    shutil.copy(FIXTURES / "tokenizers" / "spm_bpe" / "tokenizer.model", folder)
    return meaning


@pytest.mark.parametrize("family", ["qwen3moe", "llama"])
def test_every_expert_has_its_scale(family: str, tmp_path: Path) -> None:
    meaning = experts(tmp_path / "in", family)
    converted(tmp_path / "in", tmp_path / "blocks.gguf")
    converted(tmp_path / "in", tmp_path / "floats.gguf", "f32")
    found = tensors_of(tmp_path / "blocks.gguf")
    for name, parts in meaning.items():
        scale, tensor = found[f"{name}.scale"].data, found[f"{name}.weight"]
        assert tensor.tensor_type.name == "NVFP4" and scale.shape == (4,)
        values = gguf.dequantize(tensor.data, tensor.tensor_type) * scale[:, None, None]
        assert np.allclose(values, np.stack(parts), rtol=2**-21, atol=0)
    ours, theirs = (logits(tmp_path / f"{name}.gguf", tmp_path) for name in ("blocks", "floats"))
    assert apart(ours, theirs) < 2 * CLOSE


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3moe", "llama"])
def test_every_scale_of_experts_that_is_called_applied_is(family: str, tmp_path: Path) -> None:
    experts(tmp_path / "in", family)
    converted(tmp_path / "in", tmp_path / "blocks.gguf")
    ours = logits(tmp_path / "blocks.gguf", tmp_path)
    for stem in ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"):
        after = logits(doubled(tmp_path / "blocks.gguf", tmp_path / "other.gguf", stem), tmp_path)
        assert apart(after, ours) > 0.02, stem


def test_such_a_file_is_a_source_like_others(tmp_path: Path) -> None:
    """It is copied with its scales, made floats of with them, and quantized only when asked."""
    source, meaning = checkpoint(tmp_path / "in", "llama")
    converted(source, tmp_path / "one.gguf")
    converted(tmp_path / "one.gguf", tmp_path / "two.gguf")
    first, second = tensors_of(tmp_path / "one.gguf"), tensors_of(tmp_path / "two.gguf")
    assert list(first) == list(second)
    assert all(first[name].data.tobytes() == second[name].data.tobytes() for name in first)
    converted(tmp_path / "one.gguf", tmp_path / "f32.gguf", "f32")
    floats = tensors_of(tmp_path / "f32.gguf")
    assert not any(name.endswith("scale") for name in floats)
    name = "model.layers.1.mlp.up_proj.weight"
    assert np.array_equal(floats["blk.1.ffn_up.weight"].data, meaning[name])
    assert np.array_equal(floats["output.weight"].data, meaning["lm_head.weight"])


def test_a_scale_that_was_changed_is_noticed(tmp_path: Path) -> None:
    source, _ = checkpoint(tmp_path / "in", "llama")
    converted(source, tmp_path / "out.gguf")
    doubled(tmp_path / "out.gguf", tmp_path / "other.gguf", "ffn_up")
    with pytest.raises(VerificationError, match=r"ffn_up\.weight"):
        reverify(Request(str(source), level="fast"), str(tmp_path / "other.gguf"), silent)


def test_scales_of_another_number_are_refused(tmp_path: Path) -> None:
    source, _ = checkpoint(tmp_path / "in", "llama")
    converted(source, tmp_path / "out.gguf")
    reader = gguf.GGUFReader(tmp_path / "out.gguf")
    data = bytearray((tmp_path / "out.gguf").read_bytes())
    entry = next(tensor for tensor in reader.tensors if tensor.name == "blk.0.ffn_up.scale")
    place = int(entry.field.offset) + 8 + len(entry.name) + 4  # after the name and the number of axes: its size
    assert data[place : place + 8] == (1).to_bytes(8, "little")
    data[place : place + 8] = (2).to_bytes(8, "little")
    (tmp_path / "other.gguf").write_bytes(data)
    with pytest.raises(ShapeError, match=r"ffn_up\.scale"):
        converted(tmp_path / "other.gguf", tmp_path / "again.gguf")


def test_without_the_option_floats_are_made_as_before(tmp_path: Path) -> None:
    source, _ = checkpoint(tmp_path / "in", "llama")
    converted(source, tmp_path / "out.gguf", dequantize=True)
    found = tensors_of(tmp_path / "out.gguf")
    assert found["blk.0.ffn_up.weight"].tensor_type.name == "BF16" and "blk.0.ffn_up.scale" not in found


def test_rows_that_are_no_blocks_of_64_are_dequantized(tmp_path: Path) -> None:
    tensors, _ = model(nvfp4("modelopt"), 96)
    result = convert(request(write(tmp_path / "in", tensors, MODELOPT), tmp_path / "out.gguf", "keep", "fast"))[0]
    records = {record["name"]: record for record in result.receipt["tensors"]}
    assert records["blk.0.ffn_up.weight"]["type"] == "NVFP4"
    assert "rows of 96 are not whole blocks" in records["blk.0.ffn_down.weight"]["why"]
