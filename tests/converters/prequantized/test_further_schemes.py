"""Schemes of AWQ, bitsandbytes and others. The packing is written here element by element from the schemes' own
descriptions and shares nothing with the code that reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion_plan.steps import Options
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
from helpers.packed_further import BLOCKS, CASES, affine, mlx
from helpers.quantized_llama import (
    Tensors,
    changed,
    check_file,
    first_nan,
    gguf_name,
    in_gguf_order,
    model,
    request,
    without,
    write,
)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("case", CASES)
def test_f32_is_what_the_scheme_means(case: str, tmp_path: Path) -> None:
    """Bit for bit, through the layouts, and the forward pass of both sides agrees."""
    quantize, config = CASES[case]
    tensors, meaning = model(quantize)
    result = convert(request(write(tmp_path / "in", tensors, config), tmp_path / "out.gguf"))[0]
    check_file(tmp_path / "out.gguf", meaning, "F32")
    assert result.receipt["logits"]["relative_rms"] < 2e-6
    records = {record["name"]: record for record in result.receipt["tensors"]}
    for name in meaning:
        record = records[gguf_name(name)]
        assert record["grade"] == "repacked" and record["max_error"] == 0 and record["dequantized_from"]
    assert any("quantized already" in note for note in result.receipt["notes"])


def test_mlx_says_it_under_a_name_of_its_own(tmp_path: Path) -> None:
    """Older mlx-lm writes `quantization` alone, and quantizes the embeddings, too."""
    tensors, meaning = model(affine(4, 32))
    made, embedding = affine(4, 32)("model.embed_tokens.weight", np.zeros((72, 64)), np.random.default_rng(3))
    source = write(tmp_path / "in", tensors | made, None, quantization=mlx(4, 32))
    convert(request(source, tmp_path / "out.gguf"))
    check_file(tmp_path / "out.gguf", meaning, "F32")
    found = {tensor.name: tensor.data for tensor in gguf.GGUFReader(tmp_path / "out.gguf").tensors}
    assert np.array_equal(found["token_embd.weight"], embedding)


@pytest.mark.parametrize("case", BLOCKS)
def test_blocks_that_gguf_has_are_laid_out_anew(case: str, tmp_path: Path) -> None:
    """'keep' keeps them: gguf-py's own decoder, which shares nothing with ours, finds the same values."""
    quantize, config, types = BLOCKS[case]
    tensors, meaning = model(quantize)
    source = write(tmp_path / "in", tensors, config, dtype=None)
    result = convert(request(source, tmp_path / "out.gguf", "keep"))[0]
    assert any("laid out as GGUF has" in note for note in result.receipt["notes"])
    found = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "out.gguf").tensors}
    for name, weight in meaning.items():
        tensor = found[gguf_name(name)]
        assert tensor.tensor_type.name == next((v for k, v in types.items() if k and k in tensor.name), types[""])
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        assert np.array_equal(values, in_gguf_order(name, weight)), name
    convert(request(source, tmp_path / "f32.gguf"))
    check_file(tmp_path / "f32.gguf", meaning, "F32")


@pytest.mark.parametrize("case", ["awq", "bnb nested nf4", "bnb int8", "bitnet", "mlx 4", "ct nvfp4"])
def test_integers_are_not_quantized_again_unasked(case: str, tmp_path: Path) -> None:
    quantize, config = CASES[case]
    asked = request(write(tmp_path / "in", model(quantize)[0], config), tmp_path / "out.gguf", "iq4_nl", "fast")
    with pytest.raises(RefusedError, match=r"blk.*already.*--allow-requantize"):
        convert(asked)
    convert(replace(asked, options=Options(outtype="iq4_nl", allow_requantize=True)))
    assert open_gguf(str(tmp_path / "out.gguf")).tensors["blk.0.attn_q.weight"].type.name == "IQ4_NL"


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


