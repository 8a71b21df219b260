"""Mixtures of experts as mlx-lm saved them (fixtures/mlx-lm) hold the values that MLX computes, in GGUF too."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from dataclasses import replace
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
from ggferry.converters.trainer_names.mlx_lm import names
from ggferry.converters.understand import graph_of
from ggferry.formats.errors import GgferryError, InconsistentError, MissingError, ShapeError, UnsupportedError
from ggferry.formats.gguf.write import write_gguf
from helpers import tiny
from helpers.llama_api import encoded_and_decoded
from helpers.make_mlx_lm_fixtures import MODELS, OUT, TOKENS
from helpers.quantized_llama import request
from helpers.tiny_models import make, relative, vocabulary
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
    r".*layers\.(\d+)\.feed_forward\.gate_proj": "blk.{}.ffn_gate",
    r".*layers\.(\d+)\.feed_forward\.down_proj": "blk.{}.ffn_down",
    r".*layers\.(\d+)\.mamba\.in_proj": "blk.{}.ssm_in",
    r".*layers\.(\d+)\.mamba\.out_proj": "blk.{}.ssm_out",
    r"transformer\.blocks\.(\d+)\.ffn\.experts\.(\d+)\.w1": "blk.{}.ffn_gate_exps {}",
    r"transformer\.blocks\.(\d+)\.ffn\.experts\.(\d+)\.w2": "blk.{}.ffn_down_exps {}",
    r"transformer\.blocks\.(\d+)\.ffn\.experts\.(\d+)\.v1": "blk.{}.ffn_up_exps {}",
    r"model\.(embed_in|wte|embeddings)": "token_embd",
    r"model\.embed_out": "output",
    r"model\.h\.(\d+)\.mlp\.(dense_h_to_4h|fc_in)": "blk.{}.ffn_up",
    r"model\.h\.(\d+)\.mlp\.(dense_4h_to_h|fc_out)": "blk.{}.ffn_down",
    r"model\.layers\.(\d+)\.attn\.r_proj": "blk.{}.time_mix_receptance",
    r"model\.layers\.(\d+)\.ffn\.key": "blk.{}.channel_mix_key",
}
"""Layer of mlx-lm → tensor of GGUF whose rows are not permuted and, of a stack, which of its matrices."""
BLOCKS = {
    "mixtral": "Q4_1",
    "qwen3moe": "NVFP4",
    "deepseek3": "Q4_1",
    "qwen3next": "MXFP4",
    "granitemoe": "Q4_1",
    "kimi-linear": "F32",
    "falcon-h1": "Q4_1",
    "falcon-h1-tied": "Q5_1",
    "dbrx": "Q4_1",
    "gptneox": "Q4_1",
    "gptj": "Q4_1",
    "rwkv7": "Q4_1",
}
"""What its experts become, or the matrices of networks; of Granite, mlx-lm gives some more bits."""
LIMIT, ROWS = 5e-3, 7
"""The first rows: Mixtral's window is 7 tokens, which llama.cpp and mlx-lm let pass."""
OF_LLAMA_CPP = ("mixtral", "deepseek3", "qwen3next", "granitemoe", "falcon-h1", "falcon-h1-tied", "dbrx", "gptneox")


def named(layer: str) -> tuple[str, int | slice]:
    """The tensor of GGUF that has a layer, and which of its matrices."""
    for pattern, name in NAMES.items():
        if match := re.fullmatch(pattern, layer):
            tensor, _, number = name.format(*match.groups()).partition(" ")
            return f"{tensor}.weight", int(number) if number else slice(None)
    return "", 0


@pytest.mark.parametrize("name", [pytest.param(one, marks=[pytest.mark.slow] * (one != "mixtral")) for one in BLOCKS])
def test_values_are_those_of_mlx(name: str, tmp_path: Path) -> None:
    out, plain = tmp_path / "keep.gguf", tmp_path / "f32.gguf"
    receipt = convert(request(OUT / name, out, "keep", "full"))[0].receipt
    convert(request(OUT / name, plain, "f32", "fast"))
    held, floats, seen = decoded(out), decoded(plain), 0
    for layer, expected in ANSWERS[name].items():
        tensor, number = named(layer)
        if tensor not in held:
            continue
        plain_values = floats[tensor][1][number] + np.float32(0)
        assert hashlib.sha256(plain_values.tobytes()).hexdigest() == expected, layer
        (kind, values), scale = held[tensor], tensor.replace(".weight", ".scale")
        if scale in held:  # by which llama.cpp multiplies last: the order of two products of float32
            values = values * held[scale][1][:, None, None]
            assert np.allclose(values, floats[tensor][1], rtol=2.5e-7, atol=0), layer
        elif kind not in ("F16", "BF16"):  # no block holds 6 and 8 bits with a minimum, and MXFP8
            assert hashlib.sha256((values[number] + np.float32(0)).tobytes()).hexdigest() == expected, layer
        seen += 1
    assert seen >= 6
    assert BLOCKS[name] in {kind for key, (kind, _) in held.items() if re.search("ffn_|channel_mix", key)}
    assert receipt["second_reader"]["unread"] == () and receipt["second_reader"]["matrices"] > 10


