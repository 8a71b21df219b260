"""UQFF: fixtures that mistral.rs itself wrote, held against gguf-py's values and the checkpoint they were made of."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as load_torch

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.forward.evaluate import forward
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.understand import graph_of
from ggferry.formats.errors import (
    AmbiguousError,
    GgferryError,
    MissingError,
    NotFoundError,
    ShapeError,
    UnsupportedError,
    UnsupportedTypeError,
    UnsupportedVersionError,
)
from ggferry.formats.tensor_read import read_rows
from helpers.attack_tools import typed
from helpers.third_party_fixtures import FIXTURES

HERE, PLAIN = FIXTURES / "uqff", FIXTURES / "hf/ckpt/llama3_rope_tied"
NAME = "model.layers.0.mlp.up_proj.weight"
TOKENS = [1, 17, 4, 90, 33, 2, 61, 5]
TYPES = {"q8_0": ("Q8_0", 0.008), "q4_0": ("Q4_0", 0.11)}


@pytest.mark.parametrize("name", TYPES)
def test_values_are_those_of_the_checkpoint_it_was_made_of(name: str, tmp_path: Path) -> None:
    """By gguf-py's decoder: names, shapes and order of rows are right only if every matrix is near its source."""
    found = open_checkpoint(str(HERE / f"{name}-0.uqff"))
    source = {key: value.float().numpy() for key, value in load_torch(PLAIN / "model.safetensors").items()}
    kind, bound = TYPES[name]
    quantized = [ref for ref in found.tensors.values() if ref.type.quantized]
    assert len(quantized) >= 15 and {ref.type.name for ref in quantized} <= {kind, "Q5_1"}
    assert found.tensors.keys() == source.keys()
    for tensor, ref in found.tensors.items():
        raw = read_rows(found, ref, 0, ref.rows)
        values = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[ref.type.name]).reshape(ref.shape)
        off = np.linalg.norm(values - source[tensor]) / np.linalg.norm(source[tensor])
        assert off < bound, (tensor, off)
    found.close()
    result = convert(Request(str(HERE / f"{name}-0.uqff"), str(tmp_path / "o.gguf")))[0]
    assert kind in result.receipt["output"]["types"]
    assert typed("verify", HERE / f"{name}-0.uqff", result.path).code == 0
    logits, plain = (np.asarray(forward(graph_of(str(path)), TOKENS)) for path in (result.path, PLAIN))
    assert np.linalg.norm(logits - plain) < 3 * bound * np.linalg.norm(plain)


def test_afq_is_carried_in_blocks_that_hold_its_groups(tmp_path: Path) -> None:
    """Four bits become Q4_1, scales rounded to float16; embeddings have six, which no block holds."""
    result = convert(Request(str(HERE / "afq4-0.uqff"), str(tmp_path / "o.gguf")))[0]
    convert(Request(str(PLAIN), str(tmp_path / "plain.gguf"), level="none"))
    stored, plain = load_file(HERE / "afq4-0.uqff"), gguf.GGUFReader(tmp_path / "plain.gguf").tensors
    expected = {each.name: gguf.quants.dequantize(each.data, each.tensor_type) for each in plain}
    names = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "attn_v": "self_attn.v_proj"}
    for each in gguf.GGUFReader(result.path).tensors:
        values = gguf.quants.dequantize(each.data, each.tensor_type)
        quantized = each.tensor_type.name == "Q4_1"
        bound = 0.1 if quantized else 0.03 if each.name == "token_embd.weight" else 0
        assert np.linalg.norm(values - expected[each.name]) <= bound * np.linalg.norm(expected[each.name]), each.name
        _, block, kind, *_ = f"{each.name}..".split(".")
        if kind in names:  # level × scale + bias, levels of four bits from the lowest of each word on
            at = f"model.layers.{block}.{names[kind]}.weight"
            levels = (stored[at][..., None] >> np.arange(0, 32, 4, dtype=np.uint32)) & 15
            found = levels.reshape(len(values), -1) * stored[f"{at}.scales"] + stored[f"{at}.biases"]
            assert quantized and np.allclose(values, found, rtol=0, atol=1e-3)
    assert "Q4_1 ×12" in result.receipt["output"]["types"]


