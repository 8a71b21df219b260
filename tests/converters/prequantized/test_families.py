"""Quantized checkpoints of every family: what permutes, splits and stacks its tensors does so to blocks, too."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors.torch import load_file, save_file

from ggferry.converters.conversion.run import convert
from ggferry.formats.errors import GgferryError
from helpers import packed_fp8_gptq as packed
from helpers.packed_further import BNB4, awq, four_bits
from helpers.quantized_llama import Quantize, Tensors, request
from helpers.tiny_models import TINY, make
from helpers.values import decoded

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [32, 32], "activation_scheme": "dynamic"}
INT8 = packed.integers(8, None, packed=False), packed.compressed(8, None, "int-quantized")
SCHEMES: tuple[tuple[Quantize, Mapping[str, Any]], ...] = (
    (packed.gptq(4, 32), packed.gptq_config(4, 32)),
    (packed.integers(4, 32, packed=True), packed.compressed(4, 32, "pack-quantized")),
    INT8,
    (packed.fp8((32, 32)), FP8),
    (awq(32), AWQ),
    (four_bits("nf4", 64), BNB4),
)
PLAIN = re.compile(
    r"(embed[^.]*|wte|wpe|lm_head|output_layer|[^.]*norm[^.]*|ln_[^.]*|gate|router[^.]*|conv[^.]*|wg|time_[^.]*|"
    r"shared_expert_gate|score|hash[^.]*|hc_[^.]*)\.weight$|lora|position|relative|pooler|classif|codebook|embed"
)
"""What quantizers leave as it is."""
NO_SUCH_WIDTH = GgferryError, StrictDataclassError, ValueError, TypeError, RuntimeError, AttributeError, AssertionError
"""What configurations, classes and `convert` raise for widths that do not go together."""
WIDER = {"hidden_size": 64, "intermediate_size": 96}


def run(source: Path, out: Path, outtype: str, level: str = "full") -> Any:
    """Convert the text model, and return the receipt."""
    return convert(replace(request(source, out, outtype, level), mmproj="none"))[0].receipt


def matrices(values: Mapping[str, torch.Tensor], step: int) -> list[str]:
    """Return the names of the linear layers whose rows and columns are multiples of `step`."""
    two = {name: each.shape for name, each in values.items() if each.dim() == 2 and name.endswith("weight")}
    return [
        name
        for name, (rows, columns) in two.items()
        if not PLAIN.search(name) and rows % step == 0 == columns % step and min(rows, columns) >= 16
    ]


def written(folder: Path, made: Path, tensors: Tensors, settings: Mapping[str, Any] | None) -> Path:
    shutil.copytree(made, folder)
    config = json.loads((made / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | ({"quantization_config": settings} if settings else {})))
    save_file(
        {name: each.contiguous() for name, each in tensors.items()}, folder / "model.safetensors", {"format": "pt"}
    )
    return folder


def checkpoint(name: str, folder: Path) -> Path:
    """Write the tiny model with widths that are multiples of 32, where it can have such."""
    for number, changes in enumerate(({**WIDER, "moe_intermediate_size": 64}, WIDER, {"hidden_size": 64}, {})):
        if "moe_intermediate_size" in changes and "moe_intermediate_size" not in TINY[name].config:
            continue
        made = folder / f"made-{number}"
        try:
            make(name, made, **changes)
            run(made, folder / f"made-{number}.gguf", "f32", "none")
        except (
            GgferryError,
            StrictDataclassError,
            ValueError,
            TypeError,
            RuntimeError,
            AttributeError,
            AssertionError,
        ):
            if not changes:
                raise
            continue
        return made
    raise AssertionError(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_every_value_is_the_one_that_was_published(name: str, tmp_path: Path) -> None:
    made = checkpoint(name, tmp_path)
    values = load_file(made / "model.safetensors")
    (quantize, settings), chosen = SCHEMES[crc32(name.encode()) % len(SCHEMES)], matrices(values, 32)
    if not chosen:
        (quantize, settings), chosen = INT8, matrices(values, 1)
    stored, meaning, rng = dict(values), dict(values), np.random.default_rng(5)
    for each in chosen:
        tensors, rows = quantize(each, stored.pop(each).float().numpy(), rng)
        stored |= tensors
        meaning[each] = torch.from_numpy(np.array(rows, np.float32))
    source = written(tmp_path / "packed", made, stored, settings)
    receipt = run(source, tmp_path / "packed.gguf", "keep")
    run(written(tmp_path / "plain", made, meaning, None), tmp_path / "plain.gguf", "f32", "fast")
    found, expected = decoded(tmp_path / "packed.gguf"), decoded(tmp_path / "plain.gguf")
    assert found.keys() == expected.keys() and chosen
    for tensor, (_, own) in expected.items():
        assert np.array_equal(found[tensor][1] + np.float32(0), own + np.float32(0)), tensor
    assert receipt["second_reader"]["unread"] == ()
