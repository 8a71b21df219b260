"""The oracle's checkpoints there and back: HF → GGUF f32 → HF gives every tensor bit for bit, and transformers computes
the same with what was written."""

from __future__ import annotations

from pathlib import Path

import pytest

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion.run import convert as export
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.hf_export.known_classes import known_class
from ggferry.converters.model_graph.open_checkpoint import architectures
from ggferry.formats.errors import GgferryError, UnsupportedError, VerificationError
from ggferry.formats.json_files.text import load_object
from helpers.hf_export import check_tensors
from helpers.third_party_fixtures import CORPUS

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
LARGE = ("qwen3vl", "qwen3vlmoe", "qwen3vlmoe_tf5")
"""Of these, those whose other half transformers makes so large that it takes the machine's memory: tensors and
configuration alone are checked.
"""
ROTATED = {"qwen3vlmoe": ".mlp.experts."}
"""What transformers 4 stored the other way round than 5, which is what is written."""
NO_SPACE = (UnsupportedError, "the vocabulary puts a space before a text, which transformers does not for this class")
REFUSED: dict[str, tuple[type[GgferryError], str]] = {
    "gemma4_dense": NO_SPACE,
    "gemma4_e": NO_SPACE,
    "gemma4_moe": NO_SPACE,
    "glm4v": (VerificationError, "the forward pass of the output differs from the source's"),
}
"""What does not lead back, and what is said of it (docs/export.md)."""


def _gguf(name: str, folder: Path) -> str:
    return convert(Request(str(FOLDERS[name]), str(folder / "x.gguf"), Options(outtype="f32"), level="none"))[0].path


@pytest.mark.parametrize("name", [name for name in FOLDERS if name not in REFUSED])
def test_there_and_back(name: str, tmp_path: Path) -> None:
    witness = () if name in LARGE else ("transformers",)
    done = export(Request(_gguf(name, tmp_path), str(tmp_path / "out"), to="safetensors", witness=witness))[0]
    if name not in FOLDED:
        check_tensors(FOLDERS[name], tmp_path / "out", ROTATED.get(name, ""))
    known = known_class(done.receipt["output"]["class"])
    said = [one for one in done.proof.testimonies if one.witness == "transformers"]
    if name in LARGE:
        assert done.proof.testimonies and not said
        assert load_object(str(tmp_path / "out" / "config.json"))["architectures"] == [done.receipt["output"]["class"]]
    elif known and known.keys and name not in SILENT and said and said[0].what == "logits":
        assert said[0].why is None, said


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_lead_back(name: str, tmp_path: Path) -> None:
    kind, message = REFUSED[name]
    with pytest.raises(kind) as caught:
        export(Request(_gguf(name, tmp_path), str(tmp_path / "out"), to="safetensors"))
    assert caught.value.message == message
    assert not (tmp_path / "out").exists()