@pytest.mark.slow
@pytest.mark.parametrize("name", [one for one in MODELS if one not in ("deepseek3", "qwen3moe")])
def test_logits_are_those_of_mlx_lm(name: str, tmp_path: Path) -> None:
    """mlx-lm computes DeepSeek-V3 otherwise than transformers, from the original, too; and Falcon-H1 without the
    multiplier of keys."""
    expected = np.load(OUT / "logits.npz")[name]
    folder = with_config(name, tmp_path / "made", key_multiplier=1.0) if "falcon" in name else OUT / name
    found = np.asarray(forward(graph_of(str(folder)), list(TOKENS)))
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["falcon-h1", "rwkv7"])
def test_folders_of_what_gguf_computes_hold_what_it_was_computed_of(name: str, tmp_path: Path) -> None:
    """Of the checkpoint itself, and of GGUF: both folders become the same GGUF again."""
    bare = VocabOptions(none=True)
    convert(request(OUT / name, tmp_path / "once.gguf", "f32", "fast"))
    for source in (OUT / name, tmp_path / "once.gguf"):
        convert(Request(str(source), str(tmp_path / "folder"), to="safetensors", vocab=bare, force=True))
        convert(request(tmp_path / "folder", tmp_path / "again.gguf", "f32", "fast"))
        again, once = decoded(tmp_path / "again.gguf"), decoded(tmp_path / "once.gguf")
        assert again.keys() == once.keys()
        for key, (_, values) in once.items():
            assert np.allclose(again[key][1], values, rtol=1e-6, atol=0), key
        (tmp_path / "again.gguf").unlink()


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


def with_config(name: str, folder: Path, **changes: object) -> Path:
    """A fixture whose configuration states something else."""
    shutil.copytree(OUT / name, folder)
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def as_mlx_lm(folder: Path, target: Path, **changes: object) -> Path:
    """A Falcon-H1 as mlx-lm's `sanitize` makes it (0.32.2 `models/falcon_h1.py`), in float32; `changes` of what its
    config.json states, None for what it leaves out."""
    config, tensors = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    widths = [config["mamba_d_ssm"]] * 2 + [config["mamba_n_groups"] * config["mamba_d_state"]] * 2
    zones = np.repeat(config["ssm_multipliers"], [*widths, config["mamba_n_heads"]]).astype(np.float32)
    factors = {
        "embed_tokens.weight": config["embedding_multiplier"],
        "lm_head.weight": config["lm_head_multiplier"],
        "q_proj.weight": config["attention_in_multiplier"],
        "k_proj.weight": config["attention_in_multiplier"],
        ".o_proj.weight": config["attention_out_multiplier"],
        "out_proj.weight": config["ssm_out_multiplier"],
        "gate_proj.weight": config["mlp_multipliers"][0],
        "down_proj.weight": config["mlp_multipliers"][1],
        "in_proj.weight": config["ssm_in_multiplier"] * zones[:, None],
    }
    for name, tensor in tensors.items():
        factor = next((factor for end, factor in factors.items() if name.endswith(end)), 1.0)
        exchanged = tensor.swapaxes(1, 2) if "conv1d.weight" in name else tensor
        tensors[name] = np.ascontiguousarray((exchanged * factor).astype(np.float32))
    target.mkdir()
    save_file(tensors, target / "model.safetensors", {"format": "mlx"})
    stated = {key: value for key, value in (config | changes).items() if value is not None}
    (target / "config.json").write_text(json.dumps(stated))
    return target


@pytest.mark.slow
@pytest.mark.parametrize("name", ["falcon-h1", "falcon-h1 normed, tied"])
def test_multipliers_that_mlx_lm_has_folded_are_not_applied_twice(name: str, tmp_path: Path) -> None:
    """Falcon-H1: logits are those of transformers, with a multiplier of keys that mlx-lm leaves out, and one of what
    comes in that it leaves out of values; in the file, too."""
    expected = make(name, tmp_path / "hf")
    folder = as_mlx_lm(tmp_path / "hf", tmp_path / "mlx")
    assert relative(expected, np.asarray(forward(graph_of(str(folder)), tiny.TOKENS))) < 1e-5
    receipt = convert(request(folder, tmp_path / "out.gguf", "f32", "full"))[0].receipt
    assert "key_multiplier, which mlx-lm leaves out" in " ".join(receipt["notes"])
    assert relative(expected, np.asarray(forward(graph_of(str(tmp_path / "out.gguf")), tiny.TOKENS))) < 1e-5


