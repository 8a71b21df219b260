"""GPTQ of 2023 without a configuration: bits and groups follow from shapes, and two readings are an error."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ggferry.converters.conversion.run import convert
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.prequantized.recognize import dequantized
from ggferry.converters.prequantized.schemes._gptq_2023 import group_in
from ggferry.formats.checkpoint import Checkpoint, TensorRef
from ggferry.formats.errors import AmbiguousError, GgferryError, ShapeError, UnsupportedError
from ggferry.quant.codec import block_type
from helpers.packed_fp8_gptq import gptq
from helpers.packed_further import awq
from helpers.packed_others import products
from helpers.quantized_llama import Quantize, gguf_name, in_gguf_order, model, request, write
from helpers.values import decoded, dequantized_values

CASES: dict[str, tuple[Quantize, str]] = {
    "4 bits": (gptq(4, 32, order="none"), "Q5_0"),
    "4 bits, symmetric": (gptq(4, 32, order="none", symmetric=True), "Q4_0"),
    "3 bits, a row": (gptq(3, -1, order="none"), "Q4_0"),
    "2 bits, g_idx": (gptq(2, 32), "Q4_0"),
    "8 bits, symmetric": (gptq(8, 32, order="none", symmetric=True), "Q8_0"),
    "4 bits of March": (products(4, scales=torch.float16), "Q4_1"),
    "3 bits of March": (products(3, scales=torch.float16), "Q4_1"),
    "2 bits of March, groups": (products(2, 32, torch.float16), "Q4_1"),
}
"""How it is packed, and the type of the blocks that hold it."""


@pytest.mark.parametrize("case", CASES)
def test_values_and_blocks_are_what_was_packed(case: str, tmp_path: Path) -> None:
    """Bit for bit."""
    quantize, kind = CASES[case]
    tensors, meaning = model(quantize)
    names = ("model.layers.0.self_attn.k_proj.weight", "model.layers.2.mlp.down_proj.weight")
    for name, found in dequantized_values(write(tmp_path / "in", tensors, None), *names).items():
        assert found[1] == kind
        assert np.array_equal(found[0], meaning[name]) and np.array_equal(found[2], meaning[name])


@pytest.mark.parametrize("case", ["3 bits, a row", "4 bits of March"])
def test_a_model_is_converted_and_computed_a_second_way(case: str, tmp_path: Path) -> None:
    quantize, kind = CASES[case]
    tensors, meaning = model(quantize)
    source = write(tmp_path / "in", tensors, None)
    receipt = convert(request(source, tmp_path / "out.gguf", "keep", "fast"))[0].receipt
    assert receipt["second_reader"]["unread"] == () and receipt["second_reader"]["matrices"] == 21
    assert any("follow from shapes" in note for note in receipt["notes"])
    found = decoded(tmp_path / "out.gguf")
    for name, weight in meaning.items():
        type_of, values = found[gguf_name(name)]
        assert type_of == kind and np.array_equal(values, in_gguf_order(name, weight)), name


def test_a_pt_file_of_any_name_is_read(tmp_path: Path) -> None:
    """As GPTQ-for-LLaMa saved it: the state dict of the quantized model, float32 scales, biases of zeros."""
    tensors, meaning = model(products(4))
    source = write(tmp_path / "in", tensors, None)
    (source / "model.safetensors").unlink()
    torch.save(tensors, source / "llama-7b-4bit.pt")
    receipt = convert(request(source, tmp_path / "out.gguf", "keep", "fast"))[0].receipt
    grades = {record["name"]: record["grade"] for record in receipt["tensors"]}
    assert grades["blk.0.ffn_up.weight"] == "rescaled" and len(receipt["dropped"]) == 21
    values = decoded(tmp_path / "out.gguf")["blk.0.ffn_up.weight"][1]
    assert 0 < np.abs(values - meaning["model.layers.0.mlp.up_proj.weight"]).max() < 2**-12


@pytest.mark.parametrize(
    ("quantize", "error", "named"),
    [
        (awq(32), UnsupportedError, "AWQ"),
        (products(8), AmbiguousError, "bits"),
        (gptq(4, 48, order="none"), AmbiguousError, "group size"),
    ],
)
def test_two_readings_are_refused_with_what_settles_them(
    quantize: Quantize, error: type[GgferryError], named: str, tmp_path: Path
) -> None:
    """AWQ's shapes; 8 bits where 4 and 2 would make widths of others; 2 groups of 96 columns, of 48 or of 64 and 32."""
    ff = 128 if named == "bits" else 96
    tensors, _ = model(quantize, ff)
    if named == "bits":
        tensors["model.rotary_emb.inv_freq"] = torch.zeros(256)
        tensors["model.other.weight"] = torch.zeros(512)
    source = write(tmp_path / "in", tensors, None, intermediate_size=ff)
    with pytest.raises(error, match=named) as caught:
        dequantized(open_checkpoint(str(source)))
    assert caught.value.hint is not None and "quantize_config.json" in caught.value.hint


def test_the_file_beside_it_settles_it(tmp_path: Path) -> None:
    tensors, meaning = model(products(8), 128)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(256)
    tensors["model.layers.1.self_attn.rotary_emb.inv_freq"] = torch.zeros(512)
    source = write(tmp_path / "in", tensors, None, intermediate_size=128)
    (source / "quantize_config.json").write_text(json.dumps({"bits": 8, "group_size": -1}))
    name = "model.layers.0.mlp.down_proj.weight"
    assert np.array_equal(dequantized_values(source, name)[name][0], meaning[name])


@pytest.mark.parametrize(
    ("columns", "groups", "size"),
    [(4096, 32, 128), (11008, 86, 128), (11008, 11, 1024), (6656, 7, 1024), (4096, 1, 4096), (96, 3, 32), (64, 4, 16)],
)
def test_group_sizes_of_real_widths(columns: int, groups: int, size: int) -> None:
    scales = TensorRef("x.scales", block_type("F16"), (groups, 8), ())
    checkpoint = Checkpoint("safetensors", None, (), {}, {}, {})
    assert group_in(checkpoint, {}, scales, columns) == size
    assert group_in(checkpoint, {"group_size": -1}, scales, columns) == columns
    with pytest.raises(AmbiguousError, match="48 or 64"):
        group_in(checkpoint, {}, replace(scales, shape=(2, 8)), 96)


@pytest.mark.parametrize(
    ("end", "change", "error"),
    [
        ("zeros", lambda t: t[:-1], ShapeError),
        ("zeros", lambda t: t.to(torch.int32), UnsupportedError),
        ("scales", lambda t: t[:, :0], ShapeError),
        ("qweight", lambda t: t.reshape(-1), UnsupportedError),
        ("qweight", lambda t: t[:-1], AmbiguousError),
    ],
)
def test_what_contradicts_itself_is_refused(
    end: str, change: Callable[[torch.Tensor], torch.Tensor], error: type[GgferryError], tmp_path: Path
) -> None:
    tensors, _ = model(products(4))
    name = next(name for name in tensors if name.endswith(end))
    tensors[name] = change(tensors[name])
    with pytest.raises(error):
        dequantized(open_checkpoint(str(write(tmp_path / "in", tensors, None))))
