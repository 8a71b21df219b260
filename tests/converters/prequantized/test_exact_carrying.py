"""Quantized matrices that fit GGUF's blocks arrive with the values they were published with.

gguf-py decodes the blocks, the helpers state what each scheme means, and llama.cpp computes with the files; none of
them shares code with ours.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
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
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.model_graph.rows import values_of
from ggferry.converters.prequantized import exact_blocks
from ggferry.converters.prequantized.exact_blocks import run_length
from ggferry.converters.understand import understand
from ggferry.formats.errors import BadValueError, RefusedError, UnsupportedError, VerificationError
from ggferry.quant.pack_levels import pack
from ggferry.support.progress import silent
from helpers.llama_api import encoded_and_decoded
from helpers.packed_fp8_gptq import compressed, fp8, gptq, gptq_config, integers
from helpers.packed_further import AWQ, BLOCKS, BNB8, affine, awq, four_bits, int8, mlx, packed_integers, ternary
from helpers.quantized_llama import Quantize, Tensors, changed, gguf_name, in_gguf_order, model, request, write
from helpers.third_party_fixtures import FIXTURES
from helpers.values import decoded

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
VOCABULARY = FIXTURES / "tokenizers" / "spm_bpe"

AUTO_ROUND = {"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": True, "data_type": "int"}

EXACT: dict[str, tuple[Quantize, dict[str, Any], str]] = {
    "gptq 4, symmetric, 32": (gptq(4, 32, symmetric=True), gptq_config(4, 32), "Q4_0"),
    "gptq 4, symmetric, v2, 64, bf16": (
        gptq(4, 64, symmetric=True, version=2, scales=BF16),
        gptq_config(4, 64, checkpoint_format="gptq_v2"),
        "Q4_0",
    ),
    "gptq 4, symmetric, a row": (gptq(4, -1, symmetric=True, order="none"), gptq_config(4, -1), "Q4_0"),
    "gptq 3, symmetric": (gptq(3, 32, symmetric=True), gptq_config(3, 32), "Q4_0"),
    "gptq 2, symmetric": (gptq(2, 32, symmetric=True), gptq_config(2, 32), "Q4_0"),
    "gptq 8, symmetric": (gptq(8, 32, symmetric=True), gptq_config(8, 32), "Q8_0"),
    "gptq 4": (gptq(4, 32), gptq_config(4, 32), "Q5_0"),
    "gptq 4, 128, bf16": (gptq(4, 128, scales=BF16), gptq_config(4, 128), "Q5_0"),
    "gptq 3": (gptq(3, 64), gptq_config(3, 64), "Q4_0"),
    "gptq 2": (gptq(2, 32), gptq_config(2, 32), "Q4_0"),
    "auto-round as gptq": (
        gptq(4, 32, symmetric=True, order="none"),
        {**AUTO_ROUND, "packing_format": "auto_round:auto_gptq"},
        "Q4_0",
    ),
    "auto-round, zero points as they are": (
        gptq(4, 32, version=2, order="none"),
        {**AUTO_ROUND, "packing_format": "auto_round", "sym": False},
        "Q5_0",
    ),
    "auto-round, 8 among 4": (
        gptq(8, 32, order="none", symmetric=True),
        {**AUTO_ROUND, "group_size": 64, "extra_config": {".*_proj": {"bits": 8, "group_size": 32}}},
        "Q8_0",
    ),
    "gptq 4, v2 by GPTQModel's name": (
        gptq(4, 32, version=2),
        {"method": "gptq", "bits": 4, "group_size": 32, "format": "gptq_v2"},
        "Q5_0",
    ),
    "auto-round as awq": (awq(32), {**AUTO_ROUND, "packing_format": "auto_round:auto_awq", "sym": False}, "Q5_0"),
    "awq with z = 8": (awq(32, symmetric=True), AWQ, "Q4_0"),
    "awq": (awq(64), {**AWQ, "group_size": 64}, "Q5_0"),
    "awq, bf16, a row": (awq(-1, BF16), {**AWQ, "group_size": -1}, "Q5_0"),
    "int4, as of Kimi K2": (integers(4, 32, packed=True), compressed(4, 32, "pack-quantized"), "Q4_0"),
    "int4, asymmetric": (
        integers(4, 32, packed=True, symmetric=False),
        compressed(4, 32, "pack-quantized", False),
        "Q5_0",
    ),
    "int8, a row": (integers(8, None, packed=False), compressed(8, None, "int-quantized"), "Q8_0"),
    "int8, 32": (integers(8, 32, packed=True), compressed(8, 32, "pack-quantized"), "Q8_0"),
    "int6": (packed_integers(6, 32, dense=False), compressed(6, 32, "pack-quantized"), "Q8_0"),
    "int5": (packed_integers(5, 32, dense=True), compressed(5, 32, "pack-quantized"), "Q5_0"),
    "int3": (packed_integers(3, 32, dense=False), compressed(3, 32, "pack-quantized"), "Q4_0"),
    "mlx 2, 32": (affine(2, 32), mlx(2, 32), "Q4_1"),
    "mlx 3, 32, f16": (affine(3, 32, F16), mlx(3, 32), "Q4_1"),
    "mlx 4, 32": (affine(4, 32), mlx(4, 32), "Q4_1"),
    "mlx 5, 32, f16": (affine(5, 32, F16), mlx(5, 32), "Q5_1"),
    "bitnet that multiplies": (ternary(True), {"quant_method": "bitnet", "linear_class": "autobitlinear"}, "Q4_0"),
}
"""What GGUF has blocks for: how it is packed, its configuration, and the type of the blocks."""

SHOWN = ("gptq 4, symmetric, 32", "awq", "int8, a row", "mlx 4, 32")
"""Those of which more is shown by default: a case for each block."""

NOT_EXACT: dict[str, tuple[Quantize, dict[str, Any], str]] = {
    "act-order": (gptq(4, 32, order="desc_act", symmetric=True), gptq_config(4, 32, desc_act=True), "act-order"),
    "act-order of compressed-tensors": (
        integers(4, 32, packed=True, order=True),
        compressed(4, 32, "pack-quantized"),
        "act-order",
    ),
    "groups of 16": (gptq(4, 16, symmetric=True), gptq_config(4, 16), "groups of 16"),
    "gptq 8": (gptq(8, 32), gptq_config(8, 32), "outside −128 to 127"),
    "mlx 6": (affine(6, 32), mlx(6, 32), "64 levels"),
    "mlx 8": (affine(8, 32), mlx(8, 32), "256 levels"),
    "nf4": (four_bits("nf4", 64), {"quant_method": "bitsandbytes", "load_in_4bit": True}, "NF4"),
}


def changed_values(path: Path, meaning: dict[str, np.ndarray]) -> int:
    """How many values a file has that differ in a bit from what the source means (negative zeros are zeros)."""
    found, count = decoded(path), 0
    for name, weight in meaning.items():
        expected = in_gguf_order(name, weight) + np.float32(0)
        values = found[gguf_name(name)][1].reshape(expected.shape) + np.float32(0)
        count += int(np.count_nonzero(values.view(np.uint32) != expected.view(np.uint32)))
    return count


@pytest.mark.sampled(10)
@pytest.mark.parametrize("case", EXACT)
def test_every_value_is_the_published_one(case: str, tmp_path: Path) -> None:
    quantize, config, kind = EXACT[case]
    tensors, meaning = model(quantize, 128 if "128" in case else 96)
    source = write(tmp_path / "in", tensors, config, intermediate_size=128 if "128" in case else 96)
    result = convert(request(source, tmp_path / "out.gguf", "keep", "fast"))[0]
    assert changed_values(tmp_path / "out.gguf", meaning) == 0
    records = {record["name"]: record for record in result.receipt["tensors"]}
    for name in meaning:
        record = records[gguf_name(name)]
        assert record["type"] == kind
        assert record["grade"] == "repacked" and record["max_error"] == 0 and record["relative_rms"] == 0
        assert record["repacked_from"]
    assert any(f"fit blocks of {kind}" in note for note in result.receipt["notes"])
    if case in SHOWN:
        again = reverify(Request(str(source), vocab=request(source, source).vocab), result.path, silent)
        assert {proof.name: proof.grade for proof in again.proof.tensors}["blk.0.attn_q.weight"] == "repacked"


@pytest.mark.parametrize("more", [{"packing_format": "auto_round:fp8"}, {"data_type": "mx_fp"}])
def test_other_formats_of_auto_round_are_refused_by_name(more: dict[str, Any], tmp_path: Path) -> None:
    tensors, _ = model(gptq(4, 32, symmetric=True, order="none"))
    with pytest.raises(UnsupportedError, match="auto-round"):
        convert(request(write(tmp_path / "in", tensors, {**AUTO_ROUND, **more}), tmp_path / "out.gguf", "keep"))


def blocks_of_4_0(levels: np.ndarray, scales: np.ndarray) -> bytes:
    """`block_q4_0`, element by element: byte j holds elements j and j + 16."""
    out = bytearray()
    for row, own in zip(levels.tolist(), scales, strict=True):
        for block in range(len(row) // 32):
            part = row[block * 32 : block * 32 + 32]
            out += np.float16(own[block]).tobytes()
            out += bytes(part[j] + 8 | part[j + 16] + 8 << 4 for j in range(16))
    return bytes(out)


def test_the_bytes_are_the_levels_and_scales_of_the_source(tmp_path: Path) -> None:
    """Of V, whose rows are not permuted; and Q's blocks are those rows in llama.cpp's order."""
    tensors, meaning = model(integers(4, 32, packed=True))
    convert(request(write(tmp_path / "in", tensors, compressed(4, 32, "pack-quantized")), tmp_path / "o.gguf", "keep"))
    found = {tensor.name: tensor.data.tobytes() for tensor in gguf.GGUFReader(tmp_path / "o.gguf").tensors}
    for name in ("model.layers.1.self_attn.v_proj.weight", "model.layers.1.self_attn.q_proj.weight"):
        scales = tensors[f"{name}_scale"].float().numpy()
        levels = np.round(meaning[name] / np.repeat(scales, 32, 1)).astype(int)
        assert found[gguf_name(name)] == blocks_of_4_0(in_gguf_order(name, levels), in_gguf_order(name, scales))


@pytest.mark.parametrize("case", NOT_EXACT)
def test_what_no_block_holds_is_dequantized_and_named(case: str, tmp_path: Path) -> None:
    quantize, config, why = NOT_EXACT[case]
    source = write(tmp_path / "in", model(quantize)[0], config)
    receipt = convert(request(source, tmp_path / "out.gguf", "keep", "fast"))[0].receipt
    assert any(why in note and "are dequantized" in note for note in receipt["notes"])
    record = next(record for record in receipt["tensors"] if record["name"] == "blk.0.attn_q.weight")
    assert record["type"] == "BF16" and why in record["why"] and record["dequantized_from"]


@pytest.mark.parametrize(
    ("quantize", "config", "kind"),
    [
        (int8, BNB8, "Q8_0"),
        (gptq(4, 32, scales=F32, symmetric=True), gptq_config(4, 32), "Q4_0"),
        (affine(4, 32, F32), mlx(4, 32), "Q4_1"),
        (ternary(False), {"quant_method": "bitnet"}, "Q4_0"),
    ],
)
def test_scales_that_are_no_float16_are_rounded_and_the_figure_is_stated(
    quantize: Quantize, config: dict[str, Any], kind: str, tmp_path: Path
) -> None:
    tensors, meaning = model(quantize)
    source = write(tmp_path / "in", tensors, config)
    result = convert(request(source, tmp_path / "out.gguf", "keep"))[0]
    found = decoded(tmp_path / "out.gguf")
    for record in result.receipt["tensors"]:
        if record["name"].startswith("blk.") and "norm" not in record["name"]:
            name = next(name for name in meaning if gguf_name(name) == record["name"])
            expected = in_gguf_order(name, meaning[name]).astype(np.float64)
            type_of, values = found[record["name"]]
            rms = np.sqrt(np.square(values - expected).sum() / np.square(expected).sum())
            assert (type_of, record["type"]) == (kind, kind) and record["grade"] == "rescaled"
            assert 0 < record["relative_rms"] == pytest.approx(rms, rel=1e-4) and rms < 2**-11
    again = reverify(Request(str(source), vocab=request(source, source).vocab), result.path, silent)
    assert {proof.name: proof.grade for proof in again.proof.tensors}["blk.0.attn_q.weight"] == "rescaled"


def test_one_changed_bit_is_noticed(tmp_path: Path) -> None:
    """Also in a scale that was rounded, where the change is smaller than rounding could be."""
    source = write(tmp_path / "in", model(int8)[0], BNB8)
    result = convert(request(source, tmp_path / "out.gguf", "keep", "fast"))[0]
    place = next(record for record in result.receipt["tensors"] if record["name"] == "blk.1.ffn_up.weight")
    data = bytearray((tmp_path / "out.gguf").read_bytes())
    data[place["offset"]] ^= 1
    (tmp_path / "other.gguf").write_bytes(data)  # without a receipt, whose digest would tell
    asked = Request(str(source), vocab=request(source, source).vocab)
    again = reverify(asked, str(tmp_path / "other.gguf"), silent)
    assert {proof.name: proof.grade for proof in again.proof.tensors}["blk.1.ffn_up.weight"] == "rounded"


@pytest.mark.parametrize("quantize", [int8, integers(4, 32, packed=True)])
def test_the_proof_does_not_believe_the_packing(
    quantize: Quantize, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It compares with the values by the scheme's formula, which share nothing with it."""
    config = BNB8 if quantize is int8 else compressed(4, 32, "pack-quantized")
    monkeypatch.setattr(exact_blocks, "pack", lambda kind, levels, *rest: pack(kind, levels[:, ::-1], *rest))
    with pytest.raises(VerificationError, match=r"lies further from the source|not the bytes"):
        convert(request(write(tmp_path / "in", model(quantize)[0], config), tmp_path / "out.gguf", "keep", "fast"))


