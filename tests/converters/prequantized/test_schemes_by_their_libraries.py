"""Layers that the schemes' own libraries packed mean what these libraries say (`helpers/make_scheme_fixtures.py`,
`make_packed_fixtures.py`)."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from ggferry.formats.errors import GgferryError, UnsupportedError
from helpers.third_party_fixtures import FIXTURES
from helpers.values import dequantized_values

LAYER = "model.layers.0.mlp.up_proj.weight"
BLOCKS = {
    "gptq-20230310-4": "Q4_1",
    "gptq-20230320-3-64": "Q4_0",
    "gptq-20230328-4-32": "",
    "gptq-4-second-format": "Q5_0",
    "autoround-3-of-gptqmodel": "Q4_0",
    "autoround-4-zeros-as-they-are": "Q5_0",
    "autoround-5": "Q5_0",
    "autoround-6": "Q8_0",
    "autoround-7": "Q8_0",
    "autoround-8-among-4": "Q8_0",
    "autoround-mxfp4": "MXFP4",
    "autoround-mxfp8": "",
    "autoround-nvfp4": "NVFP4",
    "modelopt-mxfp4": "MXFP4",
    "modelopt-mxfp8": "",
    "ct-3-asymmetric": "Q4_0",
    "ct-6-asymmetric": "Q8_0",
    "ct-4-of-two-groups": "Q4_0",
    "ct-4-in-int8": "Q4_0",
    "ct-8-beside-4": "Q8_0",
    "ct-float8-blocks-as-text": "",
    "bnb-nf4-as-bfloat16": "",
    "bnb-nf4-as-float32": "",
    "hqq-8": "",
    "hqq-4": "Q4_1",
    "hqq-4-axis0": "",
    "hqq-4-whole-zeros": "Q5_0",
    "hqq-4-as-float": "Q4_1",
    "hqq-3": "Q4_1",
    "hqq-3-axis0": "",
    "hqq-2": "",
    "hqq-1": "Q4_1",
    "hqq-1.58": "Q4_1",
    "torchao-int8-weight-only": "Q8_0",
    "torchao-int8-groups": "Q8_0",
    "torchao-int8-dynamic": "Q8_0",
    "torchao-float8-weight-only": "",
    "torchao-8da4w": "Q4_0",
    "torchao-int4-asymmetric": "Q5_0",
    "torchao-int2": "Q4_0",
    "torchao-int6-rows": "Q8_0",
    "exl2-all-bits": "",
    "exl2-3.5": "",
    "aqlm-1x12": "",
    "aqlm-2x8": "",
    "aqlm-4x8": "",
    "aqlm-2x5": "",
    "quanto-qint8": "Q8_0",
    "quanto-qint4": "Q4_1",
    "quanto-qint4-32": "Q4_1",
    "quanto-qint4-rows": "Q4_1",
    "quanto-qint4-whole": "Q5_0",
    "quanto-qint2": "Q4_1",
    "quanto-qfloat8_e4m3fn": "",
    "quanto-qfloat8_e5m2": "",
    "awq-gemv": "Q5_0",
    "awq-gemv-32": "Q5_0",
    "awq-gemv-fast": "Q4_1",
    "awq-gemv-fast-64": "Q4_1",
    "ct-mxfp6": "Q8_0",
    "ct-sparse": "",
    "ct-sparse-24": "",
    "ct-sparse-24-float8": "",
    "modelopt-fp8-blocks": "",
    "modelopt-int4": "Q4_0",
    "modelopt-int4-columns": "",
    "mlx-affine-1": "Q4_1",
    "modelopt-int8": "Q8_0",
    "modelopt-fp8-stack": "",
    "modelopt-fp8-stack-outputs": "",
    "modelopt-nvfp4-stack": "",
    "quark-fp4": "",
    "quark-fp8": "",
    "quark-fp8-blocks": "",
    "quark-fp8-rows": "",
    "quark-int4": "Q4_0",
    "quark-int4-rows": "Q4_0",
    "quark-int8-groups": "Q8_0",
    "quark-int8-rows": "Q8_0",
    "quark-mxfp4": "MXFP4",
    "quark-mxfp6-e2m3": "Q8_0",
    "quark-mxfp6-e3m2": "",
    "quark-uint4": "Q5_0",
    "quark-uint4-in-order": "Q5_0",
    "quark-uint4-rows": "Q5_0",
    "quark-uint8": "",
    "torchao-int4-fbgemm": "Q4_1",
    "torchao-int4-fbgemm-symmetric": "Q4_0",
}
"""Fixture → the blocks that hold its values; '' where none does."""
WIDTHS = {
    "quanto-qint4": 256,
    "quanto-qint4-32": 160,
    "quanto-qint4-rows": 64,
    "quanto-qint4-whole": 256,
    "quanto-qint2": 192,
}
"""Fixture → the model's width, where the tensors do not say it."""


