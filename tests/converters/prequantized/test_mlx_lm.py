"""Mixtures of experts as mlx-lm saved them (fixtures/mlx-lm) hold the values that MLX computes, in GGUF too."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.model_graph.rows import raw_rows
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from ggferry.converters.understand import graph_of
from ggferry.formats.errors import GgferryError, InconsistentError, MissingError, ShapeError, UnsupportedError
from ggferry.formats.gguf.write import write_gguf
from helpers.llama_api import encoded_and_decoded
from helpers.make_mlx_lm_fixtures import MODELS, OUT, TOKENS
from helpers.quantized_llama import request
from helpers.tiny_models import relative, vocabulary
from helpers.values import decoded

ANSWERS = json.loads((OUT / "answers.json").read_text())["values"]
NAMES = {
    r".*embed_tokens": "token_embd",
    r"lm_head": "output",
    r".*layers\.(\d+)\..*switch_mlp\.gate_proj": "blk.{}.ffn_gate_exps",
    r".*layers\.(\d+)\..*switch_mlp\.up_proj": "blk.{}.ffn_up_exps",
    r".*layers\.(\d+)\..*switch_mlp\.down_proj": "blk.{}.ffn_down_exps",
    r".*layers\.(\d+)\.mlp\.gate_proj": "blk.{}.ffn_gate",
    r".*layers\.(\d+)\.mlp\.down_proj": "blk.{}.ffn_down",
    r".*layers\.(\d+)\.self_attn\.embed_q": "blk.{}.attn_k_b",
    r".*layers\.(\d+)\.self_attn\.unembed_out": "blk.{}.attn_v_b",
    r".*layers\.(\d+)\.self_attn\.o_proj": "blk.{}.attn_output",
    r".*layers\.(\d+)\.self_attn\.v_proj": "blk.{}.attn_v",
    r".*layers\.(\d+)\.mlp\.gate": "blk.{}.ffn_gate_inp",
}
"""Layer of mlx-lm → tensor of GGUF, of those whose rows GGUF does not permute."""
BLOCKS = {
    "mixtral": "Q4_1",
    "qwen3moe": "NVFP4",
    "deepseek3": "Q4_1",
    "qwen3next": "MXFP4",
    "granitemoe": "Q4_1",
    "kimi-linear": "F32",
}
"""What its experts become; of Granite, mlx-lm gives some more bits."""
LIMIT, ROWS = 5e-3, 7
"""The first rows: Mixtral's window is 7 tokens, which llama.cpp and mlx-lm let pass."""
OF_LLAMA_CPP = ("mixtral", "deepseek3", "qwen3next", "granitemoe")


def named(layer: str) -> str:
    for pattern, name in NAMES.items():
        if match := re.fullmatch(pattern, layer):
            return name.format(*match.groups())
    return ""


@pytest.mark.parametrize("name", [pytest.param(one, marks=[pytest.mark.slow] * (one != "mixtral")) for one in MODELS])
def test_values_are_those_of_mlx(name: str, tmp_path: Path) -> None:
    out, plain = tmp_path / "keep.gguf", tmp_path / "f32.gguf"
    receipt = convert(request(OUT / name, out, "keep", "full"))[0].receipt
    convert(request(OUT / name, plain, "f32", "fast"))
    held, floats, seen = decoded(out), decoded(plain), 0
    for layer, expected in ANSWERS[name].items():
        tensor = named(layer)
        if not tensor or f"{tensor}.weight" not in held:
            continue
        assert hashlib.sha256((floats[f"{tensor}.weight"][1] + np.float32(0)).tobytes()).hexdigest() == expected, layer
        kind, values = held[f"{tensor}.weight"]
        if f"{tensor}.scale" in held:  # by which llama.cpp multiplies last: the order of two products of float32
            values = values * held[f"{tensor}.scale"][1][:, None, None]
            assert np.allclose(values, floats[f"{tensor}.weight"][1], rtol=2.5e-7, atol=0), layer
        elif kind not in ("F16", "BF16"):  # no block holds 6 and 8 bits with a minimum, and MXFP8
            assert hashlib.sha256((values + np.float32(0)).tobytes()).hexdigest() == expected, layer
        seen += "exps" in tensor
    assert seen >= 6
    assert BLOCKS[name] in {kind for key, (kind, _) in held.items() if "exps.weight" in key}
    assert receipt["second_reader"]["unread"] == () and receipt["second_reader"]["matrices"] > 10


@pytest.mark.slow
@pytest.mark.parametrize("name", ["granitemoe", "kimi-linear", "mixtral", "qwen3next"])
def test_logits_are_those_of_mlx_lm(name: str) -> None:
    """mlx-lm computes DeepSeek-V3 otherwise than transformers, from the original, too."""
    expected = np.load(OUT / "logits.npz")[name]
    found = np.asarray(forward(graph_of(str(OUT / name)), list(TOKENS)))
    found, expected = (each[:ROWS] if name == "mixtral" else each for each in (found, expected))
    assert np.abs(found - expected).max() < 3e-4 * np.abs(expected).max()