def test_dequantize_makes_plain_numbers_as_before(tmp_path: Path) -> None:
    tensors, _ = model(gptq(4, 32, symmetric=True))
    asked = request(write(tmp_path / "in", tensors, gptq_config(4, 32)), tmp_path / "out.gguf", level="fast")
    receipt = convert(replace(asked, options=Options(outtype="keep", dequantize=True)))[0].receipt
    assert {kind for name, (kind, _) in decoded(tmp_path / "out.gguf").items() if "proj" in name or "ffn" in name} == {
        "F32",
        "BF16",
    }
    assert receipt["options"]["dequantize"] is True


def test_dequantize_is_said_of_mxfp4_too(tmp_path: Path) -> None:
    """Its blocks are GGUF's own, and are kept unless one asks for numbers."""
    quantize, config, _ = BLOCKS["mxfp4 of compressed-tensors"]
    asked = request(write(tmp_path / "in", model(quantize)[0], config), tmp_path / "out.gguf", level="fast")
    convert(replace(asked, options=Options(dequantize=True)))
    assert decoded(tmp_path / "out.gguf")["blk.0.ffn_up.weight"][0] == "BF16"


def test_another_type_is_made_of_floats_and_told_what_would_be_exact(tmp_path: Path) -> None:
    tensors, _ = model(gptq(4, 32, symmetric=True))
    source = write(tmp_path / "in", tensors, gptq_config(4, 32))
    asked = request(source, tmp_path / "out.gguf", "q4_1", "fast")
    with pytest.raises(RefusedError, match=r"--allow-requantize, or --outtype keep, which carries it as Q4_0"):
        convert(asked)
    receipt = convert(replace(asked, options=Options(outtype="q4_1", allow_requantize=True)))[0].receipt
    assert any("'keep' carries them" in note for note in receipt["notes"])
    assert next(r for r in receipt["tensors"] if r["name"] == "blk.0.ffn_up.weight")["grade"] == "rounded"


