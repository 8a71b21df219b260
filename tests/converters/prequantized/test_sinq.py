"""LLaMAs that sinq quantized and saved (fixtures/sinq) hold the values and give the logits of that library."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from ggferry.converters.conversion.run import convert
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.model_graph.rows import values_of
from ggferry.converters.prequantized.schemes import sinq
from ggferry.converters.understand import graph_of
from ggferry.formats.errors import (
    GgferryError,
    InconsistentError,
    MissingError,
    ShapeError,
    UnsupportedError,
    VerificationError,
)
from helpers.make_sinq_fixtures import CASES, OUT, TOKENS
from helpers.quantized_llama import request
from helpers.tiny_models import relative
from helpers.values import decoded

ANSWERS = json.loads((OUT / "answers.json").read_text())
WEIGHTS, SETTINGS = "model-00001-of-00001.safetensors", "model.safetensors.index.json.meta.json"
LAYER = "model.layers.0.mlp.down_proj"


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_the_library(name: str) -> None:
    """In whole, and in pieces of rows that end within a square."""
    checkpoint = graph_of(str(OUT / name)).checkpoint
    assert len(ANSWERS[name]) == 7
    for layer, expected in ANSWERS[name].items():
        ref = checkpoint.tensors[f"{layer}.weight"]
        values = values_of(checkpoint, ref, 0, ref.rows)
        assert hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest() == expected, layer
        pieces = [values_of(checkpoint, ref, n, min(ref.rows, n + 13)) for n in range(0, ref.rows, 13)]
        assert np.array_equal(np.concatenate(pieces), values), layer


@pytest.mark.slow
@pytest.mark.unix("open files passed to the second reader")
@pytest.mark.parametrize("name", CASES)
def test_files_are_proved_and_compute_the_same(name: str, tmp_path: Path) -> None:
    receipt = convert(request(OUT / name, tmp_path / "out.gguf", "keep", "full"))[0].receipt
    assert receipt["second_reader"]["unread"] == () and receipt["second_reader"]["matrices"] == 7
    assert "a scale for each column" in " ".join(receipt["notes"])
    kinds = {kind for tensor, (kind, _) in decoded(tmp_path / "out.gguf").items() if "ffn" in tensor}
    assert kinds == {"F32"}, "the configuration states no other type"
    expected = np.load(OUT / "logits.npz")
    if name in expected:
        found = np.asarray(forward(graph_of(str(tmp_path / "out.gguf")), list(TOKENS)))
        assert relative(expected[name], found) < 1e-5


def changed(folder: Path, name: str = "sinq-4", **changes: Any) -> Path:
    """A fixture with tensors of LAYER replaced, left out for None; or `settings` of it, None for none at all."""
    shutil.copytree(OUT / name, folder)
    if "settings" in changes:
        beside = json.loads((folder / SETTINGS).read_text())
        own = changes.pop("settings")
        beside[LAYER] = {} if own is None else {"meta": beside[LAYER]["meta"] | own}
        (folder / SETTINGS).write_text(json.dumps(beside))
    tensors = load_file(folder / WEIGHTS)
    for key, change in changes.items():
        place = f"{LAYER}.{key.replace('__', '.')}"
        tensors[place] = change(tensors[place]) if change is not None else None
    kept = {key: np.ascontiguousarray(tensor) for key, tensor in tensors.items() if tensor is not None}
    save_file(kept, folder / WEIGHTS)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"] = dict.fromkeys(kept, WEIGHTS)
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


FAULTS: dict[str, tuple[dict[str, Any], type[GgferryError]]] = {
    "no settings": ({"settings": None}, MissingError),
    "no second scales": ({"meta__scale2": None}, MissingError),
    "no steps of scales": ({"meta__scale__s": None}, MissingError),
    "no zeros": ({"meta__zero__x": None}, MissingError),
    "an unknown packing": ({"settings": {"packing": "7bit_u8"}}, UnsupportedError),
    "groups down the columns": ({"settings": {"axis": 0}}, UnsupportedError),
    "levels seen as floats": ({"settings": {"view_as_float": True}}, UnsupportedError),
    "scales of activations": ({"settings": {"awq_scale": "tensor"}}, UnsupportedError),
    "a shape of text": ({"settings": {"shape": "64 96"}}, InconsistentError),
    "a shape below zero": ({"settings": {"shape": [64, -96]}}, InconsistentError),
    "a shape beyond all": ({"settings": {"shape": [64, 1 << 60]}}, InconsistentError),
    "another shape": ({"settings": {"shape": [64, 64]}}, ShapeError),
    "another packing": ({"settings": {"packing": "2bit_u8"}}, ShapeError),
    "fewer levels": ({"W_q": lambda t: t[1:]}, ShapeError),
    "levels of another type": ({"W_q": lambda t: t.astype(np.int32)}, UnsupportedError),
    "a scale too many": ({"meta__scale2": lambda t: np.concatenate((t, t), 1)}, ShapeError),
    "steps of fewer columns": ({"meta__scale__s": lambda t: t[:, 1:]}, ShapeError),
    "steps of two types": ({"meta__scale__m": lambda t: t.astype(np.float32)}, UnsupportedError),
    "whole steps": ({"meta__scale__s": lambda t: t.astype(np.int32)}, UnsupportedError),
    "fewer scales": ({"meta__scale__x": lambda t: t[1:]}, ShapeError),
    "two zeros": ({"meta__zero__x": lambda t: t[:2]}, ShapeError),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_named(fault: str, tmp_path: Path) -> None:
    changes, error = FAULTS[fault]
    with pytest.raises(error):
        graph_of(str(changed(tmp_path / "made", **dict(changes))))


def test_settings_that_are_none_are_named(tmp_path: Path) -> None:
    """Without the file that the library writes beside the weights, nothing says how a matrix is laid out."""
    (changed(tmp_path / "made") / SETTINGS).unlink()
    with pytest.raises(MissingError, match=r"meta\.json"):
        graph_of(str(tmp_path / "made"))


def test_the_configuration_may_say_so_too(tmp_path: Path) -> None:
    """transformers' SinqConfig writes its own settings, of which none are those of the layers."""
    folder = changed(tmp_path / "made")
    config = json.loads((folder / "config.json").read_text())
    config |= {"quantization_config": {"quant_method": "sinq", "nbits": 4, "group_size": 64}, "dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config))
    graph = graph_of(str(folder))
    ref = graph.checkpoint.tensors[f"{LAYER}.weight"]
    values = np.ascontiguousarray(values_of(graph.checkpoint, ref, 0, ref.rows))
    assert hashlib.sha256(values.tobytes()).hexdigest() == ANSWERS["sinq-4"][LAYER]
    assert "'keep' makes BF16 of them" in " ".join(graph.checkpoint.notes)


def test_a_bias_stays_beside_its_matrix(tmp_path: Path) -> None:
    folder = changed(tmp_path / "made")
    tensors = load_file(folder / WEIGHTS) | {"model.layers.0.self_attn.q_proj.bias": np.ones(64, np.float32)}
    save_file(tensors, folder / WEIGHTS)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"]["model.layers.0.self_attn.q_proj.bias"] = WEIGHTS
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "model.layers.0.self_attn.q_proj.bias" in graph_of(str(folder)).checkpoint.tensors


@pytest.mark.parametrize("kind", ["F16", "BF16", "F32"])
def test_numbers_round_as_those_of_torch(kind: str) -> None:
    values = np.random.default_rng(3).standard_normal(4096).astype(np.float32) * 3e-3
    types = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}
    expected = torch.from_numpy(values).to(types[kind]).float().numpy()
    assert np.array_equal(sinq.rounded(values, kind), expected)


MISTAKES: dict[str, tuple[str, str, Callable[[Any], Any]]] = {
    "the first rows in the lowest bits": (
        "sinq-4",
        "unpacked",
        lambda real: lambda checkpoint, packed, bits, box: real(checkpoint, packed, bits, box) ^ 1,
    ),
    "scales that are not rounded": ("one-zero-5", "rounded", lambda real: lambda values, kind: values),
    "levels of one table for those of another": (
        "nf4",
        "TABLES",
        lambda real: {"nf4": tuple(reversed(real["nf4"]))},
    ),
}


@pytest.mark.slow
@pytest.mark.unix("open files passed to the second reader")
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_noticed(mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides of the proof have it: the second reader computes by formulas of its own."""
    name, part, planted = MISTAKES[mistake]
    monkeypatch.setattr(sinq, part, planted(getattr(sinq, part)))
    with pytest.raises(VerificationError, match="not what its scheme means"):
        convert(request(OUT / name, tmp_path / "no.gguf", "f32", "full"))