def _text(old: str, new: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """A tensor of bytes with another text."""
    return lambda tensor: torch.tensor(list(bytes(tensor.tolist()).replace(old.encode(), new.encode()))).byte()


STATE = "bitsandbytes__nf4"
BROKEN: list[tuple[str, Callable[[Tensors], None], type[GgferryError]]] = [
    ("awq", without(".qzeros"), MissingError),
    ("awq", without(".scales"), MissingError),
    ("awq", changed(".qzeros", lambda t: t[:, :-1]), ShapeError),
    ("awq", changed(".scales", lambda t: t[:-1]), ShapeError),
    ("awq", changed(".qweight", lambda t: t.long()), UnsupportedError),
    ("awq", changed(".scales", first_nan), BadValueError),
    ("bnb nf4", without("absmax"), MissingError),
    ("bnb nf4", without("quant_map"), MissingError),
    ("bnb nf4", without(".down_proj.weight"), MissingError),
    ("bnb nf4", changed("absmax", lambda t: t[:-1]), ShapeError),
    ("bnb nf4", changed("absmax", lambda t: t.byte()), UnsupportedError),
    ("bnb nf4", changed("quant_map", lambda t: t[:-1]), ShapeError),
    ("bnb nf4", changed("quant_map", first_nan), BadValueError),
    ("bnb nf4", changed(".down_proj.weight", lambda t: t[1:]), ShapeError),
    ("bnb nf4", changed(STATE, _text("{", "[")), InconsistentError),
    ("bnb nf4", changed(STATE, lambda t: torch.tensor(list(b"[" * 60000)).byte()), InconsistentError),
    ("bnb nf4", changed(STATE, lambda t: torch.zeros(1 << 17).byte()), ShapeError),
    ("bnb nf4", changed(STATE, _text('"blocksize": 64', '"blocksize": 0')), InconsistentError),
    ("bnb nf4", changed(STATE, _text("[64, 64]", "[64, -64]")), InconsistentError),
    ("bnb nf4", changed(STATE, _text("[64, 64]", "[64, 66]")), ShapeError),
    ("bnb nested nf4", without("nested_quant_map"), MissingError),
    ("bnb nested nf4", changed("nested_absmax", lambda t: t[:-1]), ShapeError),
    ("bnb nested nf4", changed(STATE, _text("nested_offset", "offset")), InconsistentError),
    ("modelopt nvfp4", without("weight_scale_2"), MissingError),
    ("modelopt nvfp4", without("weight_scale"), MissingError),
    ("modelopt nvfp4", changed("weight_scale", lambda t: t[:-1]), ShapeError),
    ("modelopt nvfp4", changed("weight_scale", lambda t: t.float()), UnsupportedError),
    ("modelopt nvfp4", changed("weight_scale_2", first_nan), BadValueError),
    ("ct packed int3, dense", changed("weight_packed", lambda t: t[:, :-1]), UnsupportedError),
    ("ct nvfp4", without("weight_scale"), MissingError),
    ("ct nvfp4", changed("weight_scale", lambda t: t[:, :-1]), ShapeError),
    ("ct nvfp4", changed("weight_global_scale", lambda t: t * 0), BadValueError),
    ("ct nvfp4", without("weight_global_scale"), UnsupportedError),
    ("ct mxfp8", changed("weight_scale", lambda t: t[:-1]), ShapeError),
    ("ct mxfp8", changed("weight_scale", lambda t: t * 0 + 255), BadValueError),
    ("nvfp4 of mlx", changed("scales", lambda t: t | 128), BadValueError),
    ("nvfp4 of mlx", changed("scales", lambda t: t[1:]), ShapeError),
    ("mxfp4 of mlx", without("scales"), MissingError),
    ("mxfp4 of mlx", changed("scales", lambda t: t * 0 + 255), BadValueError),
    ("bitnet", without("weight_scale"), MissingError),
    ("bitnet", changed("weight_scale", lambda t: torch.cat((t, t))), ShapeError),
    ("bitnet", changed("weight_scale", lambda t: t * 0), BadValueError),
    ("mlx 4", without("scales"), MissingError),
    ("mlx 4", without("biases"), MissingError),
    ("mlx 4", changed("biases", lambda t: t[:-1]), ShapeError),
    ("mlx 4", changed("scales", first_nan), BadValueError),
    ("bnb int8", without("SCB"), MissingError),
    ("bnb int8", changed("SCB", lambda t: t[:-1]), ShapeError),
    ("bnb int8", changed("weight_format", lambda t: t + 1), UnsupportedError),
]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("number", range(len(BROKEN)))
def test_what_contradicts_itself_is_refused(number: int, tmp_path: Path) -> None:
    case, change, error = BROKEN[number]
    quantize, config, *_ = {**CASES, **BLOCKS}[case]
    tensors, _ = model(quantize)
    change(tensors)
    with pytest.raises(error):
        convert(request(write(tmp_path / "in", tensors, config), tmp_path / "out.gguf", level="fast"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


@pytest.mark.parametrize(
    ("case", "changes", "error"),
    [
        ("awq", {"version": "marlin"}, UnsupportedError),
        ("awq", {"version": "llm-awq"}, UnsupportedError),
        ("awq", {"bits": 3}, UnsupportedError),
        ("awq", {"group_size": 0}, OutOfRangeError),
        ("awq", {"group_size": "32"}, OutOfRangeError),
        ("awq", {"group_size": 64}, ShapeError),
        ("bitnet", {"linear_class": "other"}, UnsupportedError),
        ("bitnet", {"use_rms_norm": True}, UnsupportedError),
        ("mlx 4", {"bits": 7}, UnsupportedError),
        ("mlx 4", {"mode": "other"}, UnsupportedError),
        ("mlx 4", {"group_size": 40}, InconsistentError),
        ("mlx 4", {"group_size": 16}, ShapeError),
        ("modelopt nvfp4", {"quant_algo": "W4A8_AWQ"}, UnsupportedError),
        ("ct nvfp4", {"format": "marlin-24"}, UnsupportedError),
    ],
)
def test_other_variants_are_refused(
    case: str, changes: dict[str, Any], error: type[GgferryError], tmp_path: Path
) -> None:
    quantize, config = CASES[case]
    source = write(tmp_path / "in", model(quantize)[0], config | changes)
    with pytest.raises(error):
        convert(request(source, tmp_path / "out.gguf", level="fast"))
