"""The oracle's checkpoints there and back: HF → GGUF f32 → HF gives every tensor bit for bit, and transformers computes
the same with what was written."""

from __future__ import annotations

from pathlib import Path

import pytest

from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.convert import convert
from ggferry.converters.export.export import export
from ggferry.converters.export.known_classes import known_class
from ggferry.converters.model_graph.open_checkpoint import architectures
from ggferry.converters.request import Request
from ggferry.formats.json_files.text import load_object
from helpers.road_back import check_tensors
from helpers.witnesses import CORPUS

assert CORPUS is not None
pytestmark = [pytest.mark.corpus, pytest.mark.filterwarnings("ignore")]
KNOWN = {name for spec in architectures().values() for name in spec.hf_classes}
FOLDERS = {
    path.parent.name if path.name == "ckpt" else path.name: path
    for path in (*sorted(CORPUS.glob("hf/ckpt/*")), *sorted(CORPUS.glob("arch/*/ckpt")))
    if set(load_object(str(path / "config.json")).get("architectures", ())) & KNOWN
}
FOLDED = ("falcon_h1", "falcon_h1_norm")
"""Whose multipliers GGUF has in the weights."""
SILENT = ("qwen2vl", "qwen25vl", "qwen3vl", "qwen3vlmoe", "qwen3vlmoe_tf5")
"""Text halves without a class of their own: transformers finds no weights of the half that sees."""


@pytest.mark.parametrize("name", FOLDERS)
def test_there_and_back(name: str, tmp_path: Path) -> None:
    source = FOLDERS[name]
    gguf = convert(Request(str(source), str(tmp_path / "x.gguf"), Options(outtype="f32"), level="none")).path
    done = export(Request(gguf, str(tmp_path / "out"), to="safetensors", witness=("transformers",)))
    if name not in FOLDED:
        check_tensors(source, tmp_path / "out")
    known = known_class(done.receipt["output"]["class"])
    said = [one for one in done.proof.testimonies if one.witness == "transformers"]
    if known and known.keys and name not in SILENT and said and said[0].what == "logits":
        assert said[0].why is None, said
