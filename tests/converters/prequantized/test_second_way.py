"""Quantized matrices computed a second way: the formulas agree with what was packed, and notice mistakes in ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from ggferry.converters.conversion.run import convert
from helpers import packed_fp8_gptq, packed_further
from helpers.quantized_llama import model, request, write

CASES = {
    **packed_fp8_gptq.CASES,
    **packed_further.CASES,
    **{name: case[:2] for name, case in packed_further.BLOCKS.items()},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_every_scheme_is_computed_a_second_way(case: str, tmp_path: Path) -> None:
    quantize, config = CASES[case]
    source = write(tmp_path / "in", model(quantize)[0], config)
    found = convert(request(source, tmp_path / "out.gguf", "keep", "fast"))[0].receipt["second_reader"]
    assert found["unread"] == () and found["matrices"] == 21
    assert found["tensors"] > 21 and found["libraries"][0].startswith("safetensors ")