@pytest.mark.parametrize("outtype", ["q4_0", "q8_0", "q5_0"])
def test_a_type_that_holds_the_values_is_not_rounded_to(outtype: str, tmp_path: Path) -> None:
    """A wider block of the same kind holds them as well."""
    tensors, meaning = model(gptq(4, 32, symmetric=True))
    options = Options(outtype=outtype, pure=True)
    asked = request(write(tmp_path / "in", tensors, gptq_config(4, 32)), tmp_path / "out.gguf", level="fast")
    convert(replace(asked, options=options))
    assert changed_values(tmp_path / "out.gguf", meaning) == 0
    assert decoded(tmp_path / "out.gguf")["blk.0.ffn_up.weight"][0] == outtype.upper()


@pytest.mark.parametrize("outtype", ["keep", "tq1_0", "tq2_0"])
def test_ternary_rows_of_256_have_ternary_blocks(outtype: str, tmp_path: Path) -> None:
    tensors, meaning = model(ternary(True), 256)
    config = {"quant_method": "bitnet", "linear_class": "autobitlinear"}
    source = write(tmp_path / "in", tensors, config, intermediate_size=256)
    options = Options(outtype=outtype, allow_requantize=True)
    convert(replace(request(source, tmp_path / "out.gguf", level="fast"), options=options))
    kind, values = decoded(tmp_path / "out.gguf")["blk.0.ffn_down.weight"]
    assert kind == ("TQ2_0" if outtype == "keep" else outtype.upper())
    assert np.array_equal(values, meaning["model.layers.0.mlp.down_proj.weight"])


