"""HQQ, torchao, Quanto and others in whole models. The packing is written from their own descriptions, element by
element; layers that their own libraries packed are in `test_schemes_by_their_libraries.py`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ggferry.converters.conversion.run import convert
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.model_graph.rows import values_of
from ggferry.converters.prequantized.recognize import dequantized
from ggferry.formats.errors import (
    AmbiguousError,
    GgferryError,
    InconsistentError,
    MissingError,
    ShapeError,
    UnsupportedError,
)
from helpers.packed_fp8_gptq import gptq
from helpers.packed_others import CASES, line
from helpers.quantized_llama import LINE, Tensors, changed, gguf_name, in_gguf_order, model, request, without, write
from helpers.values import decoded

ROUNDED = {"hqq 4", "hqq 4, as float", "hqq 3", "torchao int4"}
"""Cases whose minimum, zero point × scale, is no float16."""
CONVERTED = (
    "hqq 4",
    "hqq 4, whole zeros",
    "hqq 3, axis 0",
    "torchao 4 with zeros",
    "torchao int4",
    "quanto",
    "quanto 4",
    "quanto 2",
    "exl2",
    "aqlm 2x8",
    "aqlm 3x5, groups of rows",
)


@pytest.mark.parametrize("case", CASES)
def test_any_rows_are_what_was_packed(case: str, tmp_path: Path) -> None:
    """Bit for bit, and so are the blocks that hold them, but for numbers that are no float16."""
    quantize, config, kind = CASES[case]
    tensors, meaning = model(quantize)
    checkpoint = dequantized(open_checkpoint(str(write(tmp_path / "in", tensors, config))))
    for name in ("model.layers.1.mlp.up_proj.weight", "model.layers.2.mlp.down_proj.weight"):
        ref = checkpoint.tensors[name]
        for start, stop in ((0, 64), (5, 6), (7, 23), (63, 64)):
            assert np.array_equal(values_of(checkpoint, ref, start, stop), meaning[name][start:stop])
        assert ref.derived is not None
        assert (ref.derived.exact or ("",))[0] == kind and bool(ref.derived.inexact) != bool(kind)
    checkpoint.close()


@pytest.mark.parametrize("case", CONVERTED)
def test_a_model_is_converted_and_computed_a_second_way(case: str, tmp_path: Path) -> None:
    quantize, config, kind = CASES[case]
    tensors, meaning = model(quantize)
    receipt = convert(request(write(tmp_path / "in", tensors, config), tmp_path / "out.gguf", "keep", "fast"))[
        0
    ].receipt
    assert receipt["second_reader"]["unread"] == () and receipt["second_reader"]["matrices"] == 21
    found = decoded(tmp_path / "out.gguf")
    grades = {record["name"]: record["grade"] for record in receipt["tensors"]}
    for name, weight in meaning.items():
        type_of, values = found[gguf_name(name)]
        expected = in_gguf_order(name, weight)
        assert type_of == (kind or "BF16")
        assert grades[gguf_name(name)] == ("rescaled" if case in ROUNDED else "repacked" if kind else "rounded")
        assert np.abs(values - expected).max() <= np.abs(expected).max() * (2**-8 if case in ROUNDED or not kind else 0)


def test_rows_that_fill_up_the_vocabulary_of_exl2_are_left_out(tmp_path: Path) -> None:
    quantize, config, _ = CASES["exl2"]
    tensors, _ = model(quantize)
    head = np.concatenate((tensors.pop("lm_head.weight").float().numpy(), np.zeros((24, 64), np.float32)))
    made, meaning = quantize("lm_head.weight", head, np.random.default_rng(1))
    convert(request(write(tmp_path / "in", tensors | made, config), tmp_path / "out.gguf", "f32", "fast"))
    assert np.array_equal(decoded(tmp_path / "out.gguf")["output.weight"][1], meaning[:72])


def described(kind: str, **data: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """Make another line of the file's metadata."""
    return lambda tensor: line("", kind, **data)[LINE]


