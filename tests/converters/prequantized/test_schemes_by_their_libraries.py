"""Layers that the schemes' own libraries packed mean what these libraries say (`helpers/make_scheme_fixtures.py`)."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import save_file

from helpers.third_party_fixtures import FIXTURES
from helpers.values import dequantized_values

LAYER = "model.layers.0.mlp.up_proj.weight"
BLOCKS = {
    "gptq-20230310-4": "Q4_1",
    "gptq-20230320-3-64": "Q4_0",
    "gptq-20230328-4-32": "",
}
"""Fixture → the blocks that hold its values; '' where none does."""


def test_all_fixtures_are_named() -> None:
    assert {path.stem for path in (FIXTURES / "schemes").glob("*.safetensors")} == set(BLOCKS)


@pytest.mark.parametrize("case", BLOCKS)
def test_values_are_those_of_the_library(case: str, tmp_path: Path) -> None:
    """Bit for bit; blocks hold the same, or differ by the rounding of a float32 scale to float16."""
    with safe_open(FIXTURES / "schemes" / f"{case}.safetensors", "pt") as file:
        tensors, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    settings = json.loads(metadata["config"])
    config = {"model_type": "llama"} | ({} if settings is None else {"quantization_config": settings})
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(tensors, tmp_path / "model.safetensors", metadata)
    values, kind, held = dequantized_values(tmp_path, LAYER)[LAYER]
    assert hashlib.sha256(values.tobytes()).hexdigest() == metadata["meaning"]
    assert kind == BLOCKS[case]
    if held is not None:
        assert np.abs(held - values).max() <= 2**-10 * np.abs(values).max()
