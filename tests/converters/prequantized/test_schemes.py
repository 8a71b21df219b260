"""Checkpoints that are quantized already. The packing here is written from the schemes' own descriptions, element by
element, and shares nothing with the code that reads it; torch is the witness of FP8."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from ggferry.converters.conversion.plan import plan_conversion
from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion.verify import reverify
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.model_graph.rows import values_of
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
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
from ggferry.support.progress import silent
from helpers.packed_fp8_gptq import BLOCKS, CASES, compressed, fp8, gptq, gptq_config, integers
from helpers.quantized_llama import (
    Tensors,
    changed,
    check_file,
    first_nan,
    gguf_name,
    model,
    request,
    without,
    write,
)


@pytest.mark.sampled(2)
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
    assert len(result.receipt["source"]["files"]) == 1
    assert any("quantized already" in note for note in result.receipt["notes"])
    if case == "gptq 4 desc_act":  # the proof can be made again from the file and its receipt
        again = reverify(Request(str(tmp_path / "in"), vocab=VocabOptions(none=True)), result.path, silent)
        assert again.proof.logits is not None


@pytest.mark.parametrize(("dtype", "kind"), [("bfloat16", "BF16"), ("float16", "F16"), (None, "F32")])
def test_keep_is_the_type_the_model_was_made_in(dtype: str | None, kind: str, tmp_path: Path) -> None:
    tensors, meaning = model(fp8((40, 24)))
    result = convert(request(write(tmp_path / "in", tensors, BLOCKS, dtype), tmp_path / "out.gguf", "keep"))[0]
    check_file(tmp_path / "out.gguf", meaning, kind)
    records = {record["name"]: record for record in result.receipt["tensors"]}
    record = records["blk.0.attn_q.weight"]
    assert record["grade"] == ("repacked" if kind == "F32" else "rounded")
    assert (record["relative_rms"] > 0) == (kind != "F32")


def test_blocks_of_fp8_are_transformers_default_where_none_is_stated(tmp_path: Path) -> None:
    size = transformers.FineGrainedFP8Config().weight_block_size
    tensors, meaning = model(fp8(size), ff=300)
    assert tensors["model.layers.0.mlp.up_proj.weight_scale_inv"].shape == (3, 1)
    stated = {key: value for key, value in BLOCKS.items() if key != "weight_block_size"}
    source = write(tmp_path / "in", tensors, stated, intermediate_size=300)
    made = convert(request(source, tmp_path / "out.gguf"))[0]
    check_file(tmp_path / "out.gguf", meaning, "F32")
    assert made.receipt["logits"]["relative_rms"] < 2e-6
    write(tmp_path / "in", tensors, {**stated, "weight_block_size": None}, intermediate_size=300)
    with pytest.raises(ShapeError, match="scale"):
        convert(request(source, tmp_path / "none.gguf"))


def test_other_outtypes_and_threads(tmp_path: Path) -> None:
    tensors, _ = model(gptq(4, 32))
    source = write(tmp_path / "in", tensors, gptq_config(4, 32))
    convert(request(source, tmp_path / "f16.gguf", "f16"))
    one = request(source, tmp_path / "one.gguf", "f16", "none")
    convert(Request(one.source, one.out, one.options, vocab=one.vocab, level="none", jobs=1))
    assert (tmp_path / "one.gguf").read_bytes() == (tmp_path / "f16.gguf").read_bytes()


@pytest.mark.sampled(8)
@pytest.mark.parametrize("case", CASES)
def test_integers_are_not_quantized_again_unasked(case: str, tmp_path: Path) -> None:
    """As with a GGUF source of a quantized type. FP8 is a float of less precision, and nobody needs to be asked."""
    quantize, config = CASES[case]
    asked = request(write(tmp_path / "in", model(quantize)[0], config), tmp_path / "out.gguf", "iq4_nl", "fast")
    if config["quant_method"] in ("gptq",) or case.startswith("ct int"):
        with pytest.raises(RefusedError, match=r"blk.*(GPTQ of|compressed-tensors, ).* already.*--allow-requantize"):
            convert(asked)
        assert not (tmp_path / "out.gguf").exists()
        asked = replace(asked, options=Options(outtype="iq4_nl", allow_requantize=True))
    convert(asked)
    assert open_gguf(str(tmp_path / "out.gguf")).tensors["blk.0.attn_q.weight"].type.name == "IQ4_NL"


def test_any_rows_are_the_same_rows(tmp_path: Path) -> None:
    """Pieces that begin and end anywhere, also between words of packed zero points."""
    for number, case in enumerate(("gptq 4 desc_act", "ct int4 asymmetric", "fp8 blocks")):
        quantize, config = CASES[case]
        tensors, meaning = model(quantize)
        checkpoint = open_checkpoint(str(write(tmp_path / str(number), tensors, config)))
        graph = understand(checkpoint)
        for name in ("model.layers.1.mlp.up_proj.weight", "model.layers.2.mlp.down_proj.weight"):
            ref = graph.checkpoint.tensors[name]
            for start, stop in ((0, 1), (5, 6), (7, 23), (63, 64), (0, 64)):
                found = values_of(graph.checkpoint, ref, start, stop)
                assert np.array_equal(found, meaning[name][start:stop]), (case, start, stop)
            source, span = graph.checkpoint.files[-1], ref.spans[0]
            whole = meaning[name].tobytes()
            assert source.read(span.offset + 13, len(whole) - 100) == whole[13:-87]
        checkpoint.close()


def test_the_file_beside_config_json(tmp_path: Path) -> None:
    """AutoGPTQ wrote quantize_config.json and no quant_method."""
    tensors, meaning = model(gptq(4, 32))
    source = write(tmp_path / "in", tensors, None, "float16")
    (source / "quantize_config.json").write_text(json.dumps({"bits": 4, "group_size": 32, "desc_act": False}))
    convert(request(source, tmp_path / "out.gguf"))
    check_file(tmp_path / "out.gguf", meaning, "F32")


def test_biases_of_zeros_are_dropped_only_all_together(tmp_path: Path) -> None:
    tensors, meaning = model(gptq(4, 32))
    rows = {name.removesuffix("qweight") + "bias": tensors[name].shape[1] for name in tensors if "qweight" in name}
    tensors |= {name: torch.zeros(size, dtype=torch.float16) for name, size in rows.items()}
    source = write(tmp_path / "in", tensors, gptq_config(4, 32))
    result = convert(request(source, tmp_path / "out.gguf"))[0]
    check_file(tmp_path / "out.gguf", meaning, "F32")
    assert {drop["name"] for drop in result.receipt["dropped"]} == set(rows)
    tensors["model.layers.1.mlp.up_proj.bias"][3] = 1
    stated = {"attention_bias": True, "mlp_bias": True}  # of a class that has none where nothing states it
    result = convert(request(write(tmp_path / "in", tensors, gptq_config(4, 32), **stated), tmp_path / "biased.gguf"))[
        0
    ]
    kept = [record["name"] for record in result.receipt["tensors"] if record["name"].endswith("bias")]
    assert len(kept) == len(rows) and not result.receipt["dropped"]


def test_scales_of_the_runtime_are_dropped_with_a_reason(tmp_path: Path) -> None:
    tensors, meaning = model(fp8(None, end="_scale"))
    extra = ["model.layers.0.mlp.up_proj.input_scale", "model.layers.0.self_attn.k_proj.k_scale"]
    tensors |= {name: torch.tensor(0.5) for name in extra}
    config = {"quant_method": "modelopt", "quant_algo": "FP8"}
    result = convert(request(write(tmp_path / "in", tensors, config), tmp_path / "out.gguf"))[0]
    check_file(tmp_path / "out.gguf", meaning, "F32")
    assert [drop["name"] for drop in result.receipt["dropped"]] == extra


def test_a_configuration_beside_plain_weights_is_only_said(tmp_path: Path) -> None:
    """Somebody dequantized the weights and left the configuration."""

    def plain(name: str, weight: np.ndarray, rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
        return {name: torch.from_numpy(weight)}, weight

    tensors, meaning = model(plain)
    convert(request(write(tmp_path / "in", tensors, {"quant_method": "awq", "bits": 4}), tmp_path / "out.gguf"))
    check_file(tmp_path / "out.gguf", meaning, "F32")


@pytest.mark.parametrize("packed", [False, True])
def test_transforms_of_activations_are_refused_and_those_of_weights_are_in_them(packed: bool, tmp_path: Path) -> None:
    def plain(name: str, weight: np.ndarray, rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
        return {name: torch.from_numpy(weight).bfloat16()}, weight

    tensors, _ = model(integers(4, 32, packed=True) if packed else plain)
    places = [{"targets": ["re:.*up_proj$"], "location": "weight_input", "inverse": False}]
    settings = compressed(4, 32, "pack-quantized")
    settings["transform_config"] = {"config_groups": {"R1": {"type": "hadamard", "apply": places}}}
    source = write(tmp_path / "in", tensors, settings)
    convert(request(source, tmp_path / "out.gguf"))
    places.append({"targets": ["re:.*down_proj$"], "location": "input", "inverse": True})
    write(source, tensors, settings)
    with pytest.raises(UnsupportedError, match="transform_config"):
        convert(request(source, tmp_path / "other.gguf"))


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "marlin"}, "marlin"),
        ({"quant_method": "eetq"}, "order of a CUDA kernel"),
        ({"quant_method": "vptq"}, "vptq"),
        ({"quant_method": "auto-round", "bits": 4, "group_size": 32, "rotation_config": {"a": 1}}, "rotated while"),
        ({"quant_method": "quip"}, "quip"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "W4A8_AWQ"),
        ({**compressed(4, 32, "marlin-24")}, "marlin-24"),
        ({**compressed(4, 32, "pack-quantized"), "sparsity_config": {"format": "sparse-24"}}, "sparse-24"),
        ({**compressed(4, 32, "pack-quantized"), "transform_config": {"R1": {}}}, "R1"),
        (gptq_config(4, 32, checkpoint_format="marlin"), "marlin"),
        (gptq_config(9, 32), "bits"),
    ],
)
def test_other_schemes_are_refused_by_name(config: Any, named: str, tmp_path: Path) -> None:
    """Before any weight is read: the data of the file is not there."""
    tensors, _ = model(gptq(4, 32, order="none"))
    source = write(tmp_path / "in", tensors, config or None)
    checkpoint = open_checkpoint(str(source))
    checkpoint.files[0].read_into = checkpoint.files[0].read = None  # type: ignore[attr-defined]
    with pytest.raises(UnsupportedError) as caught:
        plan_conversion(request(source, tmp_path / "out.gguf"), checkpoint)
    assert named in str(caught.value) and caught.value.exit_code == 4


BROKEN: list[tuple[str, Callable[[Tensors], None], type[GgferryError]]] = [
    ("gptq 4", without(".qzeros"), MissingError),
    ("gptq 4", changed(".qzeros", lambda t: t[:, :-1]), ShapeError),
    ("gptq 4", changed(".scales", lambda t: t[:, :-1]), ShapeError),
    ("gptq 4 no g_idx", changed(".scales", lambda t: t[:-1]), ShapeError),
    ("gptq 4", changed(".g_idx", lambda t: t[:-8]), InconsistentError),
    ("gptq 4", changed(".g_idx", lambda t: t + 1), OutOfRangeError),
    ("gptq 4", changed(".g_idx", lambda t: t - 1), OutOfRangeError),
    ("fp8 blocks", changed("_scale_inv", lambda t: t.to(torch.int16)), UnsupportedError),
    ("gptq 4", changed(".qweight", lambda t: t.long()), UnsupportedError),
    ("gptq 4", changed(".scales", first_nan), BadValueError),
    ("fp8 blocks", without("_scale_inv"), MissingError),
    ("fp8 blocks", changed("_scale_inv", lambda t: t[:-1]), ShapeError),
    ("fp8 blocks", changed("_scale_inv", lambda t: t[:, :-1]), ShapeError),
    ("fp8 blocks", changed("_scale_inv", first_nan), BadValueError),
    ("ct int4 group", without("_scale"), MissingError),
    ("ct int4 group", without("_shape"), MissingError),
    ("ct int4 group", changed("_shape", lambda t: t + 1), InconsistentError),
    ("ct int4 group", changed("_shape", lambda t: t + torch.tensor([0, 100])), UnsupportedError),
    ("ct int4 group", changed("_scale", lambda t: t[:, :-1]), ShapeError),
    ("ct int4 actorder", changed("_g_idx", lambda t: t + 1), OutOfRangeError),
    ("ct int4 actorder", changed("_g_idx", lambda t: t[:-1]), ShapeError),
    ("ct int4 asymmetric", changed("_zero_point", lambda t: t[:-1]), ShapeError),
]


@pytest.mark.parametrize("number", range(len(BROKEN)))
def test_what_contradicts_itself_is_refused(number: int, tmp_path: Path) -> None:
    case, change, error = BROKEN[number]
    quantize, config = CASES[case]
    tensors, _ = model(quantize)
    change(tensors)
    with pytest.raises(error):
        convert(request(write(tmp_path / "in", tensors, config), tmp_path / "out.gguf", level="fast"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]
