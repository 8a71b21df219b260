"""A GGUF file of rows of 256, and a text that its vocabulary reads."""

from __future__ import annotations

from pathlib import Path

import pytest

import ggferry

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def source(fixtures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "f16.gguf"
    ggferry.convert(fixtures / "hf/ckpt/llama_k256", path, outtype="f16", verify="none")
    return path


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text((ROOT / "CONTRIBUTING.md").read_text()[:6000])
    return path