def test_rows_that_are_no_whole_blocks_are_dequantized_alone(tmp_path: Path) -> None:
    tensors, meaning = model(gptq(4, 32, symmetric=True), 80)
    source = write(tmp_path / "in", tensors, gptq_config(4, 32), intermediate_size=80)
    receipt = convert(request(source, tmp_path / "out.gguf", "keep", "fast"))[0].receipt
    records = {record["name"]: record for record in receipt["tensors"]}
    assert "rows of 80 are not whole blocks" in records["blk.0.ffn_down.weight"]["why"]
    del meaning["model.layers.0.mlp.down_proj.weight"], meaning["model.layers.1.mlp.down_proj.weight"]
    del meaning["model.layers.2.mlp.down_proj.weight"]
    assert changed_values(tmp_path / "out.gguf", meaning) == 0


def test_any_rows_of_blocks_are_the_same_rows(tmp_path: Path) -> None:
    """Pieces that begin and end anywhere: within words of packed zero points, and within blocks."""
    for number, (case, quantize, config) in enumerate(
        (("awq", awq(32), AWQ), ("gptq", gptq(3, 32), gptq_config(3, 32)), ("mlx", affine(4, 32), mlx(4, 32)))
    ):
        tensors, meaning = model(quantize)
        checkpoint = open_checkpoint(str(write(tmp_path / f"{number}", tensors, config)))
        graph = understand(checkpoint)
        ref = graph.checkpoint.tensors["model.layers.1.mlp.up_proj.weight"]
        kind = ref.derived.exact[0]
        blocks = graph.checkpoint.files[ref.spans[0].file].as_blocks(ref, kind)
        for start, stop in ((0, 1), (5, 6), (7, 23), (63, 96)):
            found = values_of(graph.checkpoint, blocks, start, stop)
            assert np.array_equal(found, meaning[ref.name][start:stop]), case
        checkpoint.close()