def test_all_fixtures_are_named() -> None:
    assert {path.stem for path in (FIXTURES / "schemes").glob("*.safetensors")} == set(BLOCKS)


@pytest.mark.parametrize("case", BLOCKS)
def test_values_are_those_of_the_library(case: str, tmp_path: Path) -> None:
    """Bit for bit; blocks hold the same, or differ by the rounding of a float32 scale to float16."""
    with safe_open(FIXTURES / "schemes" / f"{case}.safetensors", "pt") as file:
        tensors, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    settings = json.loads(metadata["config"])
    config = {"model_type": "llama", "hidden_size": WIDTHS.get(case)} | (
        {} if settings is None else {"quantization_config": settings}
    )
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(tensors, tmp_path / "model.safetensors", metadata)
    layer = metadata.get("layer", LAYER)
    values, kind, held = dequantized_values(tmp_path, layer)[layer]
    if case.startswith("exl2"):  # whose kernels write float16: each value is one product, rounded
        values = values.astype(np.float16).astype(np.float32)
    assert hashlib.sha256(values.tobytes()).hexdigest() == metadata["meaning"]
    assert kind == BLOCKS[case]
    if held is not None:
        assert np.abs(held - values).max() <= 2**-10 * np.abs(values).max()


@pytest.mark.parametrize("old", [False, True])
def test_a_pt_file_of_hqq_has_its_settings_as_values(old: bool, tmp_path: Path) -> None:
    """Not as tensors; of 2023 within `meta`."""
    state = torch.load(FIXTURES / "schemes" / "hqq-3.pt", weights_only=True)
    if old:
        name, layer = state.popitem()
        state[name] = {"W_q": layer.pop("W_q"), "bias": None, "meta": layer}
    torch.save(state, tmp_path / "qmodel.pt")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with safe_open(FIXTURES / "schemes" / "hqq-3.safetensors", "pt") as file:
        meaning = file.metadata()["meaning"]
    values, kind, _ = dequantized_values(tmp_path, LAYER)[LAYER]
    assert kind == "Q4_1" and hashlib.sha256(values.tobytes()).hexdigest() == meaning


TORCHAO = ("torchao-int8-groups", "torchao-8da4w", "torchao-float8-weight-only")


@pytest.mark.parametrize("case", TORCHAO)
def test_a_bin_file_of_torchao_means_the_same(case: str, tmp_path: Path) -> None:
    """Pickles of its classes, read as data, in two files too; other classes end the reading."""
    with safe_open(FIXTURES / "schemes" / f"{case}.safetensors", "pt") as file:
        metadata = file.metadata()
    config = {"model_type": "llama", "quantization_config": json.loads(metadata["config"])}
    (tmp_path / "config.json").write_text(json.dumps(config))
    torch.save({"model.norm.weight": torch.ones(4)}, tmp_path / "pytorch_model-00001-of-00002.bin")
    shutil.copy(FIXTURES / "schemes" / f"{case}.pt", tmp_path / "pytorch_model-00002-of-00002.bin")
    values, kind, _ = dequantized_values(tmp_path, LAYER)[LAYER]
    assert hashlib.sha256(values.tobytes()).hexdigest() == metadata["meaning"]
    assert kind == BLOCKS[case]


def test_torchaos_classes_that_are_not_known_are_refused_by_name(tmp_path: Path) -> None:
    data = (FIXTURES / "schemes" / "torchao-int8-groups.pt").read_bytes()
    assert b"Int8Tensor" in data
    config = {"model_type": "llama", "quantization_config": {"quant_method": "torchao"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    state = read_zip(data)
    pickled = next(name for name in state if name.endswith("data.pkl"))
    for other, error in ((b"Int9Tensor", UnsupportedError), (b"I\x00\x009Tensor", GgferryError)):
        with zipfile.ZipFile(tmp_path / "pytorch_model.bin", "w") as archive:
            for name, held in state.items():
                archive.writestr(name, held.replace(b"Int8Tensor", other) if name == pickled else held)
        with pytest.raises(error):
            dequantized_values(tmp_path, LAYER)


def read_zip(data: bytes) -> dict[str, bytes]:
    """The entries of an archive."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}