BROKEN: list[tuple[str, Callable[[Tensors], None], type[GgferryError]]] = [
    ("hqq 4", without(".scale"), MissingError),
    ("hqq 4", without(".shape"), MissingError),
    ("hqq 4", without(".packing"), MissingError),
    ("hqq 4", changed(".shape", lambda t: t * 2), ShapeError),
    ("hqq 4", changed(".shape", lambda t: -t), InconsistentError),
    ("hqq 4", changed(".shape", lambda t: torch.zeros(1 << 16, dtype=torch.int64)), InconsistentError),
    ("hqq 4", changed(".group_size", lambda t: t * 0), InconsistentError),
    ("hqq 4", changed(".group_size", lambda t: t * 2), ShapeError),
    ("hqq 4", changed(".packing", lambda t: t * 0), InconsistentError),
    ("hqq 4", changed(".packing", lambda t: t + 1), UnsupportedError),
    ("hqq 4", changed(".axis", lambda t: t + 1), UnsupportedError),
    ("hqq 4", changed(".quant_zero", lambda t: t + 1), UnsupportedError),
    ("hqq 4", changed(".W_q", lambda t: t[1:]), ShapeError),
    ("hqq 4", changed(".W_q", lambda t: t.int()), UnsupportedError),
    ("hqq 4", changed(".zero", lambda t: t[1:]), ShapeError),
    ("hqq 4", changed(".scale", lambda t: t.int()), UnsupportedError),
    ("torchao 4", without(LINE + "model.layers.0.mlp.up_proj.weight"), InconsistentError),
    ("torchao 4", changed("q_proj.weight", lambda t: t[1:]), InconsistentError),
    ("torchao 4", changed("q_proj.weight", lambda t: torch.tensor(list(b"[" * 50000)).byte()), InconsistentError),
    ("torchao 4", changed("q_proj.weight", described("Int4PreshuffledTensor")), UnsupportedError),
    ("torchao 4", changed("q_proj.weight", described("Int8Tensor", block_size=[1, 0])), InconsistentError),
    ("torchao 4", changed("q_proj.weight", described("Int8Tensor", block_size=[1, 16])), ShapeError),
    ("torchao 4", changed("q_proj.weight", described("Int8Tensor", block_size=[1, 30])), ShapeError),
    (
        "torchao 4",
        changed("q_proj.weight", described("Int8Tensor", block_size=[1, 32], target_dtype="int9")),
        InconsistentError,
    ),
    ("torchao 4", without("_weight_scale"), MissingError),
    ("torchao 4", changed("_weight_zero_point", lambda t: t[1:]), ShapeError),
    ("torchao 4", changed("_weight_zero_point", lambda t: t.float()), UnsupportedError),
    ("torchao 4", changed("_weight_qdata", lambda t: t.int()), UnsupportedError),
    ("exl2", without("q_invperm"), MissingError),
    ("exl2", changed("q_invperm", lambda t: t * 0), InconsistentError),
    ("exl2", changed("q_invperm", lambda t: t[1:]), InconsistentError),
    ("exl2", changed("q_groups", lambda t: t * 0), InconsistentError),
    ("exl2", changed("q_groups", lambda t: -t), InconsistentError),
    ("exl2", changed("q_groups", lambda t: t[2:]), ShapeError),
    ("exl2", changed("q_scale", lambda t: t[:, 1:]), ShapeError),
    ("exl2", changed("q_scale_max", lambda t: t.float()), UnsupportedError),
    ("exl2", changed("q_weight", lambda t: t[1:]), InconsistentError),
    ("quanto", without("._scale"), MissingError),
    ("quanto", changed("._scale", lambda t: t[1:]), ShapeError),
    ("quanto", changed("._data", lambda t: t.int()), UnsupportedError),
    ("quanto 4", without("._shift"), MissingError),
    ("quanto 4", changed("._shift", lambda t: t[1:]), ShapeError),
    ("quanto 4", changed("._data._data", lambda t: t.int()), UnsupportedError),
    ("quanto 4", changed("._data._data", lambda t: t[2:]), ShapeError),
    ("quanto 4", changed("._data._data", lambda t: t[:, 5:]), ShapeError),
    ("aqlm 2x8", without(".codebooks"), MissingError),
    ("aqlm 2x8", changed(".codes", lambda t: t[1:]), ShapeError),
    ("aqlm 2x8", changed(".codes", lambda t: t.short()), InconsistentError),
    ("aqlm 2x8", changed(".codes", lambda t: t[..., :1]), ShapeError),
    ("aqlm 2x8", changed(".codebooks", lambda t: t[:, 1:]), InconsistentError),
    ("aqlm 2x8", changed(".codebooks", lambda t: t[..., 1:]), InconsistentError),
    ("aqlm 2x8", changed(".codebooks", lambda t: t.int()), UnsupportedError),
    ("aqlm 2x8", changed(".scales", lambda t: t[1:]), ShapeError),
    ("torchao int4", without("_weight_zero_point"), MissingError),
    ("torchao int4", changed("_weight_scale", lambda t: t[:, 1:]), ShapeError),
    ("torchao int4", changed("_weight_qdata", lambda t: t[:, 1:]), ShapeError),
]


@pytest.mark.parametrize("number", range(len(BROKEN)))
def test_what_contradicts_itself_is_refused(number: int, tmp_path: Path) -> None:
    case, change, error = BROKEN[number]
    quantize, config, _ = CASES[case]
    tensors, _ = model(quantize)
    change(tensors)
    with pytest.raises(error):
        dequantized(open_checkpoint(str(write(tmp_path / "in", tensors, config))))


def test_layers_of_quanto_whose_width_is_not_known_are_refused(tmp_path: Path) -> None:
    tensors, _ = model(CASES["quanto 4"][0])
    moved = {key.replace("o_proj", "other"): value for key, value in tensors.items()}
    with pytest.raises(UnsupportedError, match="how long a row is"):
        dequantized(open_checkpoint(str(write(tmp_path / "in", moved, None))))
    with pytest.raises(ShapeError, match="elements"):
        dequantized(open_checkpoint(str(write(tmp_path / "wide", tensors, None, hidden_size=65))))


def test_settings_of_single_layers_that_fit_in_two_ways_are_asked_for(tmp_path: Path) -> None:
    """Groups of 64 and of 96 columns make two of 128; those that hold a whole row are one and the same."""
    settings: dict[str, Any] = {"quant_method": "auto-round", "bits": 4, "group_size": 64}
    single: dict[str, Any] = {"re:.*": {"group_size": 96}}
    tensors, meaning = model(gptq(4, 64, order="none"), 128)
    source = write(tmp_path / "in", tensors, {**settings, "extra_config": single}, intermediate_size=128)
    with pytest.raises(AmbiguousError, match=r"down_proj.*4 and 64 or 4 and 96.*extra_config"):
        dequantized(open_checkpoint(str(source)))
    single |= {f"model.layers.{n}.mlp.down_proj": {"group_size": 64} for n in range(3)}
    write(source, tensors, {**settings, "extra_config": single}, intermediate_size=128)
    checkpoint = dequantized(open_checkpoint(str(source)))
    for name in ("model.layers.1.mlp.up_proj.weight", "model.layers.2.mlp.down_proj.weight"):
        found = values_of(checkpoint, checkpoint.tensors[name], 0, 64)
        assert np.array_equal(found, meaning[name][:64])
    checkpoint.close()