def test_a_folder_of_several_and_what_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(AmbiguousError, match=r"several quantizations.*name one of its files"):
        open_checkpoint(str(HERE))
    other = shutil.copytree(HERE, tmp_path / "hqq", ignore=shutil.ignore_patterns("q*"))
    path, metadata = other / "afq4-0.uqff", {"uqff.version": "1.2.0"}
    save_file({**load_file(path), f"{NAME}.format": np.array(2, np.uint8)}, path, metadata)
    with pytest.raises(UnsupportedError, match=r"packing of .*found HQQ \(2\), expected 0, 1, 4"):
        open_checkpoint(str(path))
    save_file(
        {key: value for key, value in load_file(HERE / "afq4-0.uqff").items() if key != f"{NAME}.scales"},
        path,
        metadata,
    )
    with pytest.raises(MissingError, match=r"up_proj\.weight\.scales"):
        open_checkpoint(str(path))
    folder = shutil.copytree(HERE, tmp_path / "m", ignore=shutil.ignore_patterns("afq*", "q4*"))
    open_checkpoint(str(folder)).close()
    shutil.move(folder / "q8_0-0.uqff", folder / "q8_0-1.uqff")
    with pytest.raises(NotFoundError, match=r"q8_0-0\.uqff"):
        open_checkpoint(str(folder))
    shutil.move(folder / "q8_0-1.uqff", folder / "q8_0-0.uqff")
    (folder / "residual.safetensors").unlink()
    with pytest.raises(NotFoundError, match="what is not quantized is missing"):
        open_checkpoint(str(folder / "q8_0-0.uqff"))


BROKEN: dict[str, tuple[Callable[[dict[str, Any]], Any], type[GgferryError], str]] = {
    "type": (lambda t: t.update({f"{NAME}.dtype": np.array(999, np.uint32)}), UnsupportedTypeError, "found 999"),
    "shape": (lambda t: t.update({f"{NAME}.shape": np.array([95, 64], np.uint32)}), ShapeError, "bytes of Q8_0"),
    "zero": (lambda t: t.update({f"{NAME}.shape": np.array([0, 64], np.uint32)}), ShapeError, "shape of"),
    "row": (lambda t: t.update({f"{NAME}.shape": np.array([192, 31], np.uint32)}), ShapeError, "up_proj"),
    "axes": (lambda t: t.update({f"{NAME}.shape": np.ones(9, np.uint32)}), ShapeError, r"shape'"),
    "missing": (lambda t: t.pop(f"{NAME}.shape"), MissingError, r"up_proj\.weight\.shape"),
    "floats": (lambda t: t.update({f"{NAME}.format": np.array(0, np.float32)}), ShapeError, r"format'"),
    "short": (lambda t: t.update({NAME: t[NAME][:-1]}), ShapeError, "data of"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_broken_is_named(case: str, tmp_path: Path) -> None:
    change, kind, words = BROKEN[case]
    folder = shutil.copytree(HERE, tmp_path / "m", ignore=shutil.ignore_patterns("afq*", "q4*"))
    path = folder / "q8_0-0.uqff"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, {"uqff.version": "1.2.0"})
    with pytest.raises(kind, match=words):
        open_checkpoint(str(path))


@pytest.mark.parametrize("version", ["0.2.0", "2.0.0", None])
def test_other_versions(version: str | None, tmp_path: Path) -> None:
    folder = shutil.copytree(HERE, tmp_path / "m", ignore=shutil.ignore_patterns("afq*", "q4*"))
    path = folder / "q8_0-0.uqff"
    save_file(load_file(path), path, {"uqff.version": version} if version else None)
    with pytest.raises(UnsupportedVersionError, match=f"found {version or 'none stated'}"):
        open_checkpoint(str(path))


def test_every_cut_is_an_error_of_ours(tmp_path: Path) -> None:
    folder = shutil.copytree(HERE, tmp_path / "m", ignore=shutil.ignore_patterns("afq*", "q4*"))
    path, whole = folder / "q8_0-0.uqff", (HERE / "q8_0-0.uqff").read_bytes()
    (length,) = struct.unpack("<Q", whole[:8])
    assert "lm_head.weight" not in json.loads(whole[8 : 8 + length])
    for size in [*range(9, length + 300, length // 9), len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(GgferryError):
            open_checkpoint(str(path))