@pytest.mark.slow
def test_multipliers_that_are_not_stated_are_those_of_mlx_lm(tmp_path: Path) -> None:
    """It multiplies by 0.9375 where transformers takes 1."""
    expected = make("falcon-h1", tmp_path / "hf", attention_out_multiplier=1.0)
    config = json.loads((tmp_path / "hf" / "config.json").read_text()) | {"attention_out_multiplier": 0.9375}
    (tmp_path / "hf" / "config.json").write_text(json.dumps(config))
    folder = as_mlx_lm(tmp_path / "hf", tmp_path / "mlx", attention_out_multiplier=None)
    assert relative(expected, np.asarray(forward(graph_of(str(folder)), tiny.TOKENS))) < 1e-5


MISTAKES = {
    "multipliers applied twice": ("falcon-h1-tied", "unfolded", lambda real: lambda checkpoint: checkpoint),
    "queries and values of Kimi K3 exchanged": (
        "kimi-k3",
        "rows",
        lambda real: (
            lambda ref, name, runs, path: real(
                ref, name, [(ref.shape[0] - stop, ref.shape[0] - start) for start, stop in runs], path
            )
        ),
    ),
    "vectors of RWKV-7 head by head": ("rwkv7", "flat", lambda real: lambda ref, name, path: ref),
    "GPT-J by its own names": ("gptj", "_PREFIXES", lambda real: {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_what_is_carried_back_shows(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each planted in the source: mlx-lm's logits are others then, or the model is refused."""
    name, part, planted = MISTAKES[mistake]
    monkeypatch.setattr(names, part, planted(getattr(names, part)))
    expected = np.load(OUT / "logits.npz")[name]
    try:
        found = np.asarray(forward(graph_of(str(OUT / name)), list(TOKENS)))
    except GgferryError:
        return
    assert np.abs(found - expected).max() > 3e-3 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"mlp_multipliers": [0.5]}, InconsistentError),
        ({"embedding_multiplier": "5"}, InconsistentError),
        ({"ssm_out_multiplier": 0}, InconsistentError),
        ({"lm_head_multiplier": 1e999}, InconsistentError),
        ({"attention_in_multiplier": 10**400}, InconsistentError),
    ],
)
def test_multipliers_that_are_none_are_named(
    changes: dict[str, object], error: type[GgferryError], tmp_path: Path
) -> None:
    folder = with_config("falcon-h1", tmp_path / "made", **changes)
    with pytest.raises(error, match=next(iter(changes))):
        convert(request(folder, tmp_path / "no.gguf", "f32", "fast"))


def test_biases_that_mlx_lm_left_as_they_are(tmp_path: Path) -> None:
    """Weights beside them are multiplied, so that the layer is no longer the publisher's."""
    bias = {"model.layers.0.feed_forward.gate_proj.bias": np.ones(96, np.float32)}
    folder = changed("falcon-h1", tmp_path / "made", **bias)
    with pytest.raises(UnsupportedError, match="mlp_multipliers"):
        convert(request(folder, tmp_path / "no.gguf", "f32", "fast"))


@pytest.mark.slow
def test_a_bias_that_mlx_lm_drops(tmp_path: Path) -> None:
    """ERNIE 4.5's, unless its configuration says that the model has none; one that is there counts in any case."""
    make("ernie4_5_moe", tmp_path)
    config, tensors = json.loads((tmp_path / "config.json").read_text()), load_file(tmp_path / "model.safetensors")
    left = {name: tensor for name, tensor in tensors.items() if "e_score_correction_bias" not in name}

    def converted(kept: dict[str, np.ndarray], **changes: object) -> dict[str, tuple[str, np.ndarray]]:
        save_file(kept, tmp_path / "model.safetensors", {"format": "mlx"})
        (tmp_path / "config.json").write_text(json.dumps(config | changes))
        convert(replace(request(tmp_path, tmp_path / "out.gguf", "f32", "full"), force=True))
        return decoded(tmp_path / "out.gguf")

    for changes in ({}, {"moe_use_aux_free": True}):
        with pytest.raises(UnsupportedError, match="mlx-lm leaves out"):
            converted(left, **changes)
    assert not any("exp_probs_b" in name for name in converted(left, moe_use_aux_free=False))
    assert any("exp_probs_b" in name for name in converted(tensors, moe_use_aux_free=False))
    logits = np.asarray(forward(graph_of(str(tmp_path / "out.gguf")), tiny.TOKENS))
    assert relative(np.asarray(forward(graph_of(str(tmp_path)), tiny.TOKENS)), logits) < 1e-5


@pytest.mark.slow
def test_settings_of_single_layers_go_with_their_experts(tmp_path: Path) -> None:
    """Layers named in the configuration have its settings whole: without a mode they are affine, as in mlx-lm."""
    config = json.loads((OUT / "qwen3next" / "config.json").read_text())
    single = config["quantization"]["model.layers.0.mlp.gate"]
    assert config["quantization"]["mode"] == "mxfp4" and "mode" not in single
    convert(request(OUT / "qwen3next", tmp_path / "out.gguf", "f32", "fast"))
    kinds = {each.name: each.tensor_type.name for each in gguf.GGUFReader(tmp_path / "out.gguf").tensors}
    assert kinds["blk.0.ffn_gate_inp.weight"] == "F32"