def test_scales_beyond_float16_are_an_error_with_a_way_out(tmp_path: Path) -> None:
    tensors, _ = model(gptq(4, 32, scales=F32, symmetric=True))
    changed(".scales", lambda scales: scales * 1e8)(tensors)
    source = write(tmp_path / "in", tensors, gptq_config(4, 32))
    with pytest.raises(BadValueError, match="beyond float16") as caught:
        convert(request(source, tmp_path / "out.gguf", "keep", "fast"))
    assert caught.value.hint == "--dequantize"
    asked = request(source, tmp_path / "out.gguf", level="fast")
    convert(replace(asked, options=Options(dequantize=True)))


def test_small_scales_are_subnormal_or_nothing(tmp_path: Path) -> None:
    """A bfloat16 is a float16 from 2^-17 up; below, it is rounded, and what is lost is stated."""
    tensors, meaning = model(gptq(4, 32, scales=BF16, symmetric=True))
    small = torch.tensor([2.0**-17 * 1.9921875, 2.0**-20 * 1.9921875, 2.0**-26, 0.0]).bfloat16()
    name = "model.layers.0.mlp.up_proj"
    scales = tensors[f"{name}.scales"]
    meaning[f"{name}.weight"][:4, :32] *= (small / scales[0, :4]).float().numpy()[:, None]
    scales[0, :4] = small
    source = write(tmp_path / "in", tensors, gptq_config(4, 32))
    receipt = convert(request(source, tmp_path / "out.gguf", "keep", "fast"))[0].receipt
    grades = {record["name"]: record["grade"] for record in receipt["tensors"]}
    assert grades["blk.0.ffn_up.weight"] == "rescaled" and grades["blk.1.ffn_up.weight"] == "repacked"
    found = decoded(tmp_path / "out.gguf")["blk.0.ffn_up.weight"][1]
    own = np.frombuffer(
        next(t for t in gguf.GGUFReader(tmp_path / "out.gguf").tensors if t.name == "blk.0.ffn_up.weight").data,
        np.uint8,
    ).reshape(96, 2, 18)[:4, 0, :2]
    halves = own.copy().view(np.float16).reshape(-1).astype(np.float32)
    assert halves[0] == small[0].float() and halves[1] == np.float16(small[1].float()) and not halves[2:].any()
    assert np.array_equal(found[4:], meaning[f"{name}.weight"][4:])