def with_vocabulary(path: Path, target: Path) -> Path:
    """The file with a vocabulary, without which llama.cpp loads none."""
    checkpoint = open_checkpoint(str(path))
    refs = checkpoint.tensors.values()
    tensors = [(ref.name, ref.type, ref.shape, raw_rows(checkpoint, ref, 0, ref.rows)) for ref in refs]
    write_gguf(target, {**checkpoint.metadata, **vocabulary(328)}, tensors)
    checkpoint.close()
    return target


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_LLAMA_CPP)
def test_llama_cpp_computes_the_same_with_the_blocks(name: str, tmp_path: Path) -> None:
    """It rounds activations to eight bits where weights are blocks, and nothing else."""
    logits = []
    for kind in ("keep", "f32"):
        convert(request(OUT / name, tmp_path / f"{kind}.gguf", kind, "fast"))
        path = with_vocabulary(tmp_path / f"{kind}.gguf", tmp_path / f"{kind}-v.gguf")
        logits.append(encoded_and_decoded(str(path), [], list(TOKENS), tmp_path))
    ours = np.asarray(forward(graph_of(str(OUT / name)), list(TOKENS)))
    ours, kept, floats = (each[:ROWS] for each in (ours, *logits))
    assert np.isfinite(kept).all() and relative(ours, floats) < LIMIT
    assert relative(ours[:1], kept[:1]) < 0.5, "routers choose other experts where activations are rounded"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["deepseek3", "mixtral"])
def test_folders_have_the_names_of_transformers(name: str, tmp_path: Path) -> None:
    """The road back: experts one by one or as the class has them, and keys and values expanded by one matrix."""
    out = tmp_path / "back"
    convert(Request(str(OUT / name), str(out), to="safetensors", vocab=VocabOptions(none=True)))
    found = load_file(out / "model.safetensors")
    assert not any(part in key for key in found for part in ("switch_mlp", "embed_q", "unembed_out"))
    convert(request(out, tmp_path / "again.gguf", "f32", "fast"))
    convert(request(OUT / name, tmp_path / "once.gguf", "f32", "fast"))
    again, once = decoded(tmp_path / "again.gguf"), decoded(tmp_path / "once.gguf")
    assert again.keys() == once.keys()
    for key, (_, values) in once.items():
        assert np.array_equal(again[key][1], values), key


def changed(name: str, folder: Path, **tensors: np.ndarray | None) -> Path:
    """A fixture with some tensors replaced, or left out for None."""
    shutil.copytree(OUT / name, folder)
    found = {**load_file(folder / "model.safetensors"), **tensors}
    kept = {key: value for key, value in found.items() if value is not None}
    save_file(kept, folder / "model.safetensors", {"format": "mlx"})
    return folder


BASE = "model.layers.1.block_sparse_moe.switch_mlp."
FAULTS: dict[str, tuple[str, dict[str, np.ndarray | None], type[GgferryError]]] = {
    "a stack without scales": ("mixtral", {f"{BASE}up_proj.scales": None}, MissingError),
    "a stack that is a matrix": ("mixtral", {f"{BASE}up_proj.weight": np.zeros((96, 8), np.uint32)}, ShapeError),
    "fewer scales": ("mixtral", {f"{BASE}up_proj.scales": np.zeros((5, 96, 1), np.float16)}, ShapeError),
    "a gate alone": (
        "granitemoe",
        {f"{BASE}up_proj.{end}": None for end in ("weight", "scales", "biases")},
        MissingError,
    ),
    "a global scale of integers": (
        "mixtral",
        {f"{BASE}up_proj.global_scale": np.ones(5, np.float32)},
        InconsistentError,
    ),
    "global scales of a stack that stays one": (
        "granitemoe",
        {f"{BASE}up_proj.global_scale": np.ones(5, np.float32)},
        ShapeError,
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_named(fault: str, tmp_path: Path) -> None:
    name, tensors, error = FAULTS[fault]
    with pytest.raises(error):
        convert(request(changed(name, tmp_path / "made", **tensors), tmp_path / "no.gguf", "f32", "fast"))


def test_multipliers_that_mlx_lm_has_folded_are_not_applied_twice(tmp_path: Path) -> None:
    """Falcon-H1: mlx-lm multiplies weights by what config.json goes on to state."""
    folder = tmp_path / "falcon"
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps({"architectures": ["FalconH1ForCausalLM"], "model_type": "falcon_h1"})
    )
    tensors = {"model.layers.0.mamba.conv1d.weight": np.zeros((8, 4, 1), np.float32)}
    save_file(tensors, folder / "model.safetensors", {"format": "mlx"})
    with pytest.raises(UnsupportedError, match="multipliers"):
        convert(request(folder, tmp_path / "no.gguf", "f32", "fast"))


@pytest.mark.slow
def test_settings_of_single_layers_go_with_their_experts(tmp_path: Path) -> None:
    """Layers named in the configuration have its settings whole: without a mode they are affine, as in mlx-lm."""
    config = json.loads((OUT / "qwen3next" / "config.json").read_text())
    single = config["quantization"]["model.layers.0.mlp.gate"]
    assert config["quantization"]["mode"] == "mxfp4" and "mode" not in single
    convert(request(OUT / "qwen3next", tmp_path / "out.gguf", "f32", "fast"))
    kinds = {each.name: each.tensor_type.name for each in gguf.GGUFReader(tmp_path / "out.gguf").tensors}
    assert kinds["blk.0.ffn_gate_inp.weight"] == "F32"