def test_recipes_see_what_a_tensor_was(tmp_path: Path) -> None:
    """As upstream's --fp8-as-q8, for matrices of FP8 alone; here of a model whose V is packed integers."""
    tensors, meaning = model(fp8(None, "row", end="_scale", scales=BF16))
    values, meaning_of_values = model(integers(4, 32, packed=True))
    for name in [name for name in tensors if "v_proj" in name]:
        del tensors[name]
    tensors |= {name: tensor for name, tensor in values.items() if "v_proj" in name}
    config = compressed(4, 32, "mixed-precision")
    weights = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
    config["config_groups"]["group_1"] = {"targets": ["Linear"], "weights": weights}
    source = write(tmp_path / "in", tensors, config)
    recipe = "default keep\nany source=fp8 -> Q8_0\n"
    options = Options(recipe_text=recipe)
    convert(replace(request(source, tmp_path / "out.gguf", level="fast"), options=options))
    kinds = {name: kind for name, (kind, _) in decoded(tmp_path / "out.gguf").items()}
    assert kinds["blk.0.attn_v.weight"] == "Q4_0" and kinds["token_embd.weight"] == "BF16"
    assert {kind for name, kind in kinds.items() if "ffn_" in name and "norm" not in name} == {"Q8_0"}
    v = {name: weight for name, weight in meaning_of_values.items() if "v_proj" in name}
    assert meaning and changed_values(tmp_path / "out.gguf", v) == 0


# --- tied embeddings, experts, and llama.cpp ----------------------------------------------------------------


def with_tokenizer(folder: Path) -> Path:
    shutil.copy(VOCABULARY / "tokenizer.model", folder)
    return folder


def close_to_llama_cpp(path: Path, reference: Path, folder: Path) -> float:
    """Relative error between llama.cpp's logits on two files."""
    tokens = [1, 17, 300, 42, 5, 99, 250, 8]
    ours, theirs = (encoded_and_decoded(str(each), [], tokens, folder) for each in (path, reference))
    assert np.isfinite(ours).all()
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


CLOSE = 0.06
"""The weights are random, so what is rounded in a layer is magnified by the next."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", [*SHOWN, *(pytest.param(c, marks=pytest.mark.slow) for c in EXACT if c not in SHOWN)])
def test_llama_cpp_computes_the_same_with_the_blocks(case: str, tmp_path: Path) -> None:
    """It rounds activations to eight bits where weights are blocks, and nothing else: logits are those of the F32
    file but for that. With the bytes of blocks in another order they are not."""
    quantize, config, _ = EXACT[case]
    tensors, _ = model(quantize, 128, 512)
    source = with_tokenizer(write(tmp_path / "in", tensors, config, vocab_size=512, intermediate_size=128))
    for out, outtype in (("blocks", "keep"), ("floats", "f32")):
        convert(Request(str(source), str(tmp_path / f"{out}.gguf"), Options(outtype=outtype), level="fast"))
    assert close_to_llama_cpp(tmp_path / "blocks.gguf", tmp_path / "floats.gguf", tmp_path) < CLOSE
    if case == SHOWN[0]:
        data = bytearray((tmp_path / "blocks.gguf").read_bytes())
        place = next(t for t in gguf.GGUFReader(tmp_path / "blocks.gguf").tensors if t.name == "blk.0.ffn_up.weight")
        start, size = int(place.data_offset), int(place.n_bytes)
        blocks = np.frombuffer(data[start : start + size], np.uint8).reshape(-1, 18).copy()
        blocks[:, 2:] = blocks[:, :1:-1]
        data[start : start + size] = blocks.tobytes()
        (tmp_path / "blocks.gguf").write_bytes(data)
        assert close_to_llama_cpp(tmp_path / "blocks.gguf", tmp_path / "floats.gguf", tmp_path) > 5 * CLOSE


def experts(folder: Path, quantize: tuple[Quantize, ...], settings: dict[str, Any]) -> dict[str, list[np.ndarray]]:
    """Write a tiny Qwen3 MoE with four experts, quantized in turn; return what the experts of each matrix mean."""
    wide, ff, vocab = 64, 96, 512
    rng = np.random.default_rng(11)
    config = {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": wide,
        "intermediate_size": ff, "moe_intermediate_size": ff, "num_experts": 4, "num_experts_per_tok": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_hidden_layers": 2,
        "vocab_size": vocab, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 128,
        "tie_word_embeddings": False, "hidden_act": "silu", "norm_topk_prob": True, "decoder_sparse_step": 1,
        "mlp_only_layers": [], "torch_dtype": "bfloat16", "quantization_config": settings,
    }  # fmt: skip
    tensors: Tensors = {}
    meaning: dict[str, list[np.ndarray]] = {}

    def plain(name: str, *shape: int) -> None:
        tensors[name] = torch.tensor(rng.normal(len(shape) == 1, 0.1, shape)).bfloat16()

    plain("model.embed_tokens.weight", vocab, wide)
    plain("lm_head.weight", vocab, wide)
    plain("model.norm.weight", wide)
    for n in range(2):
        block = f"model.layers.{n}"
        for name, rows in (("q_proj", 64), ("k_proj", 32), ("v_proj", 32), ("o_proj", 64)):
            plain(f"{block}.self_attn.{name}.weight", rows, 64)
        for name, size in {"self_attn.q_norm": 16, "self_attn.k_norm": 16}.items():
            plain(f"{block}.{name}.weight", size)
        for name in ("input_layernorm", "post_attention_layernorm"):
            plain(f"{block}.{name}.weight", wide)
        plain(f"{block}.mlp.gate.weight", 4, wide)
        for expert in range(4):
            for name, shape in {"gate": (ff, wide), "up": (ff, wide), "down": (wide, ff)}.items():
                weight = f"{block}.mlp.experts.{expert}.{name}_proj.weight"
                values = rng.normal(0, 0.1, shape).astype(np.float32)
                made, meant = quantize[expert % len(quantize)](weight, values, rng)
                tensors.update(made)
                meaning.setdefault(f"blk.{n}.ffn_{name}_exps.weight", []).append(meant)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    with_tokenizer(folder)
    return meaning


@pytest.mark.parametrize(
    ("quantize", "settings", "kind"),
    [
        ((integers(4, 32, packed=True),), compressed(4, 32, "pack-quantized"), "Q4_0"),
        ((awq(32, symmetric=True), awq(32)), AWQ, "Q5_0"),
    ],
)
def test_stacked_experts_have_blocks_that_hold_all_of_them(
    quantize: tuple[Quantize, ...], settings: dict[str, Any], kind: str, tmp_path: Path
) -> None:
    """Kimi's INT4; and AWQ whose experts differ in what their zero points need."""
    meaning = experts(tmp_path / "in", quantize, settings)
    for out, outtype in (("blocks", "keep"), ("floats", "f32")):
        convert(Request(str(tmp_path / "in"), str(tmp_path / f"{out}.gguf"), Options(outtype=outtype), level="fast"))
    found = decoded(tmp_path / "blocks.gguf")
    for name, parts in meaning.items():
        assert found[name][0] == kind and np.array_equal(found[name][1], np.stack(parts)), name
    assert close_to_llama_cpp(tmp_path / "blocks.gguf", tmp_path / "floats.gguf", tmp_path) < CLOSE


def test_tied_embeddings_are_blocks_too(tmp_path: Path) -> None:
    """MLX quantizes them; they are both ends of the model."""
    tensors, meaning = model(affine(4, 64, F16), 128, 512)
    del tensors["lm_head.weight"]
    weight = tensors["model.embed_tokens.weight"].float().numpy()
    made, embedding = affine(4, 64, F16)("model.embed_tokens.weight", weight, np.random.default_rng(3))
    source = with_tokenizer(
        write(
            tmp_path / "in",
            tensors | made,
            None,
            quantization=mlx(4, 64),
            tie_word_embeddings=True,
            vocab_size=512,
            intermediate_size=128,
        )
    )
    for out, outtype in (("blocks", "keep"), ("floats", "f32")):
        convert(Request(str(source), str(tmp_path / f"{out}.gguf"), Options(outtype=outtype), level="fast"))
    found = decoded(tmp_path / "blocks.gguf")
    assert found["token_embd.weight"][0] == "Q4_1" and "output.weight" not in found
    assert np.array_equal(found["token_embd.weight"][1], embedding)
    assert changed_values(tmp_path / "blocks.gguf", meaning) == 0
    assert close_to_llama_cpp(tmp_path / "blocks.gguf", tmp_path / "floats.gguf", tmp_path) < CLOSE


def test_the_longest_run_of_groups_is_found() -> None:
    assert run_length(np.array([0, 0, 0, 0, 1, 1, 1, 1, 2, 2])) == 4
    assert run_length(np.array([0, 0, 0, 0, 1, 1, 2, 2])) == 2
    assert run_length(np.array([3, 3, 3])) == 3
    assert run_length(np.array([0, 1, 0, 1])) == 1
